/* The strided copy at its ends: refusals, no elements, the last byte, 64 dimensions. The rest: test_brute_force.py. */
#include "check.h"

#define BIG ((int64_t)1 << 62)

/* Memory of its very size, so that a sanitizer sees one byte too much: 0, 1, 2... */
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
    const DLTensor src = dlpack_py_cpu(from, DLPACK_PY_FLOAT32, 2, shape, NULL);
    int i;
    for (i = 0; i < COUNT(others); i++) {
        const DLTensor dst = dlpack_py_cpu(check_unreadable(), others[i].dtype, others[i].ndim, others[i].shape, NULL);
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
    float values[3] = {1, 2, 3};
    DLTensor cpu = dlpack_py_cpu(values, DLPACK_PY_FLOAT32, 1, shape, NULL), device = cpu;
    dlpack_py_error error;

    device.data = check_unreadable();
    device.device.device_type = kDLCUDA;
    CHECK_NUMBER(dlpack_py_copy(&cpu, &device, 0, &error), -1);
    CHECK(strcmp(error.text, "cannot copy from cuda:0 to cpu, memory that the CPU can read was wanted") == 0);
    CHECK_NUMBER(dlpack_py_copy(&device, &cpu, 0, NULL), -1);
    device.data = values;
    device.device.device_type = kDLCUDAHost;
    CHECK_NUMBER(dlpack_py_copy(&cpu, &device, 0, NULL), 0);
}

static void
without_elements_nothing_is_touched_D3(void)
{
    static const int64_t shape[3] = {BIG, 0, BIG};
    DLTensor src = dlpack_py_cpu(check_unreadable(), DLPACK_PY_FLOAT32, 3, shape, shape);
    const DLTensor dst = dlpack_py_cpu(NULL, DLPACK_PY_FLOAT32, 3, shape, NULL);
    src.byte_offset = UINT64_MAX; /* would wrap */
    CHECK_NUMBER(dlpack_py_copy(&dst, &src, 0, NULL), 0);
    CHECK_NUMBER(dlpack_py_copy(&src, &dst, 0, NULL), 0);
}

static void
memory_is_read_and_written_to_its_ends_and_not_beyond_D5(void)
{
    static const int64_t shape[4] = {2, 1, 3, 4}, reversed[4] = {-12, INT64_MIN, -4, -1}, turned[4] = {1, 1, 2, 6};
    char *from = exactly(48), *to = exactly(48);
    DLTensor src = dlpack_py_cpu(from, DLPACK_PY_INT16, 4, shape, NULL);
    DLTensor dst = dlpack_py_cpu(to, DLPACK_PY_INT16, 4, shape, NULL);
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
    const DLTensor src = dlpack_py_cpu(from, DLPACK_PY_UINT8, 64, shape, strides);
    const DLTensor dst = dlpack_py_cpu(to, DLPACK_PY_UINT8, 64, shape, NULL);
    int i, k, mirrored;
    for (i = 0; i < 64; i++)
        shape[i] = i % 7 == 0 ? 2 : 1; /* ten times 2 */
    dlpack_py_strides(64, shape, 'F', strides);
    CHECK_NUMBER(dlpack_py_copy(&dst, &src, 0, NULL), 0);
    for (i = 0; i < 1024; i++) {
        for (mirrored = 0, k = 0; k < 10; k++)
            mirrored |= (i >> k & 1) << (9 - k);
        CHECK(to[i] == from[mirrored]);
    }
    free(from);
    free(to);
}

int
main(void)
{
    another_dtype_or_shape_is_refused_and_nothing_is_written();
    memory_that_the_cpu_cannot_read_is_refused_P7();
    without_elements_nothing_is_touched_D3();
    memory_is_read_and_written_to_its_ends_and_not_beyond_D5();
    sixty_four_dimensions_are_copied_D8();
    return check_failures != 0;
}
