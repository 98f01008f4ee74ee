"""Runs the tests of clauses on NumPy in place of dlarray: they test DLPack, not decisions of dlarray."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from optional import numpy

TESTS = Path(__file__).parents[1]
FILES = [
    "producer/test_requests.py",
    "producer/test_exports.py",
    "producer/test_ownership.py",
    "consumer/test_from_dlpack.py",
]

# Deviations of NumPy, by the tests that fail because of them.
DEVIATIONS = {
    # __dlpack__
    "test_keywords_are_matched_by_value_in_any_order_and_number_P1": "any stream but None is refused, -1 too",
    "test_on_the_cpu_no_stream_and_no_synchronization_are_accepted_P6": "any stream but None is refused, -1 too",
    "test_on_the_cpu_any_other_integer_is_a_value_error_that_shows_it_P6": "RuntimeError for any stream",
    "test_what_is_no_integer_is_a_type_error_that_shows_it_P6": "RuntimeError for any stream",
    "test_a_repr_of_200_characters_is_shown_P6": "RuntimeError for any stream",
    "test_a_stream_whose_index_raises_is_heard_P6": "RuntimeError for any stream",
    "test_no_reference_to_an_argument_is_kept_P1": "RuntimeError for any stream",
    "test_a_major_version_below_1_gives_the_legacy_form_P2": "OverflowError beyond 64 bits",
    "test_any_other_gives_the_versioned_form_with_the_librarys_own_version_P2": "OverflowError beyond 64 bits",
    "test_another_device_is_a_buffer_error_that_names_it_P5": "OverflowError beyond 32 bits",
    "test_what_is_no_pair_of_integers_is_a_type_error_that_shows_it_P2": "the minor version is not looked at",
    "test_an_index_that_raises_is_heard_P2_P5": "the minor version is not looked at",
    "test_a_value_that_is_no_number_and_no_short_text_is_named_by_its_type_P1": "what repr() raises, or RuntimeError",
    "test_a_copy_that_is_not_none_true_or_false_is_a_type_error_that_shows_it_P4": "True is what has a true value",
    "test_a_bool_and_an_array_of_numpy_are_no_copy_arguments_P4": "True is what has a true value",
    "test_integers_of_numpy_are_integers_P2_P5_P6": "any stream but None is refused, -1 too",
    "test_every_layout_goes_out_as_it_is_D4_D5": "without elements, data is not NULL",
    "test_data_is_null_without_elements_D3": "without elements, data is not NULL",
    "test_nothing_is_copied_unless_that_was_asked_for_P4": "without elements, data is not NULL",
    "test_strides_of_extent_1_go_out_as_they_came_D5": "strides are kept in bytes, which wrap",
    "test_a_copy_is_compact_writeable_and_shares_nothing_P4": "a copy keeps its order; memory is aligned to 16 bytes",
    "test_memory_of_the_librarys_own_is_aligned_to_64_bytes_D2": "memory is aligned to 16 bytes",
    "test_a_cycle_through_an_import_is_collected_P9": "an import does not show its owner to the collector",
    # from_dlpack
    "test_a_raw_capsule_comes_in_C6": "AttributeError for a raw capsule",
    "test_an_array_of_the_librarys_own_comes_in_as_a_view_C3": "device is None or 'cpu', and no tuple",
    "test_a_copy_shares_nothing_and_holds_nothing_P4": "device is None or 'cpu', and no tuple",
    "test_an_answer_that_is_no_capsule_is_a_type_error_C6": "ValueError",
    "test_an_unknown_major_version_is_refused_and_deleted_once_K6": "the deleter runs with the exception in flight",
    "test_another_device_is_refused_and_deleted_once_C5": "the deleter runs with the exception in flight",
    "test_elements_that_the_library_cannot_read_are_refused_and_deleted_once_C8": "the same",
    "test_a_view_of_an_import_keeps_the_form_of_its_source_C7": "what came as legacy is refused to legacy consumers",
    "test_what_came_in_the_legacy_form_goes_out_in_it_again_and_flagged_in_the_other_C7": "the same",
}
CRASHES = [
    "test_what_is_malformed_is_refused_and_deleted_once_D8"
]  # NumPy reads the malformed tensor, which ends the process


@pytest.mark.skipif(numpy.lib.NumpyVersion(numpy.__version__) < "2.4.0", reason="the table is that of NumPy 2.4")
def test_numpy_behaves_as_dlarray_except_for_known_deviations():
    command = [sys.executable, "-m", "pytest", "-q", "-rf", "--tb=no", "--no-header", "-p", "no:cacheprovider"]
    command += ["-W", "ignore", "-k", "not " + " and not ".join(CRASHES), *(str(TESTS / file) for file in FILES)]
    done = subprocess.run(command, env={**os.environ, "DLPACK_PY_LIBRARY": "numpy"}, capture_output=True, text=True)
    failed = re.findall(r"^FAILED \S*?::(\w+)", done.stdout, re.MULTILINE)
    assert done.returncode == 1, done.stdout + done.stderr
    assert set(failed) == set(DEVIATIONS)
