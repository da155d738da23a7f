// What the CUDA C that TVM writes needs on a CPU. device.cc runs its threads.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <initializer_list>
#include <type_traits>

#undef __global__
#undef __shared__
#undef __device__
#undef __launch_bounds__
#undef __forceinline__
#define __global__
#define __device__
#define __grid_constant__
#define __shared__ static
#define __launch_bounds__(...)
#define __forceinline__ inline
#define uint unsigned int
#define uchar unsigned char
#define ushort unsigned short
using std::max;
using std::min;

// Each library of kernels has its own threads and memory.
namespace emulator __attribute__((visibility("hidden"))) {

constexpr int kMaxThreads = 1024;
constexpr size_t kSharedBytes = 227 << 10;  // the limit of a block on all GPUs
enum State { kReady, kAtBarrier, kDone };
enum Status {
  kOk,
  kTooManyThreads,
  kDivergedAtBarrier,
  kMisaligned,
  kUnknownInstruction,
  kUnfenced,
  kOutsideOfSharedMemory,
  kChangedInFlight,
  kFetchInFlight,
  kNeverArrives,
  kMisalignedTile,
  kUnknownMap
};

extern dim3 thread_index, block_index, block_size;
extern int running;  // the number of the thread that runs, within its block
extern uint64_t slots[kMaxThreads];  // what each thread gives to the others
alignas(1024) extern char shared_memory[kSharedBytes];  // addresses of shared memory count from here

// Runs a kernel. With a seed, its threads run in another order.
Status launch(dim3 grid, dim3 block, void (*kernel)(), int seed);

// Lets other threads run: until all are at the barrier, or until it is this thread's turn again.
void leave(State state);

inline int warp_start() { return running / 32 * 32; }
inline int lane() { return running % 32; }

// Asynchronous copies take place as late as they may: when the thread waits for them.
void copy_later(void* target, const void* source, size_t bytes);
void commit_copies();
void await_copies(size_t but);

// Every thread gives a value, then reads that of thread `source`.
template <class T>
T exchange(T value, int source) {
  std::memcpy(&slots[running], &value, sizeof(T));
  leave(kReady);
  T result;
  std::memcpy(&result, &slots[source], sizeof(T));
  leave(kReady);
  return result;
}

}  // namespace emulator

#define threadIdx (emulator::thread_index)
#define blockIdx (emulator::block_index)
#define blockDim (emulator::block_size)

// The infinities of math_constants.h are written as bits.
static inline float __int_as_float(int bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
static inline double __longlong_as_double(long long bits) {
  double value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
static inline void __syncthreads() { emulator::leave(emulator::kAtBarrier); }
static inline void __syncwarp(unsigned = 0) { emulator::leave(emulator::kReady); }
static inline unsigned __activemask() { return 0xffffffffu; }

template <class T>
T __shfl_sync(unsigned, T value, int source, int width = 32) {
  int first = emulator::warp_start() + emulator::lane() / width * width;
  return emulator::exchange(value, first + source % width);
}
template <class T>
T __shfl_down_sync(unsigned, T value, unsigned distance, int width = 32) {
  int lane = emulator::lane();
  bool inside = lane % width + int(distance) < width;
  return emulator::exchange(value, emulator::warp_start() + (inside ? lane + distance : lane));
}
template <class T>
T __shfl_up_sync(unsigned, T value, unsigned distance, int width = 32) {
  int lane = emulator::lane();
  bool inside = lane % width >= int(distance);
  return emulator::exchange(value, emulator::warp_start() + (inside ? lane - distance : lane));
}
template <class T>
T __shfl_xor_sync(unsigned, T value, int mask, int = 32) {
  return emulator::exchange(value, emulator::warp_start() + (emulator::lane() ^ mask));
}

// Half floats have no such functions on the host.
#define HALF_FUNCTION(name, function)                                           \
  static inline half name(half x) { return half(function(float(x))); }          \
  static inline __nv_bfloat16 name(__nv_bfloat16 x) { return __nv_bfloat16(function(float(x))); }
HALF_FUNCTION(hexp, expf)
HALF_FUNCTION(hexp2, exp2f)
HALF_FUNCTION(hlog, logf)
HALF_FUNCTION(hlog2, log2f)
HALF_FUNCTION(hsqrt, sqrtf)
HALF_FUNCTION(hsin, sinf)
HALF_FUNCTION(hcos, cosf)
HALF_FUNCTION(hfloor, floorf)
HALF_FUNCTION(hceil, ceilf)

#define __expf expf
#define __logf logf
#define __powf powf
#define __cosf cosf
#define __sinf sinf
#define __tanf tanf
#define rsqrtf(x) (1.0f / sqrtf(x))
#define __fdividef(x, y) ((x) / (y))
template <class T>
T __ldg(const T* pointer) {
  return *pointer;
}

// Instructions that kernels have as PTX. All lanes of a warp execute one together.
namespace emulator {

struct Operand {
  void* place;  // null for an input
  uint64_t value;
};

template <class T>
Operand output(T& place) {
  static_assert(sizeof(T) == 4, "registers have four bytes");
  Operand operand{&place, 0};
  std::memcpy(&operand.value, &place, 4);
  return operand;
}

template <class T>
Operand input(const T& value) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "registers have four bytes, pairs of them eight");
  Operand operand{nullptr, 0};
  std::memcpy(&operand.value, &value, sizeof(T));
  return operand;
}

class Parsed;

class Instruction {
 public:
  explicit Instruction(const char* text);
  void execute(std::initializer_list<Operand> operands) const;

 private:
  const Parsed* parsed_;  // for as long as the library is loaded
};

}  // namespace emulator

static inline unsigned __cvta_generic_to_shared(const void* pointer) {
  return unsigned((const char*)pointer - emulator::shared_memory);
}
static inline unsigned __float_as_uint(float value) { return emulator::input(value).value; }
