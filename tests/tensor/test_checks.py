"""Refusals, with their errors and texts: dtypes, devices, tensors, streams and the requirements of a consumer."""

import ctypes
import itertools

import dltensor
import pytest
from tensor.library import ADDRESS_MAX, Device, DType, Stream, error_of, lib, numbers, tensor

INT64_MIN, INT64_MAX, BIG = -(2**63), 2**63 - 1, 2**62
UINT8, BOOL, INT8, INT16, INT32 = (1, 8, 1), (6, 8, 1), (0, 8, 1), (0, 16, 1), (0, 32, 1)
FLOAT32, FLOAT64, FLOAT32X4, FLOAT4 = (2, 32, 1), (2, 64, 1), (2, 32, 4), (17, 4, 1)
UNREADABLE = 64  # an address that crashes the process when it is read
NOWHERE = 4096  # an address for tensors whose data is never read
CPU, CUDA, CUDA_HOST, METAL, ROCM, ROCM_HOST, CUDA_MANAGED, ONEAPI, TPU_HOST = 1, 2, 3, 8, 10, 11, 13, 14, 20


def packed(dtype):
    code, bits, lanes = dtype
    return (code << 24) + (bits << 16) + lanes


# ---- Dtypes and devices ----

NAMES = "int uint float handle bfloat complex bool float8_e3m4 float8_e4m3 float8_e4m3b11fnuz float8_e4m3fn"
NAMES += (
    " float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu float6_e2m3fn float6_e3m2fn float4_e2m1fn bcomplex"
)
NAMES = NAMES.split()  # by code
ONLY_BITS = {6: 8, **dict.fromkeys(range(7, 15), 8), 15: 6, 16: 6, 17: 4}


def is_dtype(code, bits, lanes):
    return lanes > 0 and bits > 0 and ONLY_BITS.get(code, bits) == bits and (code not in (5, 18) or bits % 2 == 0)


def dtype_text(code, bits, lanes):
    if code >= len(NAMES) or not is_dtype(code, bits, lanes):
        return f"dtype({code}, {bits}, {lanes})"
    return NAMES[code] + ("" if code in ONLY_BITS else str(bits)) + ("" if lanes == 1 else f"x{lanes}")


@pytest.mark.parametrize("lanes", [0, 1, 2, 10, 65535])
def test_every_dtype_has_a_text_D6_D7_C8(lanes):
    room = ctypes.create_string_buffer(48)
    for code, bits in itertools.product(range(256), range(256)):
        dtype, text = packed((code, bits, lanes)), dtype_text(code, bits, lanes)
        assert lib.dtype_text(dtype, room).decode() == text
        assert lib.check_dtype(DType(code, bits, lanes), None) == (0 if is_dtype(code, bits, lanes) else -1)


DEVICES = "- cpu cuda cuda_host opencl - - vulkan metal vpi rocm rocm_host ext_dev cuda_managed"
DEVICES = [*DEVICES.split(), "oneapi", "webgpu", "hexagon", "maia", "trn", "tpu", "tpu_host", "ascend"]  # by type
HOST = ["cpu", "cuda_host", "rocm_host", "cuda_managed", "tpu_host"]  # devices whose id is always 0 (D9)


@pytest.mark.parametrize("type", range(-1, 25))
def test_every_device_has_a_text_C3_D9(type):
    room, name = ctypes.create_string_buffer(48), dict(enumerate(DEVICES)).get(type, "-")
    for number in (-(2**31), -1, 0, 1, 10, 2**31 - 1):
        text = f"device({type}, {number})" if name == "-" else f"{name}:{number}"
        shown = name if name in HOST and number == 0 else text
        assert lib.device_text(Device(type, number), room).decode() == shown


# ---- Validation ----


def refusal(dtype=FLOAT32, shape=(), strides=None, data=NOWHERE, byte_offset=0, device=CPU, ndim=None):
    error = error_of(lib.validate, tensor(dtype, shape, strides, data, byte_offset, (device, 0), ndim), 0)
    assert error is None or error[::2] == ("BufferError", False)
    return error and error[1]


NO_BITS = "at least 1 bit was wanted"


@pytest.mark.parametrize(
    ("dtype", "text"),
    [
        ((2, 32, 0), "dtype code 2 (float) has 32 bits and 0 lanes, at least 1 lane was wanted"),
        ((2, 0, 1), f"dtype code 2 (float) has 0 bits and 1 lanes, {NO_BITS}"),
        ((200, 0, 1), f"dtype code 200 (unknown) has 0 bits and 1 lanes, {NO_BITS}"),
        ((6, 1, 1), "dtype code 6 (bool) has 1 bits and 1 lanes, 8 bits was wanted"),
        ((16, 8, 1), "dtype code 16 (float6_e3m2fn) has 8 bits and 1 lanes, 6 bits was wanted"),
        ((17, 8, 1), "dtype code 17 (float4_e2m1fn) has 8 bits and 1 lanes, 4 bits was wanted"),
        ((5, 63, 1), "dtype code 5 (complex) has 63 bits and 1 lanes, an even number of bits was wanted"),
        ((18, 31, 1), "dtype code 18 (bcomplex) has 31 bits and 1 lanes, an even number of bits was wanted"),
    ],
)
def test_an_invalid_dtype_is_refused_before_anything_is_read_C8(dtype, text):
    assert refusal(dtype, UNREADABLE, UNREADABLE, UNREADABLE, ndim=2) == text


@pytest.mark.parametrize("ndim", [-(2**31), -1, 65, 2**31 - 1])
def test_a_rank_outside_of_0_to_64_is_refused_before_anything_is_read_D8(ndim):
    text = f"ndim is {ndim}, it must be from 0 to 64"
    assert refusal(FLOAT32, UNREADABLE, UNREADABLE, UNREADABLE, ndim=ndim) == text


@pytest.mark.parametrize("dtype", [FLOAT32, BOOL])
def test_a_null_shape_is_valid_for_scalars_only_D3_D8(dtype):
    assert refusal(dtype, None, UNREADABLE, UNREADABLE, ndim=1) == "shape is NULL, ndim is 1"
    assert refusal(dtype, None, UNREADABLE, UNREADABLE, ndim=64) == "shape is NULL, ndim is 64"
    for shape, strides in itertools.product([None, UNREADABLE], repeat=2):
        assert refusal(dtype, shape, strides, UNREADABLE, ndim=0) is None
        assert refusal(dtype, shape, strides, ADDRESS_MAX - 4, ndim=0) is None
        assert refusal(dtype, shape, strides, 0, ndim=0) == "data is NULL, the tensor has 1 elements"


@pytest.mark.parametrize("shape", [(2, 3, -1), (0, 3, -1), (2, 3, INT64_MIN)])
def test_a_negative_extent_is_refused_also_beside_a_0_D8(shape):
    assert refusal(shape=shape, data=UNREADABLE) == f"shape[2] is {shape[2]}, it must not be negative"


@pytest.mark.parametrize("strides", [None, (INT64_MIN, BIG, INT64_MIN)])
@pytest.mark.parametrize("shape", [(0, BIG, BIG), (BIG, 0, BIG), (BIG, BIG, 0)])
def test_a_tensor_without_elements_is_valid_with_any_data_and_strides_D3_D8(shape, strides):
    for data, byte_offset in [(0, 0), (UNREADABLE, 0), (UNREADABLE, 2**64 - 1)]:
        assert refusal(FLOAT64, shape, strides, data, byte_offset) is None


@pytest.mark.parametrize(("shape", "n"), [((), 1), ((2, 3), 6)])
def test_null_data_is_valid_without_elements_only_D8(shape, n):
    assert refusal(shape=shape, data=0) == f"data is NULL, the tensor has {n} elements"
    assert refusal(shape=shape, data=0, byte_offset=64) == f"data is NULL, the tensor has {n} elements"


def test_elements_and_bytes_beyond_int64_are_refused_D8():
    assert refusal(INT8, (1, BIG, 2, 1)) == "shape has 2^63 elements or more, at shape[2] = 2"
    assert refusal(INT8, (1, BIG, 1, INT64_MAX)) == f"shape has 2^63 elements or more, at shape[3] = {INT64_MAX}"
    for dtype, most in [(INT8, INT64_MAX), (INT16, BIG - 1), (FLOAT4, INT64_MAX), ((17, 4, 4), BIG - 1)]:
        assert refusal(dtype, (most,), (0,)) is None  # all elements at one address
        if most < INT64_MAX:
            assert refusal(dtype, (most + 1,), (0,)) == f"{most + 1} elements take 2^63 bytes or more"


@pytest.mark.parametrize(
    ("shape", "strides"),
    [
        ((2, 1), (INT64_MIN, 0)),
        ((1, 2), (INT64_MIN, INT64_MAX)),
        ((2, 1), (INT64_MAX, INT64_MIN)),
        ((3, 1), (-BIG, 0)),
        ((2, 2), (BIG - 1, BIG)),
        ((2, 2), (-BIG, -BIG)),
        ((BIG, 1), (3, 0)),
        ((2, BIG - 1), (2, -3)),
    ],
)
def test_strides_that_reach_beyond_int64_are_refused_D8(shape, strides):
    assert refusal(UINT8, shape, strides) == "strides reach 2^63 bytes or further"


def test_strides_and_offsets_that_leave_the_address_range_are_refused_D8():
    text = "strides reach from byte {} to {}, which leaves the address range"
    assert refusal(UINT8, (3,), (-2,), data=4) is None  # down to address 0
    assert refusal(UINT8, (3,), (-2,), data=3) == text.format(-4, 1)
    assert refusal(UINT8, (3,), (-2,), data=3, byte_offset=1) is None
    assert refusal(UINT8, (3,), (2,), data=ADDRESS_MAX - 6, byte_offset=1) is None
    assert refusal(UINT8, (3,), (2,), data=ADDRESS_MAX - 6, byte_offset=2) == text.format(0, 5)
    assert refusal(UINT8, (3,), data=ADDRESS_MAX - 6, byte_offset=3) is None
    assert refusal(UINT8, (3,), data=ADDRESS_MAX - 6, byte_offset=4) == text.format(0, 3)
    for strides, reach in [((1,), 32), ((2,), 48)]:
        assert refusal((5, 128, 1), (2,), strides, data=ADDRESS_MAX - reach) is None
        assert refusal((5, 128, 1), (2,), strides, data=ADDRESS_MAX - reach + 1) == text.format(0, reach)
    assert refusal((1, 255, 1), (2,), data=ADDRESS_MAX - 64) is None  # elements of more than 16 bytes
    assert refusal((1, 255, 1), (2,), data=ADDRESS_MAX - 63) == text.format(0, 64)
    far, part = ADDRESS_MAX // 8 * 7, 2**57  # sums of strides that wrap where they are multiplied by 16
    nested = [part * 9 // 10, part * 8 // 5, 3 * part, part * 25 // 4]
    nested.append(24 * part - sum(nested))
    assert refusal(UINT8, 5 * (2,), nested, data=far) == text.format(0, 24 * part + 1)
    for strides in None, (1,):
        assert refusal(UINT8, (INT64_MAX,), strides, data=far) == text.format(0, INT64_MAX)
    wrap = "byte_offset is {}, added to data it leaves the address range"
    assert refusal(UINT8, (1,), byte_offset=ADDRESS_MAX - NOWHERE - 1) is None
    assert refusal(UINT8, (1,), byte_offset=ADDRESS_MAX - NOWHERE) == text.format(0, 1)
    for byte_offset in (ADDRESS_MAX - NOWHERE + 1, 2**64 - 1):
        assert refusal(UINT8, (1,), byte_offset=byte_offset) == wrap.format(byte_offset)


@pytest.mark.parametrize("device", range(1, 20))
def test_a_handle_is_no_address_and_its_offset_is_not_added_to_it_D1(device):
    is_address = device in (CPU, CUDA, CUDA_HOST, ROCM, ROCM_HOST, CUDA_MANAGED, ONEAPI, TPU_HOST)
    assert (refusal(UINT8, (16,), data=ADDRESS_MAX - 7, device=device) is not None) == is_address


def test_sixty_four_dimensions_are_accepted_with_and_without_strides_D4_D5_D8():
    assert refusal(shape=63 * [1] + [5], strides=63 * [INT64_MIN] + [1], data=UNREADABLE) is None
    assert refusal(shape=63 * [1] + [5], strides=None, data=UNREADABLE) is None


# ---- Streams ----

ANY, NONE_OF = "", "None (or -1)"
NOT_0, NOT_1_OR_2 = "1 (legacy default), 2 (per-thread default) or a handle", "0 (default) or a handle"


@pytest.mark.parametrize(
    ("type", "of_0", "of_1_and_2", "of_others"),
    [(CPU, NONE_OF, NONE_OF, NONE_OF)]
    + [(type, NOT_0, ANY, ANY) for type in (CUDA, CUDA_HOST, CUDA_MANAGED)]
    + [(type, ANY, NOT_1_OR_2, ANY) for type in (ROCM, ROCM_HOST)]
    + [(type, ANY, ANY, ANY) for type in (METAL, 12, 14, 99)],
)
def test_which_streams_are_valid_depends_on_the_device_P6_S2_S3_S7(type, of_0, of_1_and_2, of_others):
    room = ctypes.create_string_buffer(48)
    device = lib.device_text(Device(type, 0), room).decode()
    for handle in (0, 1, 2, 3, 2**31, ADDRESS_MAX // 2 + 9, ADDRESS_MAX):
        wanted = {0: of_0, 1: of_1_and_2, 2: of_1_and_2}.get(handle, of_others)
        error = ("ValueError", f"stream is {handle} for data on {device}, {wanted} was wanted", False)
        assert error_of(lib.check_stream, Device(type, 0), Stream(2, handle)) == (error if wanted else None)
    for none_or_minus_1 in (0, 1):
        assert error_of(lib.check_stream, Device(type, 0), Stream(none_or_minus_1, 0)) is None


# ---- Requirements ----

WRITABLE, READONLY, UNKNOWN = 0, 1, 0x101
LEGACY_IS_WRITABLE, OVERLAP_IS_FINE = 2, 4
ANY_DEVICE = SCALAR = -1


def unmet(t, readonly=WRITABLE, kind="BufferError", **want):
    """The error text of dlpack_py_check_tensor, or None. An asterisk at the end: a copy would meet the requirement."""
    dtype, dtypes = want.pop("dtype", None), want.pop("dtypes", None)
    fields = [
        packed(dtype) if dtype else 0,
        dtypes if dtypes is None else (ctypes.c_uint32 * (len(dtypes) + 1))(*map(packed, dtypes)),
        *(want.pop(name, 0) for name in ("ndim", "max_ndim")),
        numbers(want.pop("shape", None)),
        want.pop("order", "\0").encode(),
        *(want.pop(name, 0) for name in ("writable", "device", "alignment", "options")),
    ]
    assert not want
    error = error_of(lib.meets, t, readonly, *fields)
    assert error is None or error[0] == kind
    return error and error[1] + ("*" if error[2] else "")


def two_by_three(dtype=FLOAT32, strides=None, data=NOWHERE, device=(CPU, 0)):
    return tensor(dtype, (2, 3), strides, data, 0, device)


@pytest.mark.parametrize("readonly", [WRITABLE, READONLY, UNKNOWN])
def test_without_requirements_any_array_that_the_cpu_can_read_is_accepted_C5(readonly):
    for type in (*range(1, 25), 31, 32, 33):
        came = two_by_three((200, 7, 3), (0, -7), device=(type, 0))
        is_readable = type in (CPU, CUDA_HOST, ROCM_HOST, CUDA_MANAGED, TPU_HOST)
        text = None if is_readable else "memory that the CPU can read was asked for"
        assert (unmet(came, readonly) or "").endswith(text or "")
        assert (unmet(came, readonly) is None) == (text is None)
        assert unmet(came, readonly, device=ANY_DEVICE) is None


@pytest.mark.parametrize(
    ("came", "device", "text"),
    [
        ((CUDA, 3), CUDA, None),
        ((99, 7), 99, None),
        ((CUDA, 1), 0, "device is cuda:1, memory that the CPU can read was asked for"),
        ((CPU, 0), CUDA, "device is cpu, cuda was asked for"),
        ((CUDA, 3), CPU, "device is cuda:3, cpu was asked for"),
        ((CUDA_HOST, 0), CPU, "device is cuda_host, cpu was asked for"),
        ((CPU, 0), 99, "device is cpu, device type 99 was asked for"),
    ],
)
def test_a_required_device_type_accepts_any_device_id_C5(came, device, text):
    assert unmet(two_by_three(device=came), device=device) == text


@pytest.mark.parametrize("device", [(CPU, 0), (CUDA_HOST, 0), (CUDA, 1)])
@pytest.mark.parametrize("data", [NOWHERE, NOWHERE + 2])
def test_without_a_want_the_requirements_are_those_of_one_that_is_all_zero_C9(device, data):
    came = two_by_three(device=device, data=data)
    error = error_of(lib.meets_nothing, came, READONLY)
    assert (error and error[1] + "*" * error[2]) == unmet(came, READONLY)
    assert (error is None) == (device[0] != CUDA and data == NOWHERE)


@pytest.mark.parametrize(
    ("want", "text"),
    [
        ({"order": "Q"}, "order is 'Q'"),
        ({"dtypes": [(2, 0, 1)]}, "dtype is 33554433"),
        ({"ndim": -2}, "ndim is -2 and max_ndim is 0"),
        ({"ndim": 3, "max_ndim": 2}, "ndim is 3 and max_ndim is 2"),
        ({"shape": (2, 3)}, "ndim is 0 and max_ndim is 0"),
        ({"ndim": 2, "max_ndim": 3, "shape": (2, 3)}, "ndim is 2 and max_ndim is 3"),
        ({"device": -2}, "device is -2"),
        ({"alignment": 24}, "alignment is 24"),
    ],
)
def test_requirements_that_contradict_each_other_are_a_system_error_C9(want, text):
    assert text in unmet(two_by_three(), kind="SystemError", **want)


LONG = [(9, 8, 65535 - i) for i in range(40)]  # the longest names
UP_TO_90, UP_TO_91 = ([*LONG[:2], (11, 8, lanes), *LONG[2:4]] for lanes in (100, 1000))  # characters with three dtypes


@pytest.mark.parametrize(
    ("came", "dtype", "dtypes", "text"),
    [
        (FLOAT32, FLOAT32, None, None),
        (FLOAT32X4, FLOAT32, None, "dtype is float32x4, float32 was asked for"),
        (FLOAT32X4, FLOAT32, [INT8, FLOAT32X4], None),
        (FLOAT32, FLOAT32, [INT8, FLOAT32X4], None),
        (FLOAT32X4, None, [INT8, FLOAT32X4], None),
        (
            (201, 64, 1),
            FLOAT64,
            [INT8, FLOAT32],
            "dtype is dtype(201, 64, 1), float64 or int8 or float32 was asked for",
        ),
        (FLOAT64, None, [INT8, FLOAT32X4], "dtype is float64, int8 or float32x4 was asked for"),
        (FLOAT64, None, [], None),
        (FLOAT64, INT8, [], "dtype is float64, int8 was asked for"),
        (BOOL, None, [*LONG, BOOL], None),
        (BOOL, None, LONG[:2], f"dtype is bool, {dtype_text(*LONG[0])} or {dtype_text(*LONG[1])} was asked for"),
        (
            BOOL,
            None,
            UP_TO_90,
            f"dtype is bool, {' or '.join(dtype_text(*d) for d in UP_TO_90[:4])} or ... was asked for",
        ),
        (
            BOOL,
            None,
            UP_TO_91,
            f"dtype is bool, {' or '.join(dtype_text(*d) for d in UP_TO_91[:3])} or ... was asked for",
        ),
        (BOOL, None, LONG, f"dtype is bool, {' or '.join(dtype_text(*d) for d in LONG[:3])} or ... was asked for"),
    ],
)
def test_a_required_dtype_is_one_dtype_or_a_list_C9(came, dtype, dtypes, text):
    assert unmet(two_by_three(came), dtype=dtype, dtypes=dtypes) == text


@pytest.mark.parametrize(
    ("ndim", "max_ndim", "ranks", "wish"),
    [
        (0, 0, range(65), ""),
        (3, 0, [3], "3"),
        (3, 3, [3], "3"),
        (2, 4, [2, 3, 4], "2 to 4"),
        (0, 2, [0, 1, 2], "0 to 2"),
        (SCALAR, 0, [0], "0"),
        (64, 0, [64], "64"),
    ],
)
def test_a_required_rank_is_one_rank_or_a_range_C9(ndim, max_ndim, ranks, wish):
    for rank in range(65):
        text = None if rank in ranks else f"ndim is {rank}, {wish} was asked for"
        assert unmet(tensor(FLOAT32, rank * [1], None, NOWHERE), ndim=ndim, max_ndim=max_ndim) == text


@pytest.mark.parametrize(
    ("ndim", "shape", "text"),
    [
        (2, (-1, -1), None),
        (2, (-1, 3), None),
        (2, (2, 3), None),
        (2, (4, -1), "shape[0] is 2, 4 was asked for"),
        (2, (-1, 0), "shape[1] is 3, 0 was asked for"),
        (3, UNREADABLE, "ndim is 2, 3 was asked for"),
    ],
)
def test_required_extents_must_be_equal_and_minus_1_accepts_any_extent_C9(ndim, shape, text):
    for max_ndim in (0, ndim):
        assert unmet(two_by_three(), ndim=ndim, max_ndim=max_ndim, shape=shape) == text


@pytest.mark.parametrize(
    ("strides", "met"),
    [
        (None, "CAKR"),
        ((3, 1), "CAKR"),
        ((1, 2), "FAK"),
        ((3, 2), ""),
        ((-3, -1), ""),
        ((0, 1), "R"),
        ((4, 1), "R"),
        ((-5, 1), "R"),
    ],
)
def test_a_copy_would_meet_an_order_that_the_strides_do_not_meet_D5(strides, met):
    assert unmet(two_by_three(strides=strides)) is None
    for order in "CFAKR":
        text = unmet(two_by_three(strides=strides), order=order)
        assert text is None if order in met else text.endswith("*")
        expected = dltensor.compact((2, 3)) if order in "CAR" else (1, 2)
        i = next((i for i in ((0, 1) if order == "F" else (1, 0)) if strides and strides[i] != expected[i]), 0)
        if text and order == "K":
            assert text == "strides are not compact in any order of the dimensions, order 'K' was asked for*"
        elif text and strides:
            assert text == f"strides[{i}] is {strides[i]}, {expected[i]} was asked for by order '{order}'*"


NATURAL = {UINT8: 1, INT16: 2, FLOAT32: 4, (5, 32, 1): 2, (18, 32, 1): 2, FLOAT32X4: 4}
NATURAL.update({dtype: dltensor.ALIGNMENT for dtype in [FLOAT64, (0, 64, 1), (5, 128, 1)]})
NATURAL.update({(0, 12, 1): 1, (0, 24, 1): 1, (0, 65, 1): 1, FLOAT4: 1, (17, 4, 8): 1, (4, 16, 1): 2, (2, 128, 1): 16})


@pytest.mark.parametrize("dtype", NATURAL)
def test_the_required_alignment_is_by_default_that_of_the_numbers_C9(dtype):
    for base, offset, wish in itertools.product([0, 48 * 100], range(32), [0, 1, 2, 8, 16]):
        alignment, address = wish or NATURAL[dtype], base + offset
        text = f"data is at address {address:#x}, alignment to {alignment} bytes was asked for*"
        t = tensor(dtype, (), None, address - offset // 2, offset // 2)  # the sum of both must be aligned (D1)
        assert unmet(t, alignment=wish) == (text if address % alignment else None)


def test_alignment_is_not_required_without_elements_nor_for_a_handle_D3():
    assert unmet(tensor(FLOAT64, (3, 0), None, NOWHERE + 1), alignment=256) is None
    assert unmet(two_by_three(data=NOWHERE + 1, device=(METAL, 0)), device=METAL, alignment=256) is None
    assert unmet(two_by_three(data=NOWHERE + 1, device=(ROCM, 0)), device=ROCM).endswith("4 bytes was asked for*")


def test_writable_refuses_read_only_memory_and_memory_of_unknown_access_C7():
    t, text = two_by_three(), "data is read-only, writable memory was asked for"
    hint = "a legacy capsule has no read-only flag"
    assert unmet(t, WRITABLE, writable=1) is None
    assert unmet(t, READONLY, writable=1) == f"{text}*"
    assert unmet(t, READONLY, writable=1, options=LEGACY_IS_WRITABLE) == f"{text}*"
    assert unmet(t, UNKNOWN, writable=1) == f"{text} ({hint})*"
    assert unmet(t, UNKNOWN, writable=1, options=LEGACY_IS_WRITABLE) is None


@pytest.mark.parametrize("strides", [(0, 1), (1, 1), (2, -1)])
def test_writable_refuses_memory_that_overlaps_itself_unless_overlap_is_allowed_C9(strides):
    t = two_by_three(strides=strides)
    text = "elements may share memory, writable memory without overlap was asked for*"
    assert unmet(t, writable=1) == text
    assert unmet(t, UNKNOWN, writable=1, options=LEGACY_IS_WRITABLE) == text
    assert unmet(t, writable=1, options=OVERLAP_IS_FINE) is None
    assert unmet(t, READONLY, writable=1, options=OVERLAP_IS_FINE) is not None
    assert unmet(two_by_three(strides=(-3, 1)), writable=1) is None


def test_a_requirement_that_no_copy_would_meet_is_reported_first_C9():
    t = two_by_three(strides=(0, 2), data=NOWHERE + 1, device=(CUDA, 0))
    want = dict(dtype=INT32, ndim=1, shape=(2, 4), order="C", writable=1)
    assert unmet(t, READONLY, **want).startswith("device")
    assert unmet(t, READONLY, **want, device=CUDA).startswith("dtype")
    want.update(device=CUDA, dtype=FLOAT32)
    assert unmet(t, READONLY, **want).startswith("ndim")
    want.update(ndim=2)
    assert unmet(t, READONLY, **want) == "shape[1] is 3, 4 was asked for"
    want.update(shape=(2, 3))
    assert unmet(t, READONLY, **want) == "strides[1] is 2, 1 was asked for by order 'C'*"
    want.update(order="\0")
    assert unmet(t, READONLY, **want) == f"data is at address {NOWHERE + 1:#x}, alignment to 4 bytes was asked for*"
    want.update(alignment=1)
    assert unmet(t, READONLY, **want) == "data is read-only, writable memory was asked for*"
    assert unmet(t, **want) == "elements may share memory, writable memory without overlap was asked for*"
