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
    "to_object_ignores_byte_offset": "D1_every_way_in_adds_byte_offset[16-to_object",
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
    # Of public reports about libraries.
    "copy_of_a_view_is_shared": "P4_a_copy_of_a_view_has_the_values_of_the_view",
    "copy_of_a_view_is_not_flagged": "P4_a_copy_is_flagged_as_a_copy",
    "name_is_compared_by_address": "K1_a_capsule_that_is_given_back",
    "destructor_leaves_an_exception": "K2_an_exception_survives_a_capsule_that_dies[unused",
    "destructor_replaces_the_exception": "K2_an_exception_survives_a_capsule_that_dies[argument",
    "lent_tensors_share_their_shape": "X3_two_arrays_are_lent_at_once",
    "float16_is_exported_as_bfloat16": "D6_each_dtype_on_every_way_out[float16",
    "float16_is_imported_as_bfloat16": "D9_every_way_in_reads_each_dtype[float16",
    "from_dlpack_has_no_device": "C3_the_keywords_of_from_dlpack_may_be_None",
    "copy_False_falls_back_to_a_copy": "C3_copy_False_is_not_replaced_by_a_copy",
    "source_is_leaked": "K4_no_reference_is_left_behind",
    "capsule_is_leaked": "K4_no_reference_is_left_behind",
    "capsule_is_renamed_otherwise": "K4_the_capsule_is_renamed",
    "error_of_the_device_leaks": "C1_an_error_of_dlpack_device_leaves_nothing_behind",
    "same_memory_is_taken_once": "K4_two_tensors_with_the_same_memory",
    "first_part_leaks": "K4_several_tensors_of_which_one_is_refused",
    "first_part_is_deleted_twice": "K4_several_tensors_of_which_one_is_refused",
    "exported_strides_have_32_bits": "D8_a_stride_beyond_32_bits_is_exported_whole",
}

# ---- Mistakes of one field on one way: "path.field" of wrongarray ----

# For each path of exports, how and source of the tests in test_paths.py that go there.
EXPORTS = {
    "legacy": "legacy-itself",
    "versioned": "versioned-itself",
    "legacy_copy": "legacy copy-itself",
    "versioned_copy": "versioned copy-itself",
    "legacy_view": "legacy-slice",
    "versioned_view": "versioned-slice",
    "legacy_copy_of_view": "legacy copy-slice",
    "versioned_copy_of_view": "versioned copy-slice",
    "read_only": "versioned-read-only",
    "read_only_view": "versioned-read-only slice",
    "legacy_of_import": "legacy-imported",
    "versioned_of_import": "versioned-imported",
    "owned": "owned-itself",
    "owned_view": "owned-slice",
    "owned_read_only": "owned-read-only",
    "owned_of_import": "owned-imported",
    "lent": "lent-itself",
    "lent_view": "lent-slice",
}
EXPORT_FIELDS = {
    "data": "D1_every_export_has_the_values_of_the_array[{}]",
    "byte_offset": "D1_every_export_has_the_values_of_the_array[{}]",
    "offset_twice": "D1_every_export_has_the_values_of_the_array[{}]",
    "ndim": "D3_every_export_has_the_shape_of_the_array[{}]",
    "shape": "D3_every_export_has_the_shape_of_the_array[{}]",
    "strides": "D1_every_export_has_the_values_of_the_array[{}]",
    "no_strides": "D4_every_export_of_1_2_or_newer_has_strides[{}]",
    "code": "D6_every_export_has_the_dtype_of_the_array[{}]",
    "bits": "D6_every_export_has_the_dtype_of_the_array[{}]",
    "lanes": "D6_every_export_has_the_dtype_of_the_array[{}]",
    "device_type": "P8_every_export_has_the_device_of_the_array[{}]",
    "device_id": "P8_every_export_has_the_device_of_the_array[{}]",
    "read_only_flag": "P3_no_export_of_writable_data_is_flagged[{}]",
    "copied_flag": "P4_no_export_of_shared_memory_is_flagged_as_a_copy[{}]",
    "unknown_flag": "P3_no_export_has_an_unknown_flag[{}]",
    "major": "P2_every_export_has_a_version_of_DLPack[{}]",
    "minor": "P2_every_export_has_a_version_of_DLPack[{}]",
    "no_deleter": "K1_no_export_leaves_memory_behind[{}]",
    "leaked_owner": "K1_no_export_leaves_memory_behind[{}]",
    "leaked_struct": "K1_no_export_leaves_memory_behind[{}]",
    "owner_not_kept": "P9_every_export_keeps_the_memory_until_its_deleter[{}]",
    "deleter_with_the_GIL": "K5_the_deleter_of_every_export_works_without_the_GIL[{}]",
}
ALLOCATED = {
    **dict.fromkeys(
        [
            "ndim",
            "shape",
            "strides",
            "no_strides",
            "code",
            "bits",
            "lanes",
            "device_type",
            "device_id",
            "major",
            "minor",
        ],
        "X5_every_field_of_an_allocated_tensor",
    ),
    "read_only_flag": "X5_an_allocated_tensor_has_no_flags",
    "copied_flag": "X5_an_allocated_tensor_is_no_copy",
    "unknown_flag": "X5_an_allocated_tensor_has_no_flags",
    **dict.fromkeys(["no_deleter", "leaked_owner", "leaked_struct"], "K1_an_allocated_tensor_leaves_no_memory_behind"),
    "deleter_with_the_GIL": "K5_the_deleter_of_an_allocated_tensor_works_without_the_GIL",
}
IMPORTS = {
    "from_versioned": "versioned",
    "from_legacy": "legacy",
    "from_versioned_capsule": "versioned capsule",
    "from_legacy_capsule": "legacy capsule",
    "by_copy": "copy",
    "by_table": "table",
    "to_object": "to_object",
}
# Objects, which test_consumer.py tests.
OF_OBJECTS = {
    "late_data": "K4_the_deleter_is_called_once_when_the_array_is_gone[{}]",
    "no_offset": "D1_byte_offset_is_added[16-{}]",
    "double_offset": "D1_byte_offset_is_added[256-{}]",
    "short_shape": "K4_the_deleter_is_called_once_when_the_array_is_gone[{}]",
    "no_strides_read": "D5_strides_lead_to_the_elements[columns-{}]",
    "positive_strides": "D5_negative_strides[vector-{}]",
    "other_code": "D6_each_dtype_is_read[int32-{}]",
    "no_lanes": "D6_a_dtype_that_the_library_lacks_is_not_taken_for_another[two lanes-{}]",
    "no_device": "C5_memory_of_a_GPU_is_not_read_as_memory_of_the_CPU[CUDA-told-{}]",
    "lost_read_only": "C7_read_only_data_stays_read_only",
    "other_major": "K6_another_major_version_is_refused_and_deleted_unread",
    "never_deleted": "K4_the_deleter_is_called_once_when_the_array_is_gone[{}]",
    "deleted_twice": "K4_the_deleter_is_called_once_when_the_array_is_gone[{}]",
    "deleted_at_once": "K4_the_memory_is_used_until_the_array_is_gone[{}]",
    "NULL_called": "K3_a_NULL_deleter_is_not_called[{}]",
    "refused_leaks": "K4_a_tensor_that_is_refused_is_deleted_once[unknown code-{}]",
}
IMPORT_FIELDS = {
    "late_data": "D9_every_way_in_reads_each_dtype[float32-{}]",
    "no_offset": "D1_every_way_in_adds_byte_offset[16-{}]",
    "double_offset": "D1_every_way_in_adds_byte_offset[256-{}]",
    "short_offset": "D1_every_way_in_adds_a_byte_offset_beyond_32_bits[{}]",
    "short_shape": "D9_every_way_in_reads_each_dtype[float32-{}]",
    "no_strides_read": "D5_every_way_in_follows_strides[columns-{}]",
    "short_strides": "D8_every_way_in_follows_a_stride_beyond_32_bits[{}]",
    "positive_strides": "D5_every_way_in_follows_strides[backwards-{}]",
    "other_code": "D9_every_way_in_reads_each_dtype[int32-{}]",
    "no_lanes": "D6_every_way_in_refuses_lanes_or_keeps_them[{}]",
    "no_device": "C5_every_way_in_refuses_memory_of_a_GPU[CUDA-{}]",
    "lost_read_only": "C7_every_way_in_keeps_read_only_data_read_only[{}]",
    "other_major": "K6_every_way_in_refuses_another_major_version[{}]",
    "never_deleted": "K4_every_way_in_deletes_the_tensor_once[{}]",
    "deleted_twice": "K4_every_way_in_deletes_the_tensor_once[{}]",
    "deleted_at_once": "K4_every_way_in_deletes_the_tensor_once[{}]",
    "NULL_called": "K3_no_way_in_calls_a_NULL_deleter[{}]",
    "refused_leaks": "K4_every_way_in_deletes_what_it_refuses_once[{}]",
}


def is_a_mistake(path, field):
    """Whether a tensor of this way has the field, and a wrong value makes a difference."""
    is_legacy = path.startswith("legacy")
    if path.startswith("lent") or is_legacy:
        if field in ("read_only_flag", "copied_flag", "unknown_flag", "major", "minor"):
            return False
    if path.startswith("lent"):
        return field not in ("no_deleter", "leaked_owner", "leaked_struct", "owner_not_kept", "deleter_with_the_GIL")
    if is_legacy and field == "no_strides":  # what is compact may have NULL strides there
        return path == "legacy_view"
    if path == "to_object" and field == "refused_leaks":
        return False  # X6_a_tensor_that_is_refused
    if field in ("lost_read_only", "other_major"):
        return path not in ("from_legacy", "from_legacy_capsule", "by_copy")
    return True


def grid():
    for path, test in EXPORTS.items():
        for field, meant in EXPORT_FIELDS.items():
            tests = test
            if field == "copied_flag" and "copy" in path:
                meant = f"P4_a_copy_is_flagged_as_a_copy[{tests.partition('-')[2]}]"
            elif field == "read_only_flag" and "read_only" in path:
                meant = "P3_every_export_of_read_only_data_is_flagged[{}]"
            elif (path, field) == ("legacy_view", "no_strides"):
                meant, tests = "D1_every_export_has_the_values_of_the_array[{}]", "legacy-transposed"
            if is_a_mistake(path, field):
                yield f"{path}.{field}", meant.format(tests)
    for field, meant in ALLOCATED.items():
        yield f"allocated.{field}", meant
    for path, way in IMPORTS.items():
        for field, meant in IMPORT_FIELDS.items():
            if way in ("versioned", "legacy"):
                meant = OF_OBJECTS.get(field, meant)
            if is_a_mistake(path, field):
                yield f"{path}.{field}", meant.format(way)


# The mistakes with names of their own, and of the grid all with DLPACK_PY_MISTAKES=all, else each seventh.
MEANT.update(list(grid())[:: 1 if os.environ.get("DLPACK_PY_MISTAKES") == "all" else 7])


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
