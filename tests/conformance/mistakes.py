"""The mistakes of wrongarray, the tests that must catch each mistake, and a pytest plugin that runs these tests.

The plugin collects the suite once. For each mistake it forks a process that makes this mistake and runs its tests. The
results are written to the file of --mistakes as lines of JSON.
"""

import json
import os
import signal

import pytest

# For each mistake, the beginning of the names of the tests that must catch it.
MEANT = {
    "always_legacy": "P2_a_consumer_of_version_1_gets_a_versioned_capsule",
    "always_versioned": "P2_without_max_version_no_versioned_capsule_comes",
    "version_2_is_exported": "P2_a_consumer_of_version_1_gets_a_versioned_capsule",
    "newer_minor_is_refused": "P2_a_newer_consumer_gets_what_the_producer_has[(1,",
    "newer_major_is_refused": "P2_a_newer_consumer_gets_what_the_producer_has[(2,",
    "version_0_gets_a_versioned_capsule": "P2_a_consumer_of_version_0",
    "keywords_by_identity": "P1_keywords_are_matched_by_value",
    "unknown_keywords_are_ignored": "P1_an_unknown_keyword_is_a_TypeError",
    "stream_is_positional": "P1_the_arguments_are_keyword_only",
    "copy_keyword_is_unknown": "P1_each_keyword_may_be_given_as_None",
    "read_only_is_not_flagged": "P3_a_versioned_capsule_of_read_only_data_is_flagged",
    "all_data_is_flagged_read_only": "P3_a_versioned_capsule_of_writable_data_is_not_flagged",
    "flags_are_not_initialized": "P3_no_unknown_flag_is_set",
    "copy_True_is_ignored": "P4_copy_True_copies",
    "copy_True_is_refused": "P4_copy_True_copies",
    "copy_is_not_flagged": "P4_a_copy_is_flagged_as_a_copy",
    "shared_memory_is_flagged_as_a_copy": "P4_shared_memory_is_not_flagged_as_a_copy",
    "copy_False_copies": "P4_copy_False_shares_the_memory",
    "copy_None_copies": "P4_without_copy_the_memory_is_reused",
    "copy_of_read_only_is_read_only": "P4_a_copy_of_read_only_data_is_writable",
    "copy_ignores_strides": "P4_a_copy_of_a_view_has_the_values_of_the_view",
    "own_device_is_refused": "P5_the_own_device_may_be_asked_for",
    "device_enum_is_refused": "P5_the_own_device_may_be_asked_for[enum]",
    "dl_device_is_ignored": "P5_a_device_that_cannot_be_served_is_a_BufferError",
    "other_device_is_a_ValueError": "P5_a_device_that_cannot_be_served_is_a_BufferError",
    "streams_are_accepted_on_the_CPU": "P6_on_the_CPU_a_stream_is_refused",
    "unexportable_is_a_RuntimeError": "P7_data_that_cannot_be_exported_is_a_BufferError",
    "unexportable_is_exported": "P7_data_that_cannot_be_exported_is_a_BufferError",
    "device_is_a_list": "P8_the_device_is_a_tuple_of_two_integers",
    "device_id_is_None": "P8_the_device_is_a_tuple_of_two_integers",
    "device_and_capsule_disagree": "P8_the_capsule_has_the_device_that_the_method_tells",
    "device_id_is_1": "P8_the_device_id_of_the_CPU_is_0",
    "owner_is_not_kept": "P9_the_memory_lives_until_the_deleter_is_called",
    "exports_share_their_shape": "P9_two_exports_are_independent",
    "bool_is_uint8": "D6_each_dtype_has_its_code_and_bits[bool",
    "complex_has_two_lanes": "D6_each_dtype_has_its_code_and_bits[complex",
    "strides_are_NULL": "D4_a_versioned_capsule_of_1_2_or_newer_has_strides",
    "strides_are_in_bytes": "D4_strides_count_elements",
    "view_begins_at_its_base": "D1_a_view_is_exported_with_its_own_elements",
    "exported_strides_are_made_positive": "D5_negative_strides_are_exported_as_they_are",
    "scalar_has_rank_1": "D3_each_shape_is_exported[()",
    "empty_array_has_data": "D3_the_data_of_an_empty_tensor_is_NULL",
    "exported_extents_have_32_bits": "D8_an_extent_beyond_32_bits_is_exported_whole",
    "capsule_has_no_destructor": "K1_dropping_an_unconsumed_capsule_calls_the_deleter_once",
    "destructor_ignores_the_name": "K1_dropping_a_consumed_capsule_calls_nothing",
    "destructor_is_inverted": "K1_dropping_an_unconsumed_capsule_calls_the_deleter_once",
    "name_is_reused": "K1_the_name_has_static_storage",
    "destructor_clears_the_exception": "K2_an_exception_in_flight_survives_the_destructor",
    "deleter_clears_the_exception": "K2_an_exception_in_flight_survives_the_deleter",
    "deleter_needs_the_GIL": "K5_the_deleter_works_without_the_GIL",
    "deleter_needs_the_interpreter": "K5_a_deleter_after_the_interpreter_is_gone",
    "struct_leaks": "K1_an_export_leaves_no_memory_behind",
    "owner_leaks": "K1_an_export_leaves_no_memory_behind",
    "failed_export_leaks": "K1_an_export_that_fails_leaves_no_memory_behind",
    "manager_ctx_is_NULL": "K8_manager_ctx",
    "no_max_version_is_passed": "C1_max_version_is_passed",
    "older_producers_are_refused": "C1_an_older_producer_is_asked_without_new_keywords",
    "errors_are_swallowed": "C1_an_error_of_the_producer_is_propagated",
    "TypeErrors_are_swallowed": "C1_a_TypeError_of_the_producer_reaches_the_caller",
    "all_TypeErrors_are_retried": "C1_calls_of_a_producer_that_raises_a_TypeError",
    "a_stream_is_passed": "C4_no_stream_is_passed_for_memory_of_the_CPU",
    "a_copy_is_always_asked_for": "C3_copy_and_dl_device_are_None_unless_the_caller_asks",
    "copy_True_is_not_passed": "C3_copy_True_gives_a_copy",
    "copy_False_is_not_passed": "C3_copy_False_never_copies",
    "imports_are_copied": "C3_the_array_shares_the_memory_if_possible",
    "legacy_is_read_as_versioned": "C2_either_form_may_come[legacy]",
    "minor_version_is_compared": "C2_any_minor_version_is_taken",
    "major_version_is_not_checked": "K6_another_major_version_is_refused_and_deleted_unread",
    "other_major_version_leaks": "K6_another_major_version_is_refused_and_deleted_unread",
    "capsule_is_not_renamed": "K4_the_capsule_is_renamed",
    "deleter_is_never_called": "K4_the_deleter_is_called_once_when_the_array_is_gone",
    "deleter_is_called_twice": "K4_the_deleter_is_called_once_when_the_array_is_gone",
    "deleter_is_called_at_once": "K4_the_memory_is_used_until_the_array_is_gone",
    "view_does_not_keep_the_memory": "K4_a_view_of_the_array_keeps_the_memory",
    "empty_tensor_is_not_deleted": "K4_the_deleter_of_an_empty_tensor_is_called",
    "consumed_capsule_is_taken": "K4_a_consumed_capsule_is_refused",
    "any_name_is_taken": "K4_a_capsule_of_another_name_is_refused",
    "refused_tensor_leaks": "K4_a_tensor_that_is_refused_is_deleted_once",
    "refused_tensor_is_deleted_twice": "K4_a_tensor_that_is_refused_is_deleted_once",
    "NULL_deleter_is_called": "K3_a_NULL_deleter_is_not_called",
    "struct_is_changed": "K4_the_struct_of_the_producer_is_not_changed",
    "byte_offset_is_ignored": "D1_byte_offset_is_added",
    "NULL_strides_are_followed": "D4_NULL_strides_are_compact_row_major",
    "imported_strides_are_made_positive": "D5_negative_strides[",
    "strides_are_ignored": "D5_strides_lead_to_the_elements",
    "stride_of_extent_1_is_judged": "D5_the_stride_of_an_extent_of_1_has_no_meaning",
    "NULL_shape_of_a_scalar_is_refused": "D3_a_scalar_is_taken",
    "NULL_data_is_refused": "K4_the_deleter_of_an_empty_tensor_is_called",
    "data_of_an_empty_tensor_is_read": "D3_data_of_a_tensor_without_elements_is_not_read",
    "shape_is_read_after_the_deleter": "K4_the_deleter_is_called_once_when_the_array_is_gone",
    "lanes_are_ignored": "D6_a_dtype_that_the_library_lacks_is_not_taken_for_another[two lanes",
    "bits_are_ignored": "D6_a_dtype_that_the_library_lacks_is_not_taken_for_another[bool of 1 bit",
    "unknown_codes_are_taken_for_uint": "D6_a_dtype_that_the_library_lacks_is_not_taken_for_another[unknown code",
    "signs_are_ignored": "D6_each_dtype_is_read[uint",
    "imported_extents_have_32_bits": "D8_an_extent_beyond_32_bits_is_read_whole",
    "sizes_may_overflow": "D8_a_tensor_that_cannot_be[more",
    "negative_extents_are_taken": "D8_a_tensor_that_cannot_be[a negative extent",
    "devices_are_ignored": "C5_memory_of_a_GPU_is_not_read_as_memory_of_the_CPU",
    "read_only_flag_is_lost": "C7_read_only_data_stays_read_only",
    "all_imports_are_read_only": "C7_writable_data_stays_writable",
    "read_only_flag_is_lost_on_export": "C7_read_only_data_is_exported_as_read_only",
    "unknown_flags_are_refused": "C8_other_flags_do_not_change_the_values",
    "export_forgets_byte_offset": "D9_an_imported_tensor_is_exported_as_it_came[byte_offset",
    "import_leaks": "K4_an_import_leaves_no_memory_behind",
    "no_method_is_a_TypeError": "C6_an_object_without_the_protocol_is_an_AttributeError",
    "result_is_not_checked": "C6_a_result_that_is_no_capsule_is_refused",
    "NULL_without_an_exception": "C6_a_result_that_is_no_capsule_is_refused",
    "refusal_loses_its_exception": "K2_a_destructor_that_runs_Python_code_leaves_the_error",
    "copied_tensor_is_not_deleted": "K4_the_tensor_behind_a_copy_is_deleted",
    "rename_race": "G1_one_of_eight_threads_gets_a_capsule",
    "table_is_an_int": "X1_the_table_is_a_capsule_on_the_type",
    "table_has_another_name": "X1_the_table_is_a_capsule_on_the_type",
    "table_says_1_0": "X1_the_table_has_version_1_3_or_newer",
    "table_lacks_a_function": "X3_the_table_has_all_functions_but_one",
    "owned_tensor_begins_at_its_base": "X3_an_owned_tensor_has_the_values_of_the_array",
    "borrowed_tensor_begins_at_its_base": "X3_a_borrowed_tensor_has_the_values_of_the_array[slice]",
    "table_has_NULL_strides": "X3_tensors_of_a_table_have_strides",
    "table_loses_read_only": "P3_an_owned_tensor_of_read_only_data_is_flagged",
    "table_exports_what_the_method_refuses": "P7_what_the_method_refuses",
    "stream_is_left_unset": "X4_the_stream_of_the_CPU_is_set",
    "table_failure_sets_no_exception": "X7_an_object_of_another_type",
    "to_object_never_deletes": "X6_an_object_of_a_managed_tensor",
    "to_object_ignores_byte_offset": "X6_an_object_of_a_tensor_with_byte_offset",
    "allocator_does_not_report": "X5_the_allocator_reports_a_failure_through_SetError",
    "allocator_reports_twice": "X5_the_allocator_reports_a_failure_through_SetError",
    "allocator_ignores_the_shape": "X5_the_allocator_gives_what_the_prototype_says",
    "instance_table_is_used": "X1_a_table_of_an_instance_is_not_used",
    "table_version_is_not_checked": "X2_a_table_of_another_major_version_is_not_used",
    "NULL_functions_are_called": "X3_a_table_that_lacks_functions",
    "failure_of_a_table_is_ignored": "X8_a_function_that_fails",
    "table_name_is_not_checked": "X1_an_attribute_that_is_no_table_is_not_read",
    "prev_api_is_refused": "X2_an_older_table_behind_a_newer_one",
    "table_tensor_is_deleted_twice": "X2_a_type_with_a_table",
    "override_is_ignored": "X2_a_subclass_that_overrides_the_method",
}


def pytest_addoption(parser):
    parser.addoption("--mistakes", help="the file that the results of the mistakes are appended to")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session):
    path = session.config.getoption("--mistakes")
    if path is None:
        return None
    import wrongarray

    for mistake, meant in MEANT.items():
        child = os.fork()
        if child == 0:
            signal.alarm(30)
            os.environ["WRONGARRAY_MISTAKE"] = mistake
            wrongarray.mistake(mistake)
            recorder = Failures()
            session.config.pluginmanager.register(recorder)
            for item in session.items:
                if item.name.startswith("test_" + meant) and not recorder.failed:
                    item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
            write(path, mistake, recorder.failed, recorder.ran)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if status != 0:  # a crash is a failure of the test that ran
            write(
                path,
                mistake,
                f"ended by signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"status {status}",
                1,
            )
    return True


class Failures:
    failed, ran = None, 0

    def pytest_runtest_logreport(self, report):
        self.ran += report.when == "call"
        if report.failed:
            self.failed = f"{report.nodeid}: {str(report.longrepr).splitlines()[-1]}"


def write(path, mistake, failed, ran):
    with open(path, "a") as file:
        file.write(json.dumps({"mistake": mistake, "failed": failed, "ran": ran}) + "\n")
