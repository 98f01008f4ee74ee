/* calls_tvm - the calls of calls.c, by apache-tvm-ffi: tvm_ffi.load_module makes Python functions of these */
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>

#include <cstdlib>

using tvm::ffi::Tensor;
using tvm::ffi::TensorView;

static void
check_any_rank(const TensorView &t)
{
    TVM_FFI_CHECK(t.dtype().code == kDLFloat && t.dtype().bits == 64 && t.dtype().lanes == 1, TypeError)
        << "float64 was asked for";
    TVM_FFI_CHECK(t.device().device_type == kDLCPU, ValueError) << "CPU memory was asked for";
    TVM_FFI_CHECK(t.IsContiguous(), ValueError) << "a row-major tensor was asked for";
}

static void
check(const TensorView &t)
{
    TVM_FFI_CHECK_EQ(t.ndim(), 2, ValueError) << "rank 2 was asked for";
    check_any_rank(t);
}

static void
consume(TensorView a)
{
    check(a);
}

/* Owns the tensor, like a function that keeps its argument. */
static void
consume_owned(Tensor a)
{
    check(a);
}

static void
consume_two(TensorView a, TensorView b)
{
    check(a);
    check(b);
}

static void
consume_three(TensorView a, TensorView b, TensorView c)
{
    check(a);
    check(b);
    check(c);
}

static void
consume_four(TensorView a, TensorView b, TensorView c, TensorView d)
{
    check(a);
    check(b);
    check(c);
    check(d);
}

struct Memory {
    void AllocData(DLTensor *t)
    {
        t->data = std::malloc(tvm::ffi::GetDataSize(*t));
    }
    void FreeData(DLTensor *t)
    {
        std::free(t->data);
    }
};

static Tensor
make()
{
    return Tensor::FromNDAlloc(Memory(), {3, 4}, DLDataType{kDLFloat, 64, 1}, DLDevice{kDLCPU, 0});
}

/* A new array of the library of like, in memory that the library allocates. */
static Tensor
make_like(TensorView like)
{
    return Tensor::FromEnvAlloc(TVMFFIEnvTensorAlloc, {3, 4}, like.dtype(), like.device());
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(consume, consume);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(consume_owned, consume_owned);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(consume_any_rank, check_any_rank);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(consume_two, consume_two);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(consume_three, consume_three);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(consume_four, consume_four);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(make, make);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(make_like, make_like);
