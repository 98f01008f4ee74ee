/* The numbers in the header are equal to those in dlpack.h. Older versions of dlpack.h lack some of them. */
#include "check.h"

#if DLPACK_MINOR_VERSION >= 1
#  define SINCE_1_1(theirs, number) theirs
#else
#  define SINCE_1_1(theirs, number) number
#endif
#if DLPACK_MINOR_VERSION >= 2
#  define SINCE_1_2(theirs, number) theirs
#else
#  define SINCE_1_2(theirs, number) number
#endif

static const struct {
    uint32_t dtype;
    int code, bits;
    const char *text;
} dtypes[] = {
    {DLPACK_PY_BOOL, kDLBool, 8, "bool"},
    {DLPACK_PY_INT8, kDLInt, 8, "int8"},
    {DLPACK_PY_INT16, kDLInt, 16, "int16"},
    {DLPACK_PY_INT32, kDLInt, 32, "int32"},
    {DLPACK_PY_INT64, kDLInt, 64, "int64"},
    {DLPACK_PY_UINT8, kDLUInt, 8, "uint8"},
    {DLPACK_PY_UINT16, kDLUInt, 16, "uint16"},
    {DLPACK_PY_UINT32, kDLUInt, 32, "uint32"},
    {DLPACK_PY_UINT64, kDLUInt, 64, "uint64"},
    {DLPACK_PY_FLOAT16, kDLFloat, 16, "float16"},
    {DLPACK_PY_FLOAT32, kDLFloat, 32, "float32"},
    {DLPACK_PY_FLOAT64, kDLFloat, 64, "float64"},
    {DLPACK_PY_BFLOAT16, kDLBfloat, 16, "bfloat16"},
    {DLPACK_PY_COMPLEX32, kDLComplex, 32, "complex32"},
    {DLPACK_PY_COMPLEX64, kDLComplex, 64, "complex64"},
    {DLPACK_PY_COMPLEX128, kDLComplex, 128, "complex128"},
    {DLPACK_PY_FLOAT8_E3M4, SINCE_1_1(kDLFloat8_e3m4, 7), 8, "float8_e3m4"},
    {DLPACK_PY_FLOAT8_E4M3, SINCE_1_1(kDLFloat8_e4m3, 8), 8, "float8_e4m3"},
    {DLPACK_PY_FLOAT8_E4M3B11FNUZ, SINCE_1_1(kDLFloat8_e4m3b11fnuz, 9), 8, "float8_e4m3b11fnuz"},
    {DLPACK_PY_FLOAT8_E4M3FN, SINCE_1_1(kDLFloat8_e4m3fn, 10), 8, "float8_e4m3fn"},
    {DLPACK_PY_FLOAT8_E4M3FNUZ, SINCE_1_1(kDLFloat8_e4m3fnuz, 11), 8, "float8_e4m3fnuz"},
    {DLPACK_PY_FLOAT8_E5M2, SINCE_1_1(kDLFloat8_e5m2, 12), 8, "float8_e5m2"},
    {DLPACK_PY_FLOAT8_E5M2FNUZ, SINCE_1_1(kDLFloat8_e5m2fnuz, 13), 8, "float8_e5m2fnuz"},
    {DLPACK_PY_FLOAT8_E8M0FNU, SINCE_1_1(kDLFloat8_e8m0fnu, 14), 8, "float8_e8m0fnu"},
    {DLPACK_PY_FLOAT6_E2M3FN, SINCE_1_1(kDLFloat6_e2m3fn, 15), 6, "float6_e2m3fn"},
    {DLPACK_PY_FLOAT6_E3M2FN, SINCE_1_1(kDLFloat6_e3m2fn, 16), 6, "float6_e3m2fn"},
    {DLPACK_PY_FLOAT4_E2M1FN, SINCE_1_1(kDLFloat4_e2m1fn, 17), 4, "float4_e2m1fn"},
    {DLPACK_PY_BCOMPLEX32, 18, 32, "bcomplex32"}, /* kDLBcomplex comes after 1.3 */
    {DLPACK_PY_OPAQUE_HANDLE64, kDLOpaqueHandle, 64, "handle64"},
};

static void
every_dtype_is_what_dlpack_h_says_and_has_its_text_D6_D7(void)
{
    char text[DLPACK_PY_TEXT_SIZE];
    int i;
    for (i = 0; i < COUNT(dtypes); i++) {
        const DLDataType d = dlpack_py_cpu_tensor(NULL, dtypes[i].dtype, 0, NULL, NULL).dtype;
        const DLTensor t = dlpack_py_cpu_tensor(NULL, dtypes[i].dtype, 0, NULL, NULL);
        CHECK_NUMBER(d.code, dtypes[i].code);
        CHECK_NUMBER(d.bits, dtypes[i].bits);
        CHECK_NUMBER(d.lanes, 1);
        CHECK_NUMBER(dlpack_py_dtype(&t), dtypes[i].dtype);
        CHECK_NUMBER(dlp_check_dtype(d, NULL), 0);
        CHECK(strcmp(dlpack_py_dtype_text(dtypes[i].dtype, text), dtypes[i].text) == 0);
    }
}

static void
a_dtype_may_be_a_case_of_a_switch_D7(void)
{
    const DLTensor t = dlpack_py_cpu_tensor(NULL, DLPACK_PY_FLOAT32, 0, NULL, NULL);
    switch (dlpack_py_dtype(&t)) {
    case DLPACK_PY_FLOAT32: break;
    case DLPACK_PY_FLOAT64:
    default: CHECK(0);
    }
}

static const struct {
    int type, cpu_readable;
    const char *text;
} devices[] = {
    {kDLCPU, 1, "cpu"},
    {kDLCUDA, 0, "cuda:0"},
    {kDLCUDAHost, 1, "cuda_host"},
    {kDLOpenCL, 0, "opencl:0"},
    {kDLVulkan, 0, "vulkan:0"},
    {kDLMetal, 0, "metal:0"},
    {kDLVPI, 0, "vpi:0"},
    {kDLROCM, 0, "rocm:0"},
    {kDLROCMHost, 1, "rocm_host"},
    {kDLExtDev, 0, "ext_dev:0"},
    {kDLCUDAManaged, 1, "cuda_managed"},
    {kDLOneAPI, 0, "oneapi:0"},
    {kDLWebGPU, 0, "webgpu:0"},
    {kDLHexagon, 0, "hexagon:0"},
    {kDLMAIA, 0, "maia:0"},
    {SINCE_1_2(kDLTrn, 18), 0, "trn:0"},
    {19, 0, "tpu:0"}, /* kDLTPU, kDLTPUHost and kDLAscend came after dlpack.h 1.3 */
    {20, 1, "tpu_host"},
    {21, 0, "ascend:0"},
};

static void
every_device_is_what_dlpack_h_says_and_has_its_text_C5_D9(void)
{
    char text[DLPACK_PY_TEXT_SIZE];
    int i;
    for (i = 0; i < COUNT(devices); i++) {
        const DLDevice device = dlp_make_device(devices[i].type, 0);
        CHECK(strcmp(dlpack_py_device_text(device, text), devices[i].text) == 0);
        CHECK_NUMBER(dlpack_py_is_cpu_readable(device), devices[i].cpu_readable);
    }
}

static void
flags_are_those_of_dlpack_h_and_keep_all_bits_in_a_complement_C8(void)
{
    CHECK(DLPACK_PY_FLAG_READ_ONLY == DLPACK_FLAG_BITMASK_READ_ONLY);
    CHECK(DLPACK_PY_FLAG_IS_COPIED == DLPACK_FLAG_BITMASK_IS_COPIED);
    CHECK(DLPACK_PY_FLAG_IS_SUBBYTE_TYPE_PADDED == SINCE_1_1(DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED, 4));
    CHECK(~DLPACK_PY_FLAG_READ_ONLY >> 63 == 1 && ~DLPACK_PY_FLAG_IS_COPIED >> 63 == 1);
    CHECK(~DLPACK_PY_FLAG_IS_SUBBYTE_TYPE_PADDED >> 63 == 1);
}

int
main(void)
{
    every_dtype_is_what_dlpack_h_says_and_has_its_text_D6_D7();
    a_dtype_may_be_a_case_of_a_switch_D7();
    every_device_is_what_dlpack_h_says_and_has_its_text_C5_D9();
    flags_are_those_of_dlpack_h_and_keep_all_bits_in_a_complement_C8();
    return check_failures != 0;
}
