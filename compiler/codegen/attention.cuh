// Attention with an online softmax: a warp computes 16 * Rows queries with all keys, in blocks of keys. Scores, running
// maxima and sums, and weighted values stay in registers, in the layout of fragments.cuh: of every 16 x 16 values, lane
// 4 g + t holds eight, four in each row g and g + 8. Counts (Rows, Columns, Depth, Width) are in units of 16.
namespace tensor_cores {
template <bool ByRows>
struct order {
  typedef col_major type;
};
template <>
struct order<true> {
  typedef row_major type;
};

template <class T, int Rows, int Columns, bool ByRows>
__device__ inline void add_products(float* sums, const fragment<matrix_a, 16, 16, 16, T, row_major> (&a)[Rows],
                                    const T* second, int stride) {
#pragma unroll
  for (int j = 0; j < Columns; ++j) {
    fragment<matrix_b, 16, 16, 16, T, typename order<ByRows>::type> b;
    load_matrix_sync(b, second + j * 16 * (ByRows ? 1 : stride), stride);
#pragma unroll
    for (int i = 0; i < Rows; ++i) {
      multiply(sums + (i * Columns + j) * 8, a[i].x, b.x, T());
      multiply(sums + (i * Columns + j) * 8 + 4, a[i].x, b.x + 2, T());
    }
  }
}

// Multiplies the warp's queries with a block of keys.
template <class T, int Rows, int Columns, int Depth, bool ByRows>
__device__ inline void multiply_keys(float* scores, const T* queries, int query_stride, const T* keys, int stride) {
#pragma unroll
  for (int i = 0; i < Rows * Columns * 8; ++i) scores[i] = 0;
#pragma unroll
  for (int k = 0; k < Depth; ++k) {
    fragment<matrix_a, 16, 16, 16, T, row_major> a[Rows];
#pragma unroll
    for (int i = 0; i < Rows; ++i)
      load_matrix_sync(a[i], queries + (threadIdx.y * Rows + i) * 16 * query_stride + k * 16, query_stride);
    add_products<T, Rows, Columns, ByRows>(scores, a, keys + k * 16 * (ByRows ? stride : 1), stride);
  }
}

// Turns scores into weights relative to the maximum so far, and scales what earlier blocks of keys added up to it. A
// row that has only minus infinities so far has no weight.
template <int Rows, int Columns, int Width>
__device__ inline void weigh_scores(float* scores, float* sums, float* maxima, float* totals) {
  const float lowest = __int_as_float(0xff800000);
#pragma unroll
  for (int i = 0; i < Rows; ++i)
#pragma unroll
    for (int half_row = 0; half_row < 2; ++half_row) {
      int row = 2 * i + half_row;
      float before = maxima[row], largest = before;
#pragma unroll
      for (int n = 0; n < Columns * 4; ++n)
        largest = fmaxf(largest, scores[(i * Columns + n / 4) * 8 + n % 4 / 2 * 4 + half_row * 2 + n % 2]);
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
      float base = largest == lowest ? 0 : largest;
      float scale = __expf(before - base), total = totals[row] * scale;
#pragma unroll
      for (int n = 0; n < Columns * 4; ++n) {
        float& score = scores[(i * Columns + n / 4) * 8 + n % 4 / 2 * 4 + half_row * 2 + n % 2];
        score = __expf(score - base);
        total += score;
      }
#pragma unroll
      for (int n = 0; n < Width * 4; ++n)
        sums[(i * Width + n / 4) * 8 + n % 4 / 2 * 4 + half_row * 2 + n % 2] *= scale;
      maxima[row] = largest;
      totals[row] = total;
    }
}

__device__ inline unsigned rounded_pair(float first, float second, half) {
  __half2 pair_of = __floats2half2_rn(first, second);
  return *(unsigned*)&pair_of;
}
__device__ inline unsigned rounded_pair(float first, float second, __nv_bfloat16) {
  __nv_bfloat162 pair_of = __floats2bfloat162_rn(first, second);
  return *(unsigned*)&pair_of;
}

// Multiplies the weights with a block of values. Sums and left operands of `mma.sync` have the same layout.
template <class T, int Rows, int Columns, int Width, bool ByRows>
__device__ inline void multiply_values(float* sums, const float* weights, const T* values, int stride) {
#pragma unroll
  for (int k = 0; k < Columns; ++k) {
    fragment<matrix_a, 16, 16, 16, T, row_major> a[Rows];
#pragma unroll
    for (int i = 0; i < Rows; ++i)
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const float* two = weights + (i * Columns + k) * 8 + 2 * n;
        a[i].x[n] = rounded_pair(two[0], two[1], T());
      }
    add_products<T, Rows, Width, ByRows>(sums, a, values + k * 16 * (ByRows ? stride : 1), stride);
  }
}

// Divides the weighted values by the sums of their weights. Four lanes have parts of such a sum.
template <int Rows, int Width>
__device__ inline void divide_by_totals(float* sums, const float* totals) {
#pragma unroll
  for (int row = 0; row < 2 * Rows; ++row) {
    float total = totals[row];
    total += __shfl_xor_sync(0xffffffffu, total, 1);
    total += __shfl_xor_sync(0xffffffffu, total, 2);
    float factor = 1 / total;
#pragma unroll
    for (int n = 0; n < Width * 4; ++n)
      sums[(row / 2 * Width + n / 4) * 8 + n % 4 / 2 * 4 + row % 2 * 2 + n % 2] *= factor;
  }
}
}  // namespace tensor_cores
