// Runs the CUDA C that TVM writes on a CPU: a fiber for each thread, one block at a time.
//
// Threads run until they come to a barrier or exchange values with other lanes. `launch` runs them in the order
// of their numbers or, with a seed, shuffled, so that a missing barrier shows in the results.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <deque>
#include <memory>
#include <numeric>
#include <type_traits>
#include <ucontext.h>
#include <vector>

#undef __global__
#undef __shared__
#undef __device__
#undef __launch_bounds__
#undef __forceinline__
#define __global__
#define __device__
#define __shared__ static
#define __launch_bounds__(...)
#define __forceinline__ inline
#define uint unsigned int
#define uchar unsigned char
#define ushort unsigned short
using std::max;
using std::min;

namespace emulator {

constexpr int kMaxThreads = 1024;
constexpr size_t kStackBytes = 256 << 10;
enum State { kReady, kAtBarrier, kDone };
enum Status { kOk, kTooManyThreads, kDivergedAtBarrier };

struct Copy {
  void* target;
  const void* source;
  size_t bytes;
};

struct Fiber {
  // Groups of copies that were begun and not waited for; the last one isn't complete.
  std::deque<std::vector<Copy>> copies;
  ucontext_t context;
  std::unique_ptr<char[]> stack;
  State state;
  dim3 index;
};

static ucontext_t scheduler;
static std::vector<Fiber> fibers;
static int running;  // the number of the thread that runs, within its block
static uint64_t slots[kMaxThreads];  // what each thread gives to the others
static void (*body)();
static dim3 thread_index, block_index, block_size;

static void leave(State state) {
  fibers[running].state = state;
  swapcontext(&fibers[running].context, &scheduler);
}

static void enter() {
  body();
  leave(kDone);
}

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

// Asynchronous copies take place as late as they may: when the thread waits for them.
static void copy_later(void* target, const void* source, size_t bytes) {
  fibers[running].copies.back().push_back({target, source, bytes});
}

static void commit_copies() { fibers[running].copies.emplace_back(); }

static void await_copies(size_t but) {
  auto& copies = fibers[running].copies;
  for (; copies.size() > but + 1; copies.pop_front())
    for (auto& copy : copies.front()) std::memcpy(copy.target, copy.source, copy.bytes);
}

static void prepare(Fiber& fiber, int number) {
  if (!fiber.stack) fiber.stack.reset(new char[kStackBytes]);
  fiber.state = kReady;
  fiber.copies.assign(1, {});
  fiber.index = dim3(number % block_size.x, number / block_size.x % block_size.y,
                     number / (block_size.x * block_size.y));
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = fiber.stack.get();
  fiber.context.uc_stack.ss_size = kStackBytes;
  fiber.context.uc_link = &scheduler;
  makecontext(&fiber.context, enter, 0);
}

static void run_ready(const std::vector<int>& order) {
  for (int number : order) {
    if (fibers[number].state != kReady) continue;
    running = number;
    thread_index = fibers[number].index;
    swapcontext(&scheduler, &fibers[number].context);
  }
}

static Status run_block(const std::vector<int>& order) {
  int count = order.size();
  for (int number = 0; number < count; ++number) prepare(fibers[number], number);
  for (;;) {
    run_ready(order);
    int waiting = 0, done = 0;
    for (int number = 0; number < count; ++number) {
      waiting += fibers[number].state == kAtBarrier;
      done += fibers[number].state == kDone;
    }
    if (done == count) return kOk;
    if (waiting == count) {
      for (int number = 0; number < count; ++number) fibers[number].state = kReady;
    } else if (waiting + done == count) {
      return kDivergedAtBarrier;
    }
  }
}

static Status launch(dim3 grid, dim3 block, void (*kernel)(), int seed) {
  int count = block.x * block.y * block.z;
  if (count > kMaxThreads) return kTooManyThreads;
  if (fibers.empty()) fibers.resize(kMaxThreads);
  body = kernel;
  block_size = block;
  std::vector<int> order(count);
  for (int number = 0; number < count; ++number) order[number] = number;
  std::srand(seed);
  for (int number = count - 1; seed && number > 0; --number)
    std::swap(order[number], order[std::rand() % (number + 1)]);
  for (unsigned z = 0; z < grid.z; ++z)
    for (unsigned y = 0; y < grid.y; ++y)
      for (unsigned x = 0; x < grid.x; ++x) {
        block_index = dim3(x, y, z);
        Status status = run_block(order);
        if (status != kOk) return status;
      }
  return kOk;
}

static int warp_start() { return running / 32 * 32; }
static int lane() { return running % 32; }

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

// Matrix fragments. Every thread of a warp holds a whole one, and computes it by itself.
namespace nvcuda {
namespace wmma {

struct row_major {};
struct col_major {};
struct matrix_a {};
struct matrix_b {};
struct accumulator {};
enum layout_t { mem_row_major, mem_col_major };

// float32 whose last 13 bits of fraction are 0. CUDA keeps it as float, too.
namespace precision {
struct tf32;
}

template <class T>
struct stored {
  typedef T type;
};
template <>
struct stored<precision::tf32> {
  typedef float type;
};

static inline float __float_to_tf32(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  bits = (bits + 0x1000) & 0xffffe000;
  std::memcpy(&value, &bits, 4);
  return value;
}

template <class Kind, int M, int N, int K, class T, class Layout = void>
struct fragment {
  typedef T type;
  static constexpr int rows = std::is_same<Kind, matrix_b>::value ? K : M;
  static constexpr int columns = std::is_same<Kind, matrix_a>::value ? K : N;
  static constexpr int num_elements = rows * columns;
  typename stored<T>::type x[num_elements];
};

// What tensor cores make of values that weren't rounded to TF32 isn't defined.
template <class Fragment>
double factor(const Fragment& fragment, int i) {
  float value = float(fragment.x[i]);
  bool in_tf32 = std::is_same<typename Fragment::type, precision::tf32>::value;
  return in_tf32 && __float_to_tf32(value) != value ? NAN : value;
}

template <class Kind, int M, int N, int K, class T, class Layout, class Value>
void fill_fragment(fragment<Kind, M, N, K, T, Layout>& filled, Value value) {
  for (auto& element : filled.x) element = T(value);
}

template <class Kind, int M, int N, int K, class T, class Layout, class Source>
void load_matrix_sync(fragment<Kind, M, N, K, T, Layout>& loaded, const Source* source, unsigned stride) {
  __syncwarp();
  bool by_columns = std::is_same<Layout, col_major>::value;
  for (int i = 0; i < loaded.rows; ++i)
    for (int j = 0; j < loaded.columns; ++j)
      loaded.x[i * loaded.columns + j] =
          typename stored<T>::type(source[by_columns ? j * stride + i : i * stride + j]);
  __syncwarp();
}

// Adds up terms as an H100's tensor cores do: all are aligned to the largest exponent, and what lies more than two
// bits below the last bit of a float32 of that exponent is cut off. The sum is cut off below its own last bit.
static inline float truncating_sum(const double* terms, int count) {
  double largest = 0;
  for (int i = 0; i < count; ++i) {
    if (!std::isfinite(terms[i])) return float(std::accumulate(terms, terms + count, 0.0));
    largest = std::max(largest, std::fabs(terms[i]));
  }
  if (largest == 0) return 0;
  double last_bit = std::ldexp(1.0, std::max(std::ilogb(largest) - 25, -149)), sum = 0;
  for (int i = 0; i < count; ++i) sum += std::trunc(terms[i] / last_bit);
  sum *= last_bit;
  float rounded = float(sum);
  return std::fabs(rounded) > std::fabs(sum) ? std::nextafterf(rounded, 0) : rounded;
}

template <class A, class B, class C, class D>
void mma_sync(D& result, const A& a, const B& b, const C& c) {
  typedef typename std::remove_reference<decltype(result.x[0])>::type Element;
  // The products that are added in one step: an H100 computes a fragment of TF32 in two steps.
  constexpr int kDepth = std::is_same<typename A::type, precision::tf32>::value ? 4 : 8;
  for (int i = 0; i < A::rows; ++i)
    for (int j = 0; j < B::columns; ++j) {
      double terms[kDepth + 1] = {double(c.x[i * B::columns + j])};
      for (int k = 0; k < A::columns; k += kDepth) {
        for (int l = 0; l < kDepth; ++l)
          terms[l + 1] = factor(a, i * A::columns + k + l) * factor(b, (k + l) * B::columns + j);
        bool whole = std::is_integral<Element>::value;
        terms[0] = whole ? std::accumulate(terms, terms + kDepth + 1, 0.0) : truncating_sum(terms, kDepth + 1);
      }
      result.x[i * B::columns + j] = Element(terms[0]);
    }
}

template <class Kind, int M, int N, int K, class T, class Layout, class Target>
void store_matrix_sync(Target* target, const fragment<Kind, M, N, K, T, Layout>& stored, unsigned stride,
                       layout_t layout) {
  __syncwarp();
  for (int i = 0; i < M; ++i)
    for (int j = 0; j < N; ++j)
      target[layout == mem_row_major ? i * stride + j : j * stride + i] = stored.x[i * N + j];
  __syncwarp();
}

}  // namespace wmma
}  // namespace nvcuda
