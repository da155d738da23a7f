// Matrix products of 16 x 16 x K on tensor cores. A warp's registers hold a fragment in the layout of `mma.sync`;
// `ldmatrix` loads it from shared memory. The functions have WMMA's names, because TVM calls WMMA.
//
// K is 16, or 8 for TF32. Lane 4 g + t of a warp holds rows g and g + 8 of the left operand, and columns g and
// g + 8 of the right operand. The sums are two tiles of 8 columns. The lane holds columns 2 t and 2 t + 1 of rows g
// and g + 8 in each.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace tensor_cores {
struct matrix_a;
struct matrix_b;
struct accumulator;
struct row_major;
struct col_major;
enum layout_t { mem_row_major };

// TVM has no TF32 type, so TF32 fragments are declared as half with K = 8.
template <class T, int K>
struct stored {
  typedef T type;
};
template <>
struct stored<half, 8> {
  typedef float type;
};

template <class Use, int M, int N, int K, class T, class Layout = void>
struct fragment {
  static constexpr int bytes = sizeof(typename stored<T, K>::type);
  static constexpr int size = 16 * K * bytes / 4 / 32;
  unsigned x[size];
};
template <int M, int N, int K, class T>
struct fragment<accumulator, M, N, K, T, void> {
  T x[8];
};
template <int M, int N, int K>
struct fragment<accumulator, M, N, K, half, void> {
  unsigned x[4];  // two sums each
};

__device__ inline int lane() { return threadIdx.x % 32; }

__device__ inline unsigned shared_address(const void* pointer) {
  return (unsigned)__cvta_generic_to_shared(pointer);
}

// Each lane passes the address of one row (16 bytes) of the matrices, which have 8 rows each.
__device__ inline void load_matrices(unsigned (&x)[2], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
               : "=r"(x[0]), "=r"(x[1])
               : "r"(shared_address(row)));
}
__device__ inline void load_matrices(unsigned (&x)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(shared_address(row)));
}
__device__ inline void load_transposed(unsigned (&x)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(shared_address(row)));
}

__device__ inline unsigned rounded_to_tf32(unsigned value) {
  unsigned rounded;
  asm volatile("cvt.rna.tf32.f32 %0, %1;" : "=r"(rounded) : "r"(value));
  return rounded;
}

// The result of tensor cores is undefined for float32 values that aren't rounded to TF32.
template <class Fragment>
__device__ inline void round_operand(Fragment& operand) {
  if (operand.bytes == 4)
    for (int i = 0; i < operand.size; ++i) operand.x[i] = rounded_to_tf32(operand.x[i]);
}

template <int M, int N, int K, class T, class Element>
__device__ inline void load_matrix_sync(fragment<matrix_a, M, N, K, T, row_major>& a, const Element* source,
                                        unsigned stride) {
  load_matrices(a.x, source + lane() % 16 * stride + lane() / 16 * (16 / sizeof(Element)));
  round_operand(a);
}

// Loads the right operand stored as [N, K]: its columns are rows in memory.
template <int M, int N, int K, class T, class Element>
__device__ inline void load_matrix_sync(fragment<matrix_b, M, N, K, T, col_major>& b, const Element* source,
                                        unsigned stride) {
  // If a row of K elements has 32 bytes (all types except int8), two matrices lie side by side.
  int row = sizeof(Element) == 1 ? lane() % 16 : lane() % 8 + lane() / 16 * 8;
  int half_row = sizeof(Element) == 1 ? 0 : lane() / 8 % 2;
  load_matrices(b.x, source + row * stride + half_row * (16 / sizeof(Element)));
  round_operand(b);
}

// Loads the right operand stored as [K, N]. `ldmatrix` transposes only 16-bit values.
template <int M, int N, int K, class T>
__device__ inline void load_matrix_sync(fragment<matrix_b, M, N, K, T, row_major>& b, const T* source,
                                        unsigned stride) {
  load_transposed(b.x, source + lane() % 16 * stride + lane() / 16 * 8);
}
template <int M, int N>
__device__ inline void load_matrix_sync(fragment<matrix_b, M, N, 8, half, row_major>& b, const float* source,
                                        unsigned stride) {
  const float* first = source + lane() % 4 * stride + lane() / 4;
  for (int i = 0; i < 4; ++i) b.x[i] = __float_as_uint(first[i % 2 * 4 * stride + i / 2 * 8]);
  round_operand(b);
}
template <int M, int N>
__device__ inline void load_matrix_sync(fragment<matrix_b, M, N, 16, signed char, row_major>& b,
                                        const signed char* source, unsigned stride) {
  const unsigned char* first = (const unsigned char*)source + lane() % 4 * 4 * stride + lane() / 4;
  for (int i = 0; i < 2; ++i) {
    const unsigned char* own = first + i * 8;
    b.x[i] = own[0] | own[stride] << 8 | own[2 * stride] << 16 | (unsigned)own[3 * stride] << 24;
  }
}

// Adds the product of the left operand and 8 columns of the right operand to a tile of 16 x 8 sums.
__device__ inline void multiply(float* c, const unsigned* a, const unsigned* b, half) {
#if __CUDA_ARCH__ >= 800
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
  for (int i = 0; i < 2; ++i)
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[2 * i]), "r"(a[2 * i + 1]), "r"(b[i]));
#endif
}
__device__ inline void multiply(unsigned* c, const unsigned* a, const unsigned* b, half) {
#if __CUDA_ARCH__ >= 800
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%0, %1}, {%2, %3, %4, %5}, {%6, %7}, {%0, %1};"
      : "+r"(c[0]), "+r"(c[1])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
  for (int i = 0; i < 2; ++i)
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f16.f16.f16.f16 {%0, %1}, {%2, %3}, {%4}, {%0, %1};"
                 : "+r"(c[0]), "+r"(c[1])
                 : "r"(a[2 * i]), "r"(a[2 * i + 1]), "r"(b[i]));
#endif
}
__device__ inline void multiply(int* c, const unsigned* a, const unsigned* b, signed char) {
#if __CUDA_ARCH__ >= 800
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(b[0]));
#else
  for (int i = 0; i < 2; ++i)
    asm volatile("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0, %1}, {%2}, {%3}, {%0, %1};"
                 : "+r"(c[2 * i]), "+r"(c[2 * i + 1])
                 : "r"(a[i]), "r"(b[0]));
#endif
}
#if __CUDA_ARCH__ >= 800
__device__ inline void multiply(float* c, const unsigned* a, const unsigned* b, __nv_bfloat16) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
// Multiplies in TF32.
__device__ inline void multiply(float* c, const unsigned* a, const unsigned* b, float) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
#endif

template <int M, int N, int K, class T, class Layout, class Sum>
__device__ inline void mma_sync(fragment<accumulator, M, N, K, Sum>& sums,
                                const fragment<matrix_a, M, N, K, T, row_major>& a,
                                const fragment<matrix_b, M, N, K, T, Layout>& b,
                                const fragment<accumulator, M, N, K, Sum>& before) {
  constexpr int tile = sizeof(sums.x) / sizeof(sums.x[0]) / 2;
  typename stored<T, K>::type type{};
  sums = before;
  multiply(sums.x, a.x, b.x, type);
  multiply(sums.x + tile, a.x, b.x + b.size / 2, type);
}

template <int M, int N, int K, class T, class Value>
__device__ inline void fill_fragment(fragment<accumulator, M, N, K, T>& sums, Value value) {
  for (int i = 0; i < 8; ++i) sums.x[i] = T(value);
}
template <int M, int N, int K, class Value>
__device__ inline void fill_fragment(fragment<accumulator, M, N, K, half>& sums, Value value) {
  for (int i = 0; i < 4; ++i) sums.x[i] = __half_as_ushort(half(value)) * 0x10001u;
}

template <class T>
struct alignas(2 * sizeof(T)) pair {
  T first, second;
};
template <int M, int N, int K, class T>
__device__ inline void store_matrix_sync(T* target, const fragment<accumulator, M, N, K, T>& sums,
                                         unsigned stride, layout_t) {
  T* first = target + lane() / 4 * stride + lane() % 4 * 2;
  for (int i = 0; i < 4; ++i)
    *(pair<T>*)(first + i % 2 * 8 * stride + i / 2 * 8) = pair<T>{sums.x[2 * i], sums.x[2 * i + 1]};
}
template <int M, int N, int K>
__device__ inline void store_matrix_sync(half* target, const fragment<accumulator, M, N, K, half>& sums,
                                         unsigned stride, layout_t) {
  half* first = target + lane() / 4 * stride + lane() % 4 * 2;
  for (int i = 0; i < 4; ++i) *(unsigned*)(first + i % 2 * 8 * stride + i / 2 * 8) = sums.x[i];
}
}  // namespace tensor_cores
