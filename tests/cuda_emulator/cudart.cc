// A stand-in for CUDA's runtime, libcudart.so.13, over that for the driver: NVIDIA's own asks the driver for tables
// that aren't documented. It has what TVM's runtime uses.
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstring>

namespace {

thread_local cudaError_t last = cudaSuccess;

// Their numbers are the same.
cudaError_t as_error(CUresult result) {
  if (result) last = static_cast<cudaError_t>(result);
  return static_cast<cudaError_t>(result);
}

// The runtime initialises the driver with the first call that needs it.
CUresult initialised() {
  static CUresult result = cuInit(0);
  return result;
}

template <class Call>
cudaError_t after_init(Call call) {
  CUresult result = initialised();
  return as_error(result ? result : call());
}

CUdeviceptr address(const void* pointer) { return reinterpret_cast<CUdeviceptr>(pointer); }

}  // namespace

extern "C" {

cudaError_t CUDARTAPI cudaGetDeviceCount(int* count) {
  return after_init([=] { return cuDeviceGetCount(count); });
}

cudaError_t CUDARTAPI cudaGetDevice(int* device) {
  return after_init([=] { return *device = 0, CUDA_SUCCESS; });
}

cudaError_t CUDARTAPI cudaSetDevice(int device) {
  return after_init([=] { return device ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS; });
}

cudaError_t CUDARTAPI cudaDriverGetVersion(int* version) { return as_error(cuDriverGetVersion(version)); }

cudaError_t CUDARTAPI cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  return after_init([=] { return cuDeviceGetAttribute(value, static_cast<CUdevice_attribute>(attribute), device); });
}

cudaError_t CUDARTAPI cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  std::memset(properties, 0, sizeof(*properties));
  return after_init([=] {
    cuDeviceGetName(properties->name, sizeof(properties->name), device);
    return cuDeviceTotalMem(&properties->totalGlobalMem, device);
  });
}

cudaError_t CUDARTAPI cudaMemGetInfo(size_t* free_bytes, size_t* total) {
  return after_init([=] { return cuMemGetInfo(free_bytes, total); });
}

cudaError_t CUDARTAPI cudaMalloc(void** pointer, size_t bytes) {
  return after_init([=] { return cuMemAlloc(reinterpret_cast<CUdeviceptr*>(pointer), bytes); });
}

cudaError_t CUDARTAPI cudaFree(void* pointer) {
  return after_init([=] { return pointer ? cuMemFree(address(pointer)) : CUDA_SUCCESS; });
}

cudaError_t CUDARTAPI cudaMallocHost(void** pointer, size_t bytes) {
  return after_init([=] { return cuMemAllocHost(pointer, bytes); });
}

cudaError_t CUDARTAPI cudaFreeHost(void* pointer) { return as_error(cuMemFreeHost(pointer)); }

cudaError_t CUDARTAPI cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  return after_init([=] { return cuMemcpyAsync(address(to), address(from), bytes, stream); });
}

cudaError_t CUDARTAPI cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t bytes, cudaStream_t stream) {
  return after_init([=] { return cuMemcpyAsync(address(to), address(from), bytes, stream); });
}

cudaError_t CUDARTAPI cudaStreamCreate(cudaStream_t* stream) {
  return after_init([=] { return cuStreamCreate(stream, 0); });
}

cudaError_t CUDARTAPI cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return after_init([=] { return cuStreamCreate(stream, flags); });
}

cudaError_t CUDARTAPI cudaStreamDestroy(cudaStream_t stream) { return as_error(cuStreamDestroy(stream)); }

cudaError_t CUDARTAPI cudaStreamSynchronize(cudaStream_t stream) { return as_error(cuStreamSynchronize(stream)); }

cudaError_t CUDARTAPI cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
  return as_error(cuStreamWaitEvent(stream, event, flags));
}

cudaError_t CUDARTAPI cudaEventCreate(cudaEvent_t* event) {
  return after_init([=] { return cuEventCreate(event, 0); });
}

cudaError_t CUDARTAPI cudaEventDestroy(cudaEvent_t event) { return as_error(cuEventDestroy(event)); }

cudaError_t CUDARTAPI cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return as_error(cuEventRecord(event, stream));
}

cudaError_t CUDARTAPI cudaEventSynchronize(cudaEvent_t event) { return as_error(cuEventSynchronize(event)); }

cudaError_t CUDARTAPI cudaEventElapsedTime(float* ms, cudaEvent_t start, cudaEvent_t end) {
  return as_error(cuEventElapsedTime(ms, start, end));
}

cudaError_t CUDARTAPI cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  return as_error(cuStreamBeginCapture(stream, static_cast<CUstreamCaptureMode>(mode)));
}

cudaError_t CUDARTAPI cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  return as_error(cuStreamEndCapture(stream, graph));
}

cudaError_t CUDARTAPI cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long flags) {
  return as_error(cuGraphInstantiate(executable, graph, flags));
}

cudaError_t CUDARTAPI cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  return as_error(cuGraphLaunch(executable, stream));
}

cudaError_t CUDARTAPI cudaGraphDestroy(cudaGraph_t graph) { return as_error(cuGraphDestroy(graph)); }

cudaError_t CUDARTAPI cudaGraphExecDestroy(cudaGraphExec_t executable) {
  return as_error(cuGraphExecDestroy(executable));
}

cudaError_t CUDARTAPI cudaGetLastError() {
  cudaError_t error = last;
  return last = cudaSuccess, error;
}

cudaError_t CUDARTAPI cudaPeekAtLastError() { return last; }

const char* CUDARTAPI cudaGetErrorName(cudaError_t error) {
  const char* name;
  cuGetErrorName(static_cast<CUresult>(error), &name);
  return name;
}

const char* CUDARTAPI cudaGetErrorString(cudaError_t error) { return cudaGetErrorName(error); }

}  // extern "C"
