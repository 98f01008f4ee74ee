"""Breaks the device headers on purpose, one mutant after the other: each mutant must make a test of tests/streams fail.

    mutants.py FOLDER [NUMBER ...]     works in a copy of the project in FOLDER; all mutants, or some

A mutant is a file, and texts that the file contains once, each with its replacement. A mutant that does not compile is
an error. The copy is built for the Python that runs this program.
"""

import os
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "build"))
import machine  # noqa: E402

DEVICE, CUDA, ROCM, PY = "dlpack_device.h", "dlpack_cuda.h", "dlpack_rocm.h", "dlpack_py.h"
INTERFACE, LIBRARY = "dlpack_cuda_array_interface.h", "dlpack_device_library.h"
MUTANTS = [  # the error, the file, and pairs: a text, its replacement
    (
        "an order is made with the GIL held",
        DEVICE,
        "        return 0;\n    Py_BEGIN_ALLOW_THREADS\n    failed = on_host",
        "        return 0;\n    {\n    failed = on_host",
        "    Py_END_ALLOW_THREADS\n    return failed ? dlpack_py_raise(&error) : 0;\n}",
        "    }\n    return failed ? dlpack_py_raise(&error) : 0;\n}",
    ),
    (
        "a copy to the host is made with the GIL held",
        DEVICE,
        "    Py_BEGIN_ALLOW_THREADS\n    if (!dlpack_py_is_cpu_readable(from->device))",
        "    {\n    if (!dlpack_py_is_cpu_readable(from->device))",
        "        dlp_copy_unchecked(to, from, padded);\n    Py_END_ALLOW_THREADS\n",
        "        dlp_copy_unchecked(to, from, padded);\n    }\n",
    ),
    (
        "a release calls the runtime with the GIL held",
        DEVICE,
        "return dlp_thread_state() != NULL && !dlp_is_finalizing() ? PyEval_SaveThread() : NULL;",
        "return NULL;",
    ),
    (
        "the per-thread streams of two threads are one stream",
        DEVICE,
        "dlp_device_is_same_stream(before, after) && before.handle != DLPACK_DEVICE_PER_THREAD_STREAM;",
        "dlp_device_is_same_stream(before, after);",
    ),
    (
        "an event is not destroyed",
        DEVICE,
        "    (void)DLPACK_DEVICE_CALL(EventDestroy, (event), NULL); /* allowed while it is pending */\n",
        "",
    ),
    (
        "a relative handle of the consumer is of the wrong device",
        DEVICE,
        "             dlp_device_guard_stream(guard, after, error) < 0 ||\n",
        "",
    ),
    (
        "the event is made on the current device",
        DEVICE,
        "    if (dlp_device_guard_set(guard, before.device_id, error) < 0 ||\n",
        "    if (",
    ),
    (
        "a guard restores the last device and not the caller's",
        DEVICE,
        "DLPACK_DEVICE_CALL(SetDevice, (guard->original), result",
        "DLPACK_DEVICE_CALL(SetDevice, (guard->current), result",
    ),
    (
        "two devices have the same default stream",
        DEVICE,
        "return a.handle == b.handle && (a.handle > DLPACK_DEVICE_PER_THREAD_STREAM || a.device_id == b.device_id);",
        "return a.handle == b.handle;",
    ),
    (
        "a consumer in a capture does not look at work outside of it",
        DEVICE,
        "if (captures[i] != joined && dlp_device_check_done(guard, before[i], error) < 0)",
        "if (0)",
    ),
    (
        "two captures are ordered",
        DEVICE,
        "if (captures[kept] != 0 && joined != 0 && captures[kept] != joined)",
        "if (0)",
    ),
    (
        "the default stream waits for a capture",
        DEVICE,
        "if (captures[kept] != 0 && after.handle == DLPACK_DEVICE_API_DEFAULT_STREAM)",
        "if (0)",
    ),
    (
        "work of another thread's per-thread stream is not ordered",
        DEVICE,
        "    stream->handle = DLPACK_DEVICE_API_DEFAULT_STREAM;\n    return dlp_device_find_capture",
        "    return dlp_device_find_capture",
    ),
    (
        "a query is not relaxed",
        DEVICE,
        "    *mode = DLPACK_DEVICE_API(StreamCaptureModeRelaxed);\n",
        "    *mode = DLPACK_DEVICE_API(StreamCaptureModeGlobal);\n",
    ),
    (
        "the host does not wait for a copy that failed",
        DEVICE,
        "is_unfinished = DLPACK_DEVICE_CALL(StreamSynchronize",
        "is_unfinished = failed ? 0 : DLPACK_DEVICE_CALL(StreamSynchronize",
    ),
    (
        "the host does not wait for a copy",
        DEVICE,
        "is_unfinished = DLPACK_DEVICE_CALL(StreamSynchronize, (handle), failed ? NULL : error);",
        "is_unfinished = 0;",
    ),
    (
        "memory that may still be written to is freed",
        PY,
        "        if (failed == -1)\n            dlp_delete",
        "            dlp_delete",
    ),
    (
        "a second stream is not waited for",
        DEVICE,
        "    if (count > 1 && dlpack_device_synchronize(before + 1, count - 1, error) < 0)\n",
        "    if (0)\n",
    ),
    (
        "stream=-1 is ordered",
        DEVICE,
        "(request->stream.kind == DLPACK_PY_STREAM_NO_SYNC && !for_cpu) ||",
        "",
    ),
    (
        "None asks for nothing",
        DEVICE,
        "         (offer->options & DLPACK_PY_OFFER_NONE_IS_NO_SYNC) != 0))\n        return 0;",
        "         1))\n        return 0;",
    ),
    (
        "pinned memory has the device of its number",
        DEVICE,
        "    if (dlp_operates_on(offer->operations, device)) /* pinned",
        "    /* pinned",
    ),
    (
        "a stream is passed for memory of the host",
        DEVICE,
        "    if (!is_on && !is_managed)\n        memset(&request->stream, 0, sizeof(request->stream));\n",
        "",
    ),
    (
        "the device of managed memory is not made current",
        DEVICE,
        "is_managed = DLPACK_DEVICE_API_MANAGED_TYPE ? ",
        "is_managed = 0 ? ",
    ),
    (
        "a producer that refuses stream 2 is not asked again",
        DEVICE,
        "    if (returned == NULL && request->stream.kind == DLPACK_PY_STREAM_HANDLE &&\n",
        "    if (0 &&\n",
    ),
    (
        "the producer's device stays current",
        DEVICE,
        "    if (guard.current != guard.original) {\n",
        "    if (0) {\n",
    ),
    (
        "a table's stream is not ordered",
        DEVICE,
        "return dlp_device_is_same_stream(work, stream) ? 0 : dlp_device_order_view(work, stream, v);",
        "return 0;",
    ),
    (
        "a tensor is released in any interpreter",
        DEVICE,
        "is_here = first->interpreter == -1 || first->interpreter == here;",
        "is_here = 1;",
    ),
    (
        "a release is behind the work of the thread that releases alone",
        DEVICE,
        "int failed = dlp_device_find_pending(&guard, &waiting->stream, &capture, error);",
        "int failed = dlp_device_find_capture(&guard, waiting->stream, &capture, error);",
    ),
    (
        "a tensor is released before its event",
        DEVICE,
        "if (failed || !is_here || !dlp_device_event_is_done(first->event)) {",
        "if (failed || !is_here) {",
    ),
    (
        "a release does not look whether the work is done",
        DEVICE,
        "    dlp_device_list_add(waiting, waiting);\n    (void)dlpack_device_collect();\n    return 0;",
        "    dlp_device_list_add(waiting, waiting);\n    return 0;",
    ),
    (
        "tensors of two streams form one chain",
        DEVICE,
        "!dlp_device_is_same_stream((*place)->stream, all->stream)))",
        "0))",
    ),
    (
        "each waiting tensor is asked for",
        DEVICE,
        "        while (*place != NULL &&",
        "        while (*place != NULL)\n            place = &(*place)->next;\n        while (*place != NULL &&",
    ),
    (
        "a newer tensor stands before an older one",
        DEVICE,
        "            all->last->behind = newer;\n            all->last = newer->last;\n",
        "            newer->last->behind = all;\n            newer->last = all->last;\n"
        "            newer->next = all->next;\n            newer = all, all = *place;\n",
    ),
    (
        "deleters run in the mode of the thread",
        DEVICE,
        "    for (; done != NULL; done = next) {\n",
        "    if (!failed)\n        (void)dlp_device_exchange_mode(&mode);\n    for (; done != NULL; done = next) {\n",
        "        DLPACK_PY_FREE(done);\n    }\n    if (!failed)\n        (void)dlp_device_exchange_mode(&mode);\n",
        "        DLPACK_PY_FREE(done);\n    }\n",
    ),
    (
        "a deleter that runs at once may spoil a capture",
        DEVICE,
        "    const int failed = dlp_device_exchange_mode(&mode);\n    dlpack_py_release(v);\n",
        "    const int failed = 1;\n    dlpack_py_release(v);\n    (void)mode;\n",
    ),
    (
        "a view is released in a capture",
        DEVICE,
        "    if (!failed && capture != 0)\n        failed = DLP_REFUSE",
        "    if (0)\n        failed = DLP_REFUSE",
    ),
    (
        "a view that cannot wait is released at once",
        DEVICE,
        "        failed = dlpack_device_synchronize(&stream, 1, &wait_error);\n",
        "        failed = 0;\n        wait_error.code = 0;\n",
    ),
    (
        "later calls release nothing",
        DEVICE,
        "    (void)dlpack_device_collect();\n    if ((device_want",
        "    if ((device_want",
    ),
    (
        "a copy is made on the device as if it were the CPU",
        PY,
        "    if (plan->makes_copy && plan->device.device_type != kDLCPU) /* P8 */",
        "    if (0)",
    ),
    (
        "pinned memory that comes as CPU memory is refused",
        DEVICE,
        "            : actual.device_type == kDLCPU && dlpack_py_is_cpu_readable(announced))",
        "            : 0)",
    ),
    (
        "an error is left behind",
        DEVICE,
        "    (void)DLP_DEVICE_STATUS(GetLastError, ());\n    if (status == ",
        "    if (status == ",
    ),
    (
        "a tensor waits for ever where the context is lost",
        DEVICE,
        "    return !dlp_device_is_capture_error(status) && status != ",
        "    return 0 && status != ",
    ),
    (
        "a query that a capture forbids counts as done",
        DEVICE,
        "    return !dlp_device_is_capture_error(status) && status != ",
        "    return 1 || status != ",
    ),
    (
        "the runtime that another library has loaded later is not found",
        LIBRARY,
        "    if (address == 0 && (library = dlp_device_library",
        "    static int looked;\n    if (address == 0 && !looked++ && (library = dlp_device_library",
    ),
    (
        "a tensor of an array interface that is refused is ordered",
        INTERFACE,
        "    request.stream.kind = DLPACK_PY_STREAM_NO_SYNC; /* a tensor",
        "    (void)0; /* a tensor",
    ),
    (
        "a tensor of an array interface is not ordered",
        INTERFACE,
        "    return dlp_device_order_view(pending, after, v);",
        "    return 0;",
    ),
    (
        "a file for per-thread default streams names the legacy one",
        CUDA,
        "    return 2;\n#else",
        "    return 1;\n#else",
    ),
    (
        "hipStreamLegacy crosses the protocol as 1",
        ROCM,
        "    return (uintptr_t)stream == 1 ? 0 : (uintptr_t)stream;",
        "    return (uintptr_t)stream;",
    ),
    (
        "NULL in a file for HIP's per-thread default streams is the default stream",
        ROCM,
        "    if (stream == NULL)\n        return 2;",
        "    if (stream == NULL)\n        return 0;",
    ),
    (
        "the default stream in a file for HIP's per-thread default streams is the thread's",
        DEVICE,
        "    if (stream == 0)\n        return hipStreamLegacy;",
        "",
    ),
    (
        "a driver that is too old is an error of memory of the host",
        CUDA,
        "status == cudaErrorInsufficientDriver ||",
        "",
    ),
    (
        "pinned memory of HIP is device memory",
        ROCM,
        "        *device = dlp_make_device(11, 0);",
        "        *device = dlp_make_device(10, attributes.device);",
    ),
    (
        "padded elements are copied as packed ones",
        DEVICE,
        "const uint64_t padded = offer->flags & DLPACK_PY_FLAG_IS_SUBBYTE_TYPE_PADDED;",
        "const uint64_t padded = 0;",
    ),
    (
        "the bits behind packed elements are copied",
        DEVICE,
        "        ((unsigned char *)to)[bytes - 1] &= ",
        "        (void)",
    ),
    (
        "an array interface is ordered on the current device",
        INTERFACE,
        "pending.device_id = dlp_operates_on(offer.operations, t.device) ? t.device.device_id :",
        "pending.device_id = 0 ? t.device.device_id :",
    ),
    (
        "a default stream is that of the current device",
        DEVICE,
        "    if (dlp_device_guard_stream(guard, stream, error) < 0 ||\n        DLPACK_DEVICE_CALL(StreamIsCapturing",
        "    if (DLPACK_DEVICE_CALL(StreamIsCapturing",
    ),
    (
        "the pending streams are read without the GIL for a wait",
        DEVICE,
        "on_host ? dlpack_device_synchronize(pending, count, &error)",
        "on_host ? dlpack_device_synchronize(offer->pending, offer->pending_count, &error)",
    ),
    (
        "the pending streams are read without the GIL for a copy",
        DEVICE,
        "dlpack_device_copy_to_host(to, from, padded, pending, count, &error);",
        "dlpack_device_copy_to_host(to, from, padded, offer->pending, offer->pending_count, &error);",
    ),
    (
        "nine streams are ordered",
        DEVICE,
        "    if (count > DLPACK_PY_MAX_PENDING)\n",
        "    if (count > DLPACK_PY_MAX_PENDING + 1)\n",
    ),
    (
        "strides that the view allocated are leaked",
        DEVICE,
        "    dlpack_py_release(&taken); /* the strides",
        "    (void)0; /* the strides",
    ),
    (
        "device 0 is made current for managed memory without an id",
        DEVICE,
        "if (is_on || (is_managed && announced.device_id != 0)) {",
        "if (is_on || is_managed) {",
    ),
    (
        "the device of managed memory with an id stays",
        DEVICE,
        "if (is_on || (is_managed && announced.device_id != 0)) {",
        "if (is_on) {",
    ),
    (
        "a runtime of another major version is used",
        LIBRARY,
        "version / 10000000 != HIP_VERSION_MAJOR)",
        "0)",
    ),
    (
        "a producer that has answered is asked again",
        DEVICE,
        "    if (returned == NULL && request->stream.kind",
        "    if (request->stream.kind",
        "PER_THREAD_STREAM && PyErr_ExceptionMatches(PyExc_BufferError) &&",
        "PER_THREAD_STREAM && (returned != NULL || PyErr_ExceptionMatches(PyExc_BufferError)) &&",
    ),
    (
        "a producer is asked again whatever it raises",
        DEVICE,
        "PER_THREAD_STREAM && PyErr_ExceptionMatches(PyExc_BufferError) &&",
        "PER_THREAD_STREAM &&",
    ),
    (
        "a producer is asked again in a capture",
        DEVICE,
        "        !dlp_device_is_in_capture()) {",
        "        1) {",
    ),
    (
        "without requirements memory has to be aligned",
        DEVICE,
        "    if (want == NULL)\n        device_want.alignment = 1;\n",
        "",
    ),
    (
        "stream 0 in an array interface is taken",
        INTERFACE,
        "if (stream->kind != DLPACK_PY_STREAM_HANDLE || stream->handle == 0)",
        "if (stream->kind != DLPACK_PY_STREAM_HANDLE)",
    ),
    (
        "stream 0 is given in an array interface",
        INTERFACE,
        "PyLong_FromUnsignedLongLong(stream == 0 ? 1 : stream);",
        "PyLong_FromUnsignedLongLong(stream);",
    ),
    (
        "stream 1 of an array interface is no default stream",
        INTERFACE,
        "stream.handle == 1 ? DLPACK_DEVICE_API_DEFAULT_STREAM : stream.handle;",
        "stream.handle == 1 ? 3 : stream.handle;",
    ),
    (
        "the runtime is asked for the device of an array interface with the GIL held",
        INTERFACE,
        "    Py_BEGIN_ALLOW_THREADS\n",
        "    {\n",
        "    Py_END_ALLOW_THREADS\n",
        "    }\n",
    ),
    (
        "an array interface names a stream where nothing is pending",
        INTERFACE,
        "stream == UINTPTR_MAX ? ",
        "0 ? ",
    ),
    (
        "the id of a device is not compared with that of __dlpack_device__",
        DEVICE,
        "? announced.device_id == actual.device_id || dlpack_py_is_cpu_readable(actual)",
        "? 1 || dlpack_py_is_cpu_readable(actual)",
    ),
    (
        "an order is asked for where nothing is pending",
        DEVICE,
        "        if ((device_want.options & DLPACK_PY_WANT_NOTHING_PENDING) != 0)\n",
        "        if (0)\n",
    ),
    (
        "an error of a capture is a RuntimeError",
        DEVICE,
        "return (int)status >= 900 && (int)status <= 908;",
        "return 0 && (int)status <= 908;",
    ),
    (
        "an error of memory is a RuntimeError",
        DEVICE,
        "    if (status == DLPACK_DEVICE_API(ErrorMemoryAllocation))\n",
        "    if (0)\n",
    ),
    (
        "tensors of other interpreters are counted",
        DEVICE,
        "            count += is_here ? first->count : 0;",
        "            count += first->count;",
    ),
    (
        "a chain counts as one tensor",
        DEVICE,
        "            count += is_here ? first->count : 0;",
        "            count += is_here ? 1 : 0;",
    ),
    (
        "a view that cannot be ordered is leaked",
        DEVICE,
        "    dlp_device_release_now(v);\n    return dlpack_py_raise(&error);",
        "    return dlpack_py_raise(&error);",
    ),
    (
        "managed memory is device memory",
        CUDA,
        "        *device = dlp_make_device(13, 0);",
        "        *device = dlp_make_device(2, attributes.device);",
    ),
    (
        "a stub in place of the driver is an error of memory of the host",
        CUDA,
        "(int)status == 34 /*",
        "(int)status == 33 /*",
    ),
    (
        "a name with a NUL is cut there",
        DEVICE,
        "text == NULL || strlen(text) != (size_t)length ||",
        "text == NULL || length < 0 ||",
    ),
    (
        "a copy with stream=-1 is not waited for",
        DEVICE,
        "(request->stream.kind == DLPACK_PY_STREAM_NO_SYNC && !for_cpu) ||",
        "(request->stream.kind == DLPACK_PY_STREAM_NO_SYNC && (1 || for_cpu)) ||",
    ),
    (
        "pinned memory is released on a stream of device 0",
        DEVICE,
        "    if (stream.device_id == 0 && !dlp_operates_on(dlpack_device_operations(), v->tensor.device))",
        "    if (0)",
    ),
    (
        "an event that was not recorded is leaked",
        DEVICE,
        "        if (failed)\n            (void)DLPACK_DEVICE_CALL(EventDestroy, (waiting->event), NULL);\n",
        "",
    ),
    (
        "an exception of current_work_stream is not looked at",
        DEVICE,
        "return returned == 0 && !PyErr_Occurred() ? 0",
        "return returned == 0 ? 0",
    ),
    (
        "a table's tensor is ordered where nothing is pending",
        DEVICE,
        " ||\n        request->stream.kind == DLPACK_PY_STREAM_NO_SYNC)\n        return result;",
        ")\n        return result;",
    ),
    (
        "a table without a stream is asked for it",
        DEVICE,
        "    if (entry->table != NULL &&\n        (!entry->is_ours ||",
        "    if (entry->table != NULL &&\n        (1 || !entry->is_ours ||",
    ),
    (
        "memory without elements is copied",
        DEVICE,
        "    if (dlp_is_empty(src))\n        return 0;\n    if (count > 1",
        "    if (count > 1",
    ),
    (
        "None as the id of the CPU is an error",
        DEVICE,
        "DLP_TUPLE_ITEM(returned, 1) == Py_None) {",
        "0) {",
    ),
    (
        "the exception in flight is lost by a release",
        DEVICE,
        "        PyErr_WriteUnraisable(NULL);\n    v->managed",
        "        PyErr_Clear();\n    v->managed",
    ),
    (
        "work outside of a capture counts as done",
        DEVICE,
        "    return done ? 0\n",
        "    return 1 ? 0\n",
    ),
    (
        "a capturing consumer waits for finished work outside of its capture",
        DEVICE,
        "if (captures[i] == joined && dlp_device_order_by_event(",
        "if (dlp_device_order_by_event(",
    ),
    (
        "a spoiled capture counts as one",
        DEVICE,
        "    if (status == DLPACK_DEVICE_API(StreamCaptureStatusInvalidated))\n",
        "    if (0)\n",
    ),
    (
        "a default stream of the current device is none of a device by its id",
        DEVICE,
        "    if (after.device_id == DLPACK_PY_CURRENT_DEVICE && after.handle <=",
        "    if (0 && after.handle <=",
    ),
    (
        "the offset of a tensor is counted twice in a copy",
        DEVICE,
        "        staged.byte_offset = 0;\n",
        "",
    ),
    (
        "a copy begins at the lowest element",
        DEVICE,
        "        staged.data = staging - lowest;\n",
        "        staged.data = staging;\n",
    ),
    (
        "an operation that is NULL is called",
        PY,
        ": offer->pending_count > 0 && !offer->operations->make_ready)",
        ": 0)",
    ),
]


def run(*command, cwd, **environment):
    return subprocess.run(command, cwd=cwd, env={**os.environ, **environment}, capture_output=True, text=True)


def prepare(folder):
    """A copy of the project, configured."""
    machine.copy_project(folder)
    done = run(
        "cmake", "-S", ".", "-B", "build/mutant", "-G", "Ninja", f"-DPython_EXECUTABLE={sys.executable}", cwd=folder
    )
    assert done.returncode == 0, done.stderr


def fails(folder):
    """The test that fails in the copy, or None. A copy that does not compile shows nothing: an error."""
    built = run("cmake", "--build", "build/mutant", "--target", "streams", cwd=folder)
    if built.returncode != 0:
        raise SystemExit(f"this mutant does not compile:\n{built.stdout[-3000:]}")
    done = run("ctest", "-R", "handshake", cwd=folder / "build" / "mutant")
    if done.returncode != 0:
        return "tests/streams/handshake.c"
    modules = str(folder / "build" / "mutant" / "python")
    names = {"DLPACK_PY_BUILD_DIR": modules, "PYTHONPATH": modules}
    tests = [
        "test_a_file_for_per_thread_streams_has_names_for_both_default_streams_S3",
        "test_a_loaded_runtime_of_another_major_version_is_not_used",
        "test_the_option_for_array_interfaces_needs_their_header",
    ]
    others = [f"tests/build/test_device_headers.py::{test}" for test in tests]
    # These would fail for each mutant: they look for the texts.
    texts = [f"--ignore=tests/streams/test_{name}.py" for name in ("mutants", "gpu_suite")]
    options = ["-q", "-x", "-p", "no:cacheprovider", *texts]
    command = ["timeout", "120", sys.executable, "-m", "pytest", *options, "tests/streams", *others]
    done = run(*command, cwd=folder, **names)
    if done.returncode == 0:
        return None
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return failed[0].split(" - ")[0].split("::")[-1] if failed else f"pytest ends with {done.returncode}"


def main(folder, *numbers):
    folder = Path(folder).resolve()
    prepare(folder)
    survivors = 0
    assert fails(folder) is None, "the tests fail without a mutant"
    for number, (wrong, file, *texts) in enumerate(MUTANTS):
        if numbers and str(number) not in numbers:
            continue
        header = folder / file
        original = header.read_text()
        mutant = original
        for text, other in zip(texts[::2], texts[1::2]):
            assert mutant.count(text) == 1, f"{number}: {wrong}: the text is there {mutant.count(text)} times"
            mutant = mutant.replace(text, other)
        header.write_text(mutant)
        by = fails(folder)
        survivors += by is None
        print(f"{number:3} {'SURVIVES' if by is None else 'killed  '} {wrong}: {by}", flush=True)
        header.write_text(original)
    print(f"{survivors} of {len(numbers) or len(MUTANTS)} mutants survive")
    return survivors


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]) != 0)
