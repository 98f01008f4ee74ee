/* Included first in a source file: passes each runtime call of dlpack_cuda.h and its result to gpu_called. Not for
 * files with per-thread default streams, where the functions are macros already. */
#ifndef TRACE_H
#define TRACE_H

#include <cuda_runtime_api.h>

#if defined(__cplusplus)
extern "C" {
#endif
cudaError_t
gpu_called(const char *name, cudaError_t error);
#if defined(__cplusplus)
}
#endif

#if !defined(__CUDACC__)
#if CUDART_VERSION < 13000
#undef cudaStreamGetCaptureInfo
#define cudaStreamGetCaptureInfo(...) gpu_called("StreamGetCaptureInfo", cudaStreamGetCaptureInfo_v2(__VA_ARGS__))
#else
#define cudaStreamGetCaptureInfo(...) gpu_called("StreamGetCaptureInfo", cudaStreamGetCaptureInfo(__VA_ARGS__))
#endif
#define cudaEventCreateWithFlags(...) gpu_called("EventCreateWithFlags", cudaEventCreateWithFlags(__VA_ARGS__))
#define cudaEventDestroy(...) gpu_called("EventDestroy", cudaEventDestroy(__VA_ARGS__))
#define cudaEventQuery(...) gpu_called("EventQuery", cudaEventQuery(__VA_ARGS__))
#define cudaEventRecord(...) gpu_called("EventRecord", cudaEventRecord(__VA_ARGS__))
#define cudaFree(...) gpu_called("Free", cudaFree(__VA_ARGS__))
#define cudaFreeAsync(...) gpu_called("FreeAsync", cudaFreeAsync(__VA_ARGS__))
#define cudaGetDevice(...) gpu_called("GetDevice", cudaGetDevice(__VA_ARGS__))
#define cudaGetLastError() gpu_called("GetLastError", cudaGetLastError())
#define cudaMallocAsync(...) gpu_called("MallocAsync", cudaMallocAsync(__VA_ARGS__))
#define cudaMemcpy2DAsync(...) gpu_called("Memcpy2DAsync", cudaMemcpy2DAsync(__VA_ARGS__))
#define cudaMemcpyAsync(...) gpu_called("MemcpyAsync", cudaMemcpyAsync(__VA_ARGS__))
#define cudaSetDevice(...) gpu_called("SetDevice", cudaSetDevice(__VA_ARGS__))
#define cudaStreamIsCapturing(...) gpu_called("StreamIsCapturing", cudaStreamIsCapturing(__VA_ARGS__))
#define cudaStreamQuery(...) gpu_called("StreamQuery", cudaStreamQuery(__VA_ARGS__))
#define cudaStreamSynchronize(...) gpu_called("StreamSynchronize", cudaStreamSynchronize(__VA_ARGS__))
#define cudaStreamWaitEvent(...) gpu_called("StreamWaitEvent", cudaStreamWaitEvent(__VA_ARGS__))
#define cudaThreadExchangeStreamCaptureMode(...) \
    gpu_called("ThreadExchangeStreamCaptureMode", cudaThreadExchangeStreamCaptureMode(__VA_ARGS__))
#endif

#endif /* TRACE_H */
