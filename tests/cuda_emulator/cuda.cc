// A stand-in for NVIDIA's driver, libcuda.so.1, for machines without a GPU. THE TIMES THAT IT GIVES MEAN NOTHING.
//
// It has the part of the driver's interface that TVM's runtime uses, over one device. A module is a cubin that the
// nvcc beside this file made: machine code for a GPU, followed by the same kernels compiled for this CPU, which run
// under device.h. Work is done when it is submitted, in the calling thread.
//
// The file `behaviour` beside the library is read once, when the driver is initialised. Each line says what happens
// at a call of this process and at all later ones:
//
//     launch 3 700      the third launch fails with CUDA_ERROR_ILLEGAL_ADDRESS, and so does everything after it
//     launch 2 hang     the second launch never ends
//     launch 2 skip     kernels do nothing from the second launch on: what they should write is never written
//     launch 2 wait     from the second launch on, kernels wait while the file `wait` lies beside the library
//     alloc 5 2         the fifth allocation fails with CUDA_ERROR_OUT_OF_MEMORY
//     init 1 100        there is no device
#include <cuda.h>
#include <dlfcn.h>
#include <elf.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <functional>
#include <map>
#include <mutex>
#include <sstream>
#include <string>
#include <vector>

#include "tensor_map.h"

namespace {

constexpr size_t kMemoryBytes = 1ull << 30;
constexpr unsigned kCapability = 80, kMultiprocessors = 4;
constexpr char kName[] = "stand-in for a GPU: its times mean nothing";

std::recursive_mutex mutex;
CUresult lost = CUDA_SUCCESS;  // an error that no call of this process gets over
size_t memory_used = 0;
std::map<CUdeviceptr, size_t> allocated;

struct Fault {
  int count = 0;  // calls until it happens
  CUresult error = CUDA_SUCCESS;
  bool hangs = false, skips = false, waits = false;
};
std::map<std::string, Fault> faults;

std::string beside_library(const char* name) {
  Dl_info found;
  dladdr(reinterpret_cast<void*>(&beside_library), &found);
  std::string path = found.dli_fname;
  return path.substr(0, path.rfind('/') + 1) + name;
}

void read_behaviour() {
  std::ifstream file(beside_library("behaviour"));
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string call, effect;
    Fault fault;
    words >> call >> fault.count >> effect;
    fault.hangs = effect == "hang";
    fault.skips = effect == "skip";
    fault.waits = effect == "wait";
    fault.error = static_cast<CUresult>(std::atoi(effect.c_str()));
    faults[call] = fault;
  }
}

// What goes wrong with this call of a kind.
CUresult fault_at(const std::string& call, bool* skips = nullptr) {
  auto found = faults.find(call);
  if (found == faults.end() || --found->second.count > 0) return CUDA_SUCCESS;
  const Fault& fault = found->second;
  while (fault.hangs) pause();
  static const std::string barrier = beside_library("wait");
  while (fault.waits && access(barrier.c_str(), F_OK) == 0) usleep(10000);
  if (skips) *skips = fault.skips;
  if (fault.error != CUDA_SUCCESS && fault.error != CUDA_ERROR_OUT_OF_MEMORY) lost = fault.error;
  return fault.error;
}

}  // namespace

struct CUmod_st {
  void* library = nullptr;
  std::map<std::string, CUfunc_st*> functions;
};
struct CUfunc_st {
  int (*emulate)(void**, const unsigned*, const unsigned*, int);
  const size_t* sizes;
};
struct CUevent_st {
  double ms = 0;
};
struct CUgraph_st {
  std::vector<std::function<CUresult()>> work;
};
struct CUgraphExec_st {
  CUgraph_st graph;
};
struct CUstream_st {
  CUgraph capturing = nullptr;
};

namespace {

CUstream_st default_stream;

// Does the work of a stream now, or notes it in the graph that captures the stream.
CUresult submit(CUstream stream, std::function<CUresult()> work) {
  if (lost) return lost;
  CUstream_st* on = stream && stream != CU_STREAM_LEGACY && stream != CU_STREAM_PER_THREAD ? stream : &default_stream;
  if (!on->capturing) return work();
  on->capturing->work.push_back(std::move(work));
  return CUDA_SUCCESS;
}

size_t elf_bytes(const unsigned char* image) {
  const auto* header = reinterpret_cast<const Elf64_Ehdr*>(image);
  size_t sections = header->e_shoff + size_t(header->e_shnum) * header->e_shentsize;
  size_t segments = header->e_phoff + size_t(header->e_phnum) * header->e_phentsize;
  return std::max(sections, segments);
}

CUresult run(CUfunction function, void** arguments, const unsigned* grid, const unsigned* block) {
  bool skips = false;
  if (CUresult error = fault_at("launch", &skips)) return error;
  if (skips) return CUDA_SUCCESS;
  switch (function->emulate(arguments, grid, block, 0)) {
    case 0: return CUDA_SUCCESS;
    case 1: return CUDA_ERROR_INVALID_VALUE;  // more threads than a block may have
    default: return lost = CUDA_ERROR_LAUNCH_FAILED;  // threads part at a barrier
  }
}

}  // namespace

extern "C" {

CUresult CUDAAPI cuInit(unsigned) {
  std::lock_guard<std::recursive_mutex> guard(mutex);
  static bool is_first = true;
  if (is_first) read_behaviour();
  is_first = false;
  return lost ? lost : fault_at("init");
}

CUresult CUDAAPI cuDriverGetVersion(int* version) { return *version = CUDA_VERSION, CUDA_SUCCESS; }

CUresult CUDAAPI cuDeviceGetCount(int* count) { return *count = 1, lost; }

CUresult CUDAAPI cuDeviceGet(CUdevice* device, int ordinal) {
  if (ordinal) return CUDA_ERROR_INVALID_DEVICE;
  return *device = 0, lost;
}

CUresult CUDAAPI cuDeviceGetName(char* name, int length, CUdevice) {
  std::snprintf(name, length, "%s", kName);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceTotalMem(size_t* bytes, CUdevice) { return *bytes = kMemoryBytes, lost; }

CUresult CUDAAPI cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice) {
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = 1024; break;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X:
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y: *value = 1024; break;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z: *value = 64; break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK: *value = 48 << 10; break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: *value = 163 << 10; break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR: *value = 164 << 10; break;
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE: *value = 32; break;
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK:
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR: *value = 64 << 10; break;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR: *value = 2048; break;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR: *value = 32; break;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *value = kMultiprocessors; break;
    case CU_DEVICE_ATTRIBUTE_CLOCK_RATE: *value = 1410000; break;
    case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE: *value = 1 << 20; break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = kCapability / 10; break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: *value = kCapability % 10; break;
    default: *value = 0;
  }
  return lost;
}

CUresult CUDAAPI cuGetErrorName(CUresult error, const char** name) {
  static const std::map<int, const char*> names = {
      {0, "CUDA_SUCCESS"}, {2, "CUDA_ERROR_OUT_OF_MEMORY"}, {100, "CUDA_ERROR_NO_DEVICE"},
      {209, "CUDA_ERROR_NO_BINARY_FOR_GPU"}, {214, "CUDA_ERROR_ECC_UNCORRECTABLE"}, {500, "CUDA_ERROR_NOT_FOUND"},
      {700, "CUDA_ERROR_ILLEGAL_ADDRESS"}, {701, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"},
      {719, "CUDA_ERROR_LAUNCH_FAILED"}, {999, "CUDA_ERROR_UNKNOWN"}};
  auto found = names.find(error);
  return *name = found == names.end() ? "CUDA_ERROR_OF_THE_STAND_IN" : found->second, CUDA_SUCCESS;
}

CUresult CUDAAPI cuGetErrorString(CUresult error, const char** text) { return cuGetErrorName(error, text); }

// Memory: that of this process.

CUresult CUDAAPI cuMemGetInfo(size_t* free_bytes, size_t* total) {
  return *total = kMemoryBytes, *free_bytes = kMemoryBytes - memory_used, lost;
}

CUresult CUDAAPI cuMemAlloc(CUdeviceptr* address, size_t bytes) {
  std::lock_guard<std::recursive_mutex> guard(mutex);
  if (lost) return lost;
  if (CUresult error = fault_at("alloc")) return error;
  if (memory_used + bytes > kMemoryBytes) return CUDA_ERROR_OUT_OF_MEMORY;
  *address = reinterpret_cast<CUdeviceptr>(std::aligned_alloc(256, (bytes + 255) / 256 * 256));
  memory_used += allocated[*address] = bytes;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemFree(CUdeviceptr address) {
  std::lock_guard<std::recursive_mutex> guard(mutex);
  auto found = allocated.find(address);
  if (found == allocated.end()) return CUDA_ERROR_INVALID_VALUE;
  memory_used -= found->second;
  allocated.erase(found);
  std::free(reinterpret_cast<void*>(address));
  return lost;
}

CUresult CUDAAPI cuMemAllocHost(void** address, size_t bytes) { return *address = std::malloc(bytes), lost; }

CUresult CUDAAPI cuMemFreeHost(void* address) { return std::free(address), lost; }

CUresult CUDAAPI cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return submit(stream, [=] {
    std::memmove(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes);
    return CUDA_SUCCESS;
  });
}

// Modules: the code for this CPU stands behind the machine code for the GPU.

CUresult CUDAAPI cuModuleLoadData(CUmodule* module, const void* image) {
  if (lost) return lost;
  const auto* bytes = static_cast<const unsigned char*>(image);
  // The nvcc of the stand-in marks what it makes in the last byte of ELF's identification, which nobody else uses.
  if (std::memcmp(bytes, ELFMAG, SELFMAG) || bytes[EI_NIDENT - 1] != 'E') return CUDA_ERROR_NO_BINARY_FOR_GPU;
  const unsigned char* behind = bytes + elf_bytes(bytes);
  unsigned long long size;
  std::memcpy(&size, behind, sizeof(size));
  // A child without a real driver may have no files in memory.
  const char* folder = std::getenv("TMPDIR");
  std::string path = std::string(folder ? folder : "/tmp") + "/kernels-XXXXXX";
  int file = mkstemp(path.data());
  if (file < 0) return CUDA_ERROR_OUT_OF_MEMORY;
  bool written = write(file, behind + sizeof(size), size) == static_cast<ssize_t>(size);
  close(file);
  void* library = written ? dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL) : nullptr;
  unlink(path.c_str());
  if (!written) return CUDA_ERROR_OUT_OF_MEMORY;
  if (!library) {
    std::fprintf(stderr, "the stand-in can't load a module: %s\n", dlerror());
    return CUDA_ERROR_INVALID_IMAGE;
  }
  *module = new CUmod_st{library};
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuModuleUnload(CUmodule module) {
  for (auto& [name, function] : module->functions) delete function;
  dlclose(module->library);
  delete module;
  return lost;
}

CUresult CUDAAPI cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
  std::lock_guard<std::recursive_mutex> guard(mutex);
  CUfunc_st*& found = module->functions[name];
  if (!found) {
    auto symbol = [&](const char* prefix) { return dlsym(module->library, (prefix + std::string(name)).c_str()); };
    if (!symbol("emulate_")) return CUDA_ERROR_NOT_FOUND;
    found = new CUfunc_st;
    found->emulate = reinterpret_cast<decltype(found->emulate)>(symbol("emulate_"));
    found->sizes = static_cast<const size_t*>(symbol("sizes_"));
  }
  return *function = found, lost;
}

CUresult CUDAAPI cuFuncSetAttribute(CUfunction, CUfunction_attribute, int) { return lost; }

CUresult CUDAAPI cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction function, void** arguments, void**) {
  std::lock_guard<std::recursive_mutex> guard(mutex);
  std::vector<std::vector<char>> copies;  // a graph is launched when the caller's values are gone
  for (const size_t* size = function->sizes; *size; ++size) {
    const char* value = static_cast<const char*>(arguments[copies.size()]);
    copies.emplace_back(value, value + *size);
  }
  std::vector<unsigned> grid = {config->gridDimX, config->gridDimY, config->gridDimZ};
  std::vector<unsigned> block = {config->blockDimX, config->blockDimY, config->blockDimZ};
  return submit(config->hStream, [=]() mutable {
    std::vector<void*> values;
    for (auto& copy : copies) values.push_back(copy.data());
    return run(function, values.data(), grid.data(), block.data());
  });
}

// Maps of three dimensions, with elements of 8 or 16 bits, swizzled by 128 bytes. Refuses what NVIDIA's driver refuses.
CUresult CUDAAPI cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address,
                                        const cuuint64_t* extents, const cuuint64_t* strides, const cuuint32_t* box,
                                        const cuuint32_t* steps, CUtensorMapInterleave interleave,
                                        CUtensorMapSwizzle swizzle, CUtensorMapL2promotion,
                                        CUtensorMapFloatOOBfill fill) {
  bool is_half = type == CU_TENSOR_MAP_DATA_TYPE_FLOAT16 || type == CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  if ((!is_half && type != CU_TENSOR_MAP_DATA_TYPE_UINT8) || rank != 3 || interleave || fill || swizzle != CU_TENSOR_MAP_SWIZZLE_128B)
    return CUDA_ERROR_NOT_SUPPORTED;
  emulator::EncodedMap encoded{emulator::kTensorMap, reinterpret_cast<uint64_t>(address), {}, {}, {}, is_half ? 2u : 1u};
  if (reinterpret_cast<uint64_t>(map) % 64 || encoded.address % 16) return CUDA_ERROR_INVALID_VALUE;
  for (int i = 0; i < 3; ++i) {
    if (!extents[i] || !box[i] || box[i] > 256 || steps[i] != 1) return CUDA_ERROR_INVALID_VALUE;
    encoded.extents[i] = extents[i];
    encoded.box[i] = box[i];
    if (i == 2) break;
    if (strides[i] % 16) return CUDA_ERROR_INVALID_VALUE;
    encoded.strides[i] = strides[i];
  }
  if (box[0] * encoded.item_bytes > 128) return CUDA_ERROR_INVALID_VALUE;
  std::memcpy(map, &encoded, sizeof(encoded));
  return lost;
}

// Streams, events and graphs.

CUresult CUDAAPI cuStreamCreate(CUstream* stream, unsigned) { return *stream = new CUstream_st, lost; }

CUresult CUDAAPI cuStreamDestroy(CUstream stream) { return delete stream, lost; }

CUresult CUDAAPI cuStreamSynchronize(CUstream) { return lost; }

CUresult CUDAAPI cuStreamWaitEvent(CUstream, CUevent, unsigned) { return lost; }

CUresult CUDAAPI cuEventCreate(CUevent* event, unsigned) { return *event = new CUevent_st, lost; }

CUresult CUDAAPI cuEventDestroy(CUevent event) { return delete event, lost; }

CUresult CUDAAPI cuEventRecord(CUevent event, CUstream stream) {
  return submit(stream, [=] {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    event->ms = now.tv_sec * 1e3 + now.tv_nsec / 1e6;
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuEventSynchronize(CUevent) { return lost; }

CUresult CUDAAPI cuEventElapsedTime(float* ms, CUevent start, CUevent end) {
  return *ms = static_cast<float>(end->ms - start->ms), lost;
}

CUresult CUDAAPI cuStreamBeginCapture(CUstream stream, CUstreamCaptureMode) {
  return stream->capturing = new CUgraph_st, lost;
}

CUresult CUDAAPI cuStreamEndCapture(CUstream stream, CUgraph* graph) {
  *graph = stream->capturing;
  stream->capturing = nullptr;
  return lost;
}

CUresult CUDAAPI cuGraphInstantiate(CUgraphExec* executable, CUgraph graph, unsigned long long) {
  return *executable = new CUgraphExec_st{*graph}, lost;
}

CUresult CUDAAPI cuGraphLaunch(CUgraphExec executable, CUstream stream) {
  for (auto& work : executable->graph.work)
    if (CUresult error = submit(stream, work)) return error;
  return lost;
}

CUresult CUDAAPI cuGraphDestroy(CUgraph graph) { return delete graph, lost; }

CUresult CUDAAPI cuGraphExecDestroy(CUgraphExec executable) { return delete executable, lost; }

}  // extern "C"
