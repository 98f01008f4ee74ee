/* The strided copy in extreme cases: refusals, no elements, the last byte, 64 dimensions. Then elements of all sizes.
 * test_brute_force.py and test_copies.py have the other cases. */
#include "check.h"

#define BIG ((int64_t)1 << 62)

/* Allocates exactly this size, so that a sanitizer sees an access to one byte more. The bytes are 0, 1, 2... */
static char *
exactly(int size)
{
    char *memory = (char *)malloc((size_t)size);
    int i;
    if (memory == NULL)
        exit(1);
    for (i = 0; i < size; i++)
        memory[i] = (char)i;
    return memory;
}

static void
another_dtype_or_shape_is_refused_and_nothing_is_written(void)
{
    static const int64_t shape[2] = {2, 3}, turned[2] = {3, 2};
    static const struct {
        uint32_t dtype;
        int32_t ndim;
        const int64_t *shape;
    } others[] = {
        {DLPACK_PY_INT32, 2, shape},    {DLPACK_PY_DTYPE(2u, 16u, 2u), 2, shape},
        {DLPACK_PY_FLOAT32, 2, turned}, {DLPACK_PY_FLOAT32, 1, shape},
        {DLPACK_PY_FLOAT32, 0, NULL},
    };
    static const char *const texts[] = {
        "cannot copy dtype float32 to dtype int32, equal dtypes were wanted",
        "cannot copy dtype float32 to dtype float16x2, equal dtypes were wanted",
        "cannot copy shape[0] 2 to 3, equal shapes were wanted",
        "cannot copy ndim 2 to 1, equal shapes were wanted",
        "cannot copy ndim 2 to 0, equal shapes were wanted",
    };
    char *from = exactly(24);
    const DLTensor src = dlpack_py_cpu_tensor(from, DLPACK_PY_FLOAT32, 2, shape, NULL);
    int i;
    for (i = 0; i < COUNT(others); i++) {
        const DLTensor dst =
            dlpack_py_cpu_tensor(check_unreadable(), others[i].dtype, others[i].ndim, others[i].shape, NULL);
        dlpack_py_error error;
        CHECK_NUMBER(dlpack_py_copy(&dst, &src, 0, &error), -1);
        CHECK_NUMBER(error.code, DLPACK_PY_BUFFER_ERROR);
        CHECK_NUMBER(error.copy_helps, 0);
        CHECK(strcmp(error.text, texts[i]) == 0);
        CHECK_NUMBER(dlpack_py_copy(&dst, &src, 0, NULL), -1);
    }
    free(from);
}

static void
memory_that_the_cpu_cannot_read_is_refused_P7(void)
{
    static const int64_t shape[1] = {3};
    float values[3] = {1, 2, 3}, host[3] = {0, 0, 0};
    DLTensor cpu = dlpack_py_cpu_tensor(values, DLPACK_PY_FLOAT32, 1, shape, NULL), device = cpu;
    dlpack_py_error error;

    device.data = check_unreadable();
    device.device.device_type = kDLCUDA;
    CHECK_NUMBER(dlpack_py_copy(&cpu, &device, 0, &error), -1);
    CHECK(strcmp(error.text, "cannot copy from cuda:0 to cpu, memory that the CPU can read was wanted") == 0);
    CHECK_NUMBER(dlpack_py_copy(&device, &cpu, 0, NULL), -1);
    device.data = host;
    device.device.device_type = kDLCUDAHost;
    CHECK_NUMBER(dlpack_py_copy(&device, &cpu, 0, NULL), 0);
    CHECK(memcmp(host, values, sizeof(host)) == 0);
}

static void
without_elements_nothing_is_touched_D3(void)
{
    static const int64_t shape[3] = {BIG, 0, BIG};
    DLTensor src = dlpack_py_cpu_tensor(check_unreadable(), DLPACK_PY_FLOAT32, 3, shape, shape);
    const DLTensor dst = dlpack_py_cpu_tensor(NULL, DLPACK_PY_FLOAT32, 3, shape, NULL);
    src.byte_offset = UINT64_MAX; /* would wrap */
    CHECK_NUMBER(dlpack_py_copy(&dst, &src, 0, NULL), 0);
    CHECK_NUMBER(dlpack_py_copy(&src, &dst, 0, NULL), 0);
}

static void
tensors_that_may_share_memory_are_refused_and_nothing_is_written_C9(void)
{
    static const int64_t three[1] = {3}, pair[1] = {2}, all[1] = {1}, every_second[1] = {2};
    static const struct {
        int64_t to, from; /* the first byte */
        const int64_t *shape, *strides_to, *strides_from;
        int refused;
    } cases[] = {
        {0, 0, three, all, all, 1}, /* dst is src */
        {0, 1, three, all, all, 1}, /* moved by an element */
        {1, 0, three, all, all, 1},
        {0, 2, three, every_second, all, 1},         /* another stride */
        {0, 3, three, all, all, 0},                  /* adjacent */
        {0, 1, pair, every_second, every_second, 0}, /* x[0::2] = x[1::2] */
    };
    char *bytes = exactly(8), *before = exactly(8);
    dlpack_py_error error;
    int i;
    for (i = 0; i < COUNT(cases); i++) {
        const DLTensor dst =
            dlpack_py_cpu_tensor(bytes + cases[i].to, DLPACK_PY_UINT8, 1, cases[i].shape, cases[i].strides_to);
        const DLTensor src =
            dlpack_py_cpu_tensor(bytes + cases[i].from, DLPACK_PY_UINT8, 1, cases[i].shape, cases[i].strides_from);
        CHECK_NUMBER(dlpack_py_copy(&dst, &src, 0, &error), cases[i].refused ? -1 : 0);
        if (cases[i].refused) {
            CHECK(strncmp(error.text, "cannot copy from address 0x", 27) == 0);
            CHECK(strstr(error.text, ": the tensors may share memory, separate memory was wanted") != NULL);
            CHECK(memcmp(bytes, before, 8) == 0);
        }
        memcpy(bytes, before, 8);
    }
    free(bytes);
    free(before);
}

static void
memory_is_read_and_written_to_its_ends_and_not_beyond_D5(void)
{
    static const int64_t shape[4] = {2, 1, 3, 4}, reversed[4] = {-12, INT64_MIN, -4, -1}, turned[4] = {1, 1, 2, 6};
    char *from = exactly(48), *to = exactly(48);
    DLTensor src = dlpack_py_cpu_tensor(from, DLPACK_PY_INT16, 4, shape, NULL);
    DLTensor dst = dlpack_py_cpu_tensor(to, DLPACK_PY_INT16, 4, shape, NULL);
    int i;

    memset(to, 0x7f, 48);
    CHECK_NUMBER(dlpack_py_copy(&dst, &src, 0, NULL), 0);
    CHECK(memcmp(to, from, 48) == 0);

    src.data = from + 46;
    src.strides = (int64_t *)(uintptr_t)reversed;
    dst.strides = (int64_t *)(uintptr_t)turned;
    memset(to, 0x7f, 48);
    CHECK_NUMBER(dlpack_py_copy(&dst, &src, 0, NULL), 0);
    for (i = 0; i < 24; i++) { /* the element at (i / 12, 0, i / 4 % 3, i % 4) */
        const int place = i / 12 + 2 * (i / 4 % 3) + 6 * (i % 4);
        CHECK(to[2 * place] == 46 - 2 * i && to[2 * place + 1] == 47 - 2 * i);
    }
    free(from);
    free(to);
}

static void
sixty_four_dimensions_are_copied_D8(void)
{
    int64_t shape[64] = {0}, strides[64] = {0};
    char *from = exactly(1024), *to = exactly(1024);
    const DLTensor src = dlpack_py_cpu_tensor(from, DLPACK_PY_UINT8, 64, shape, strides);
    const DLTensor dst = dlpack_py_cpu_tensor(to, DLPACK_PY_UINT8, 64, shape, NULL);
    int i, k, mirrored;
    for (i = 0; i < 64; i++)
        shape[i] = i % 7 == 0 ? 2 : 1; /* ten times 2 */
    dlpack_py_compact_strides(64, shape, 'F', strides);
    CHECK_NUMBER(dlpack_py_copy(&dst, &src, 0, NULL), 0);
    for (i = 0; i < 1024; i++) {
        for (mirrored = 0, k = 0; k < 10; k++)
            mirrored |= (i >> k & 1) << (9 - k);
        CHECK(to[i] == from[mirrored]);
    }
    free(from);
    free(to);
}

/* Copies n[0] x n[1] x n[2] elements between any strides, and compares each element. first_src: the position of the
 * first element of src in its buffer, counted in elements. */
static void
check_elements(uint32_t dtype, const int64_t *n, const int64_t *to, const int64_t *from, int64_t first_src,
               int64_t elements)
{
    const int64_t bits = (int64_t)(dtype >> 16 & 0xff) * (int64_t)(dtype & 0xffff), bytes = (elements * bits + 7) / 8;
    char *source = (char *)malloc((size_t)bytes), *target = (char *)malloc((size_t)bytes);
    DLTensor src = dlpack_py_cpu_tensor(source, dtype, 3, n, from), dst = dlpack_py_cpu_tensor(target, dtype, 3, n, to);
    int64_t i, j, k, b, wrong = 0;
    if (source == NULL || target == NULL)
        exit(1);
    for (i = 0; i < bytes; i++)
        source[i] = (char)(i * 89 % 251);
    memset(target, 0x55, (size_t)bytes);
    src.byte_offset = (uint64_t)(first_src * bits / 8);
    CHECK_NUMBER(dlpack_py_copy(&dst, &src, 0, NULL), 0);
    for (i = 0; i < n[0]; i++) {
        for (j = 0; j < n[1]; j++) {
            for (k = 0; k < n[2]; k++) {
                const int64_t at = (i * to[0] + j * to[1] + k * to[2]) * bits;
                const int64_t out_of = (first_src + i * from[0] + j * from[1] + k * from[2]) * bits;
                for (b = 0; bits % 8 != 0 && b < bits; b++) /* the first element has the lowest bits of a byte (D6) */
                    wrong += (target[(at + b) / 8] >> (at + b) % 8 ^ source[(out_of + b) / 8] >> (out_of + b) % 8) & 1;
                wrong += bits % 8 == 0 && memcmp(target + at / 8, source + out_of / 8, (size_t)(bits / 8)) != 0;
            }
        }
    }
    CHECK_NUMBER(wrong, 0);
    free(source);
    free(target);
}

/* Shapes that fill blocks, tiles and lines of the cache, and shapes that are slightly smaller or larger. */
static void
elements_of_any_size_are_copied_between_any_strides_D4_D6(void)
{
    static const uint32_t dtypes[] = {
        DLPACK_PY_UINT8,
        DLPACK_PY_INT16,
        DLPACK_PY_FLOAT32,
        DLPACK_PY_COMPLEX64,
        DLPACK_PY_COMPLEX128,
        DLPACK_PY_FLOAT4_E2M1FN,
        DLPACK_PY_FLOAT6_E2M3FN,
        DLPACK_PY_DTYPE(1u, 8u, 3u),
        DLPACK_PY_DTYPE(1u, 8u, 32u),
    };
    static const int64_t extents[] = {1, 3, 15, 16, 33, 130};
    int d, x, y;
    for (d = 0; d < COUNT(dtypes); d++) {
        for (x = 0; x < COUNT(extents); x++) {
            for (y = 0; y < COUNT(extents); y++) {
                const int64_t a = extents[x], b = extents[y], all = 2 * a * b;
                const int64_t n[3] = {2, a, b}, rows[3] = {a * b, b, 1}, columns[3] = {a * b, 1, a};
                const int64_t outer[3] = {1, 2, 2 * a}, back[3] = {-a * b, -b, -1}, even[3] = {2 * a * b, 2 * b, 2};
                check_elements(dtypes[d], n, rows, rows, 0, all);
                check_elements(dtypes[d], n, rows, columns, 0, all);
                check_elements(dtypes[d], n, columns, rows, 0, all);
                check_elements(dtypes[d], n, rows, outer, 0, all);
                check_elements(dtypes[d], n, outer, columns, 0, all);
                check_elements(dtypes[d], n, rows, even, 0, 2 * all);
                if ((all - 1) * (int64_t)(dtypes[d] >> 16 & 0xff) % 8 == 0)
                    check_elements(dtypes[d], n, rows, back, all - 1, all);
            }
        }
    }
}

/* More than 2 MiB: dlpack_copy.h writes such memory in another way. */
static void
large_matrices_are_transposed_D4(void)
{
    static const int64_t extents[] = {5, 64, 100, 1024};
    static const uint32_t dtypes[] = {DLPACK_PY_UINT8, DLPACK_PY_INT16, DLPACK_PY_FLOAT32, DLPACK_PY_FLOAT64};
    int d, x;
    for (d = 0; d < COUNT(dtypes); d++) {
        for (x = 0; x < COUNT(extents); x++) {
            const int64_t a = extents[x], b = (1 << 21) / (a * (8 << d) / 8) + 3, all = a * b;
            const int64_t n[3] = {1, a, b}, turned[3] = {1, b, a};
            const int64_t rows[3] = {all, b, 1}, columns[3] = {all, 1, a}, turned_rows[3] = {all, a, 1};
            const int64_t turned_columns[3] = {all, 1, b};
            check_elements(dtypes[d], n, rows, columns, 0, all);
            check_elements(dtypes[d], turned, turned_rows, turned_columns, 0, all);
        }
    }
}

#ifdef DLPACK_COPY_H
/* A step that is never taken may have any value, also one below the step of the items. */
static void
one_row_with_any_step_is_copied_D5(void)
{
    static const int64_t steps[] = {0, 1, 4, -4, 64, INT64_MAX};
    int i, k, size;
    for (i = 0; i < COUNT(steps); i++) {
        for (size = 1; size <= 16; size *= 2) {
            const dlpack_copy_loop row = {1, steps[i], steps[i]}, items = {70, size, 3 * size};
            char *from = exactly(3 * 70 * size), *to = exactly(70 * size);
            dlpack_copy_rows(to, &row, from, &items, (size_t)size, 70 * size);
            for (k = 0; k < 70 * size; k++)
                CHECK(to[k] == (char)(k / size * 3 * size + k % size));
            free(from);
            free(to);
        }
    }
}
#endif

int
main(void)
{
#ifdef DLPACK_COPY_H
    one_row_with_any_step_is_copied_D5();
#endif
    another_dtype_or_shape_is_refused_and_nothing_is_written();
    memory_that_the_cpu_cannot_read_is_refused_P7();
    without_elements_nothing_is_touched_D3();
    tensors_that_may_share_memory_are_refused_and_nothing_is_written_C9();
    memory_is_read_and_written_to_its_ends_and_not_beyond_D5();
    sixty_four_dimensions_are_copied_D8();
    elements_of_any_size_are_copied_between_any_strides_D4_D6();
    large_matrices_are_transposed_D4();
    return check_failures != 0;
}
