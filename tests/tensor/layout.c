/* Cases that test_brute_force.py lacks: arithmetic, addresses, 64 dimensions and no dimensions. */
#include "check.h"

#define BIG ((int64_t)1 << 62)
#define BYTE DLPACK_PY_UINT8

static uint64_t
magnitude(int64_t a)
{
    return a < 0 ? 0 - (uint64_t)a : (uint64_t)a;
}

static void
arithmetic_that_leaves_int64_is_seen_D8(void)
{
    static const int64_t edges[] = {0, 1, 2, 254, 3037000499, 3037000500, BIG - 1, BIG, INT64_MAX - 1, INT64_MAX};
    int i, k;
    for (i = 0; i < 2 * COUNT(edges); i++) {
        for (k = 0; k < 2 * COUNT(edges); k++) {
            const int64_t a = i % 2 ? ~edges[i / 2] : edges[i / 2], b = k % 2 ? ~edges[k / 2] : edges[k / 2];
            const uint64_t most = (uint64_t)INT64_MAX + ((a < 0) != (b < 0) ? 1 : 0);
            const int product_fits = a == 0 || magnitude(b) <= most / magnitude(a);
            const int sum_fits = (a < 0) != (b < 0) || magnitude(a) + magnitude(b) - (a < 0 ? 1 : 0) <= INT64_MAX;
            int64_t out = 0;
            CHECK_NUMBER(dlp_checked_multiply(a, b, &out), product_fits ? 0 : -1);
            CHECK(!product_fits || (uint64_t)out == (uint64_t)a * (uint64_t)b);
            CHECK_NUMBER(dlp_checked_add(a, b, &out), sum_fits ? 0 : -1);
            CHECK(!sum_fits || (uint64_t)out == (uint64_t)a + (uint64_t)b);
        }
    }
}

static void
the_first_element_is_at_data_and_byte_offset_D1(void)
{
    char bytes[16];
    const int64_t shape[1] = {4};
    DLTensor t = dlpack_py_cpu_tensor(bytes, BYTE, 1, shape, NULL);
    CHECK(t.byte_offset == 0 && t.device.device_type == kDLCPU && t.device.device_id == 0 && t.ndim == 1);
    CHECK(t.shape == shape && t.strides == NULL);
    CHECK(dlp_first_element(&t) == bytes);
    t.byte_offset = 5;
    CHECK(dlp_first_element(&t) == bytes + 5);
    t.byte_offset = (uint64_t)UINTPTR_MAX - (uintptr_t)bytes + 1; /* address 0, or the first address beyond the range */
    CHECK_NUMBER(dlpack_py_validate(&t, 0, NULL), -1);
    t.data = NULL;
    CHECK(dlp_first_element(&t) == NULL);
}

static void
strides_that_would_leave_int64_stay_as_they_are_D8(void)
{
    static const int64_t shape[4] = {BIG, 0, BIG, 4};
    int64_t strides[4];
    dlpack_py_compact_strides(4, shape, 'C', strides);
    CHECK(strides[3] == 1 && strides[2] == 4 && strides[1] == 4 && strides[0] == 4);
    dlpack_py_compact_strides(4, shape, 'F', strides);
    CHECK(strides[0] == 1 && strides[1] == BIG && strides[2] == BIG && strides[3] == BIG);
}

static void
sixty_four_dimensions_have_an_order_D8(void)
{
    int64_t shape[64] = {0}, strides[64] = {0}, turn;
    DLTensor t = dlpack_py_cpu_tensor(NULL, BYTE, 64, shape, strides);
    int i;
    for (i = 0; i < 64; i++)
        shape[i] = i % 2 ? 2 : 1;
    dlpack_py_compact_strides(64, shape, 'C', strides);
    CHECK(dlpack_py_is_contiguous(&t, 'C') && !dlpack_py_is_contiguous(&t, 'F') && dlpack_py_is_contiguous(&t, 'K'));
    CHECK(!dlp_may_overlap_itself(&t));
    dlpack_py_compact_strides(64, shape, 'F', strides);
    CHECK(!dlpack_py_is_contiguous(&t, 'C') && dlpack_py_is_contiguous(&t, 'F') && dlpack_py_is_contiguous(&t, 'A'));
    turn = strides[63];
    strides[63] = strides[1];
    strides[1] = turn;
    CHECK(!dlpack_py_is_contiguous(&t, 'A') && dlpack_py_is_contiguous(&t, 'K'));
    strides[1]++;
    CHECK(!dlpack_py_is_contiguous(&t, 'K'));
    CHECK(dlp_is_empty(&t) == 0 && dlpack_py_size(&t) == (int64_t)1 << 32);
}

static void
tensors_without_elements_share_nothing_whatever_they_point_to_D3(void)
{
    static const int64_t none[2] = {BIG, 0}, strides[2] = {INT64_MIN, -5}, one[2] = {1, 1};
    char byte = 0;
    DLTensor empty = dlpack_py_cpu_tensor(&byte, BYTE, 2, none, strides);
    const DLTensor t = dlpack_py_cpu_tensor(&byte, BYTE, 2, one, NULL);
    empty.byte_offset = UINT64_MAX; /* would wrap */
    CHECK(!dlpack_py_may_overlap(&empty, 0, &t, 0) && !dlpack_py_may_overlap(&t, 0, &empty, 0));
    CHECK(!dlp_may_overlap_itself(&empty) && dlpack_py_is_contiguous(&empty, 'C'));
    CHECK(dlpack_py_is_contiguous(&empty, 'F') && dlpack_py_is_contiguous(&empty, 'K'));
}

static void
extents_of_each_integer_type_are_widened(void)
{
    static const int ints[3] = {3, -1, INT32_MAX};
    static const size_t sizes[2] = {7, (size_t)PTRDIFF_MAX};
    static const ptrdiff_t differences[2] = {-8, PTRDIFF_MIN};
    int64_t to[3];

    CHECK(dlpack_py_to_int64(3, ints, sizeof(*ints), to) == to);
    CHECK(to[0] == 3 && to[1] == -1 && to[2] == INT32_MAX);
    CHECK(dlpack_py_to_int64(2, sizes, sizeof(*sizes), to) == to);
    CHECK(to[0] == 7 && to[1] == PTRDIFF_MAX && to[2] == INT32_MAX);
    CHECK(dlpack_py_to_int64(2, differences, sizeof(*differences), to) == to);
    CHECK(to[0] == -8 && to[1] == PTRDIFF_MIN);
    CHECK(dlpack_py_to_int64(0, ints, sizeof(*ints), to) == to && to[0] == -8);
    CHECK(dlpack_py_to_int64(2, NULL, sizeof(*ints), to) == NULL && to[0] == -8);
}

static void
strides_in_bytes_become_strides_in_elements_D4_D5(void)
{
    double values[6] = {0};
    const int64_t shape[3] = {2, 1, 3};
    int64_t strides[4] = {-24, 5, 8, 80}; /* the extent 1 has a stride without meaning; the last is of another tensor */
    DLTensor t = dlpack_py_cpu_tensor(values + 3, DLPACK_PY_FLOAT64, 3, shape, NULL);

    CHECK_NUMBER(dlpack_py_strides_from_bytes(&t, strides, 0, NULL), 0);
    CHECK(t.strides == strides && strides[0] == -3 && strides[2] == 1 && strides[3] == 80);
    CHECK_NUMBER(dlpack_py_validate(&t, 0, NULL), 0);
    t.ndim = 0;
    CHECK_NUMBER(dlpack_py_strides_from_bytes(&t, strides, 0, NULL), 0);
}

static void
strides_in_bytes_of_a_tensor_without_elements_may_be_any_numbers_D5(void)
{
    double values[1] = {0};
    const int64_t shape[2] = {0, 2};
    int64_t strides[2] = {18, 9};
    DLTensor t = dlpack_py_cpu_tensor(values, DLPACK_PY_FLOAT64, 2, shape, NULL);

    CHECK_NUMBER(dlpack_py_strides_from_bytes(&t, strides, 0, NULL), 0);
    CHECK(t.strides == strides);
    CHECK_NUMBER(dlpack_py_validate(&t, 0, NULL), 0);
}

static void
padded_elements_have_strides_in_bytes_and_packed_ones_have_none_D6(void)
{
    char bytes[4] = {0};
    const int64_t shape[2] = {2, 2}, one = 1;
    int64_t strides[2] = {2, 1};
    DLTensor t = dlpack_py_cpu_tensor(bytes, DLPACK_PY_DTYPE(kDLInt, 4, 1), 2, shape, NULL);

    CHECK_NUMBER(dlpack_py_strides_from_bytes(&t, strides, 0, NULL), -1);
    CHECK_NUMBER(dlpack_py_strides_from_bytes(&t, strides, DLPACK_PY_FLAG_IS_SUBBYTE_TYPE_PADDED, NULL), 0);
    CHECK(t.strides == strides && strides[0] == 2 && strides[1] == 1);
    t.ndim = 1;
    t.shape = (int64_t *)(uintptr_t)&one; /* a single element needs no strides */
    CHECK_NUMBER(dlpack_py_strides_from_bytes(&t, strides, 0, NULL), 0);
}

static void
strides_that_are_no_multiple_of_an_element_are_refused_P7(void)
{
    static const uint32_t dtypes[] = {DLPACK_PY_FLOAT64, DLPACK_PY_FLOAT6_E2M3FN, DLPACK_PY_FLOAT4_E2M1FN, 0};
    const int64_t shape[2] = {2, 2};
    char bytes[64];
    int i;

    for (i = 0; i < COUNT(dtypes); i++) {
        int64_t strides[2] = {16, 4};
        DLTensor t = dlpack_py_cpu_tensor(bytes, dtypes[i], 2, shape, NULL);
        dlpack_py_error error;
        CHECK_NUMBER(dlpack_py_strides_from_bytes(&t, strides, 0, &error), -1);
        CHECK(t.strides == NULL && strides[0] == 16); /* unchanged */
        if (i == 1)
            CHECK_NUMBER(strcmp(error.text, "elements of 6 bits are packed, and have no strides in bytes"), 0);
        if (i == 0)
            CHECK_NUMBER(strcmp(error.text, "strides[1] is 4 bytes, a multiple of 8 was wanted"), 0);
    }
}

int
main(void)
{
    arithmetic_that_leaves_int64_is_seen_D8();
    the_first_element_is_at_data_and_byte_offset_D1();
    strides_that_would_leave_int64_stay_as_they_are_D8();
    extents_of_each_integer_type_are_widened();
    strides_in_bytes_become_strides_in_elements_D4_D5();
    strides_in_bytes_of_a_tensor_without_elements_may_be_any_numbers_D5();
    padded_elements_have_strides_in_bytes_and_packed_ones_have_none_D6();
    strides_that_are_no_multiple_of_an_element_are_refused_P7();
    sixty_four_dimensions_have_an_order_D8();
    tensors_without_elements_share_nothing_whatever_they_point_to_D3();
    return check_failures != 0;
}
