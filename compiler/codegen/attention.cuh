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

// Float32 that is rounded to TF32 in registers.
struct tf32;

// The type of an operand's values in memory, the type that its fragments are declared with, and the products that one
// instruction adds up.
template <class T>
struct operand {
  typedef T value;
  typedef T declared;
  static constexpr int depth = 16;
};
template <>
struct operand<tf32> {
  typedef float value;
  typedef half declared;
  static constexpr int depth = 8;
};
template <class T>
struct left_operand : fragment<matrix_a, 16, 16, operand<T>::depth, typename operand<T>::declared, row_major> {};
template <class T, bool ByRows>
struct right_operand
    : fragment<matrix_b, 16, 16, operand<T>::depth, typename operand<T>::declared, typename order<ByRows>::type> {};

// Loads values in the order of keys in which `take_weights` has the weights.
template <class T, bool ByRows>
__device__ inline void load_values(right_operand<T, ByRows>& b, const T* source, int stride) {
  load_matrix_sync(b, source, stride);
}
template <bool ByRows>
__device__ inline void load_values(right_operand<tf32, ByRows>& b, const float* source, int stride) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float* first = ByRows ? source + lane() % 4 * 2 * stride + i * 8 + lane() / 4
                                : source + (i * 8 + lane() / 4) * stride + lane() % 4 * 2;
    float2 two = ByRows ? make_float2(first[0], first[stride]) : *(const float2*)first;
    b.x[2 * i] = __float_as_uint(two.x);
    b.x[2 * i + 1] = __float_as_uint(two.y);
  }
  round_operand(b);
}

template <class T, int Rows, int Columns, bool ByRows, bool OfWeights>
__device__ inline void add_products(float* sums, const left_operand<T> (&a)[Rows],
                                    const typename operand<T>::value* second, int stride) {
#pragma unroll
  for (int j = 0; j < Columns; ++j) {
    right_operand<T, ByRows> b;
    const typename operand<T>::value* source = second + j * 16 * (ByRows ? 1 : stride);
    if (OfWeights)
      load_values(b, source, stride);
    else
      load_matrix_sync(b, source, stride);
#pragma unroll
    for (int i = 0; i < Rows; ++i) {
      multiply(sums + (i * Columns + j) * 8, a[i].x, b.x, typename operand<T>::value());
      multiply(sums + (i * Columns + j) * 8 + 4, a[i].x, b.x + 2, typename operand<T>::value());
    }
  }
}

// Multiplies the warp's queries with a block of keys.
template <class T, int Rows, int Columns, int Depth, bool ByRows>
__device__ inline void multiply_keys(float* scores, const typename operand<T>::value* queries, int query_stride,
                                     const typename operand<T>::value* keys, int stride) {
  constexpr int depth = operand<T>::depth;
#pragma unroll
  for (int i = 0; i < Rows * Columns * 8; ++i) scores[i] = 0;
#pragma unroll
  for (int k = 0; k < Depth * 16; k += depth) {
    left_operand<T> a[Rows];
#pragma unroll
    for (int i = 0; i < Rows; ++i)
      load_matrix_sync(a[i], queries + i * 16 * query_stride + k, query_stride);
    add_products<T, Rows, Columns, ByRows, false>(scores, a, keys + k * (ByRows ? stride : 1), stride);
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

// Makes a left operand of weights. For 16 bits, it has the layout of sums. In TF32, lane 4 g + t has columns t and
// t + 4 of it, and of sums columns 2 t and 2 t + 1: here they are one key, so these keys are in another order.
template <class T>
__device__ inline void take_weights(left_operand<T>& a, const float* weights) {
#pragma unroll
  for (int n = 0; n < 4; ++n) a.x[n] = rounded_pair(weights[2 * n], weights[2 * n + 1], T());
}
__device__ inline void take_weights(left_operand<tf32>& a, const float* weights) {
#pragma unroll
  for (int n = 0; n < 4; ++n) a.x[n] = __float_as_uint(weights[n % 2 * 2 + n / 2]);
  round_operand(a);
}

// Multiplies the weights with a block of values.
template <class T, int Rows, int Columns, int Width, bool ByRows>
__device__ inline void multiply_values(float* sums, const float* weights, const typename operand<T>::value* values,
                                       int stride) {
  constexpr int depth = operand<T>::depth;
#pragma unroll
  for (int k = 0; k < Columns * 16; k += depth) {
    left_operand<T> a[Rows];
#pragma unroll
    for (int i = 0; i < Rows; ++i) take_weights(a[i], weights + i * Columns * 8 + k / 2);
    add_products<T, Rows, Width, ByRows, true>(sums, a, values + k * (ByRows ? stride : 1), stride);
  }
}

// The same without tensor cores, in float32. Of every 16 x 16 scores or sums, lane 4 g + t holds columns 4 t to 4 t + 3
// of rows g and g + 8, and computes them by itself.

// Adds the products of four columns of a left operand, of which the lane has two rows for each of `Rows`, and four rows
// of a right operand.
template <int Rows, int Columns, bool ByRows>
__device__ inline void add_four_products(float* sums, const float (&a)[2 * Rows][4], const float* second, int stride) {
#pragma unroll
  for (int j = 0; j < Columns; ++j) {
    const float* own = second + (j * 16 + lane() % 4 * 4) * (ByRows ? 1 : stride);
    float b[4][4];
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      float4 four = *(const float4*)(own + n * stride);
      b[ByRows ? n : 0][ByRows ? 0 : n] = four.x;
      b[ByRows ? n : 1][ByRows ? 1 : n] = four.y;
      b[ByRows ? n : 2][ByRows ? 2 : n] = four.z;
      b[ByRows ? n : 3][ByRows ? 3 : n] = four.w;
    }
#pragma unroll
    for (int k = 0; k < 4; ++k)
#pragma unroll
      for (int row = 0; row < 2 * Rows; ++row)
#pragma unroll
        for (int n = 0; n < 4; ++n)
          sums[(row / 2 * Columns + j) * 8 + n / 2 * 4 + row % 2 * 2 + n % 2] += a[row][k] * b[k][n];
  }
}

template <int Rows, int Columns, int Depth, bool ByRows>
__device__ inline void multiply_keys_in_lanes(float* scores, const float* queries, int query_stride, const float* keys,
                                              int stride) {
  const float* own = queries + lane() / 4 * query_stride;
#pragma unroll
  for (int i = 0; i < Rows * Columns * 8; ++i) scores[i] = 0;
#pragma unroll 2
  for (int k = 0; k < Depth * 16; k += 4) {
    float a[2 * Rows][4];
#pragma unroll
    for (int row = 0; row < 2 * Rows; ++row) {
      float4 four = *(const float4*)(own + row * 8 * query_stride + k);
      a[row][0] = four.x;
      a[row][1] = four.y;
      a[row][2] = four.z;
      a[row][3] = four.w;
    }
    add_four_products<Rows, Columns, ByRows>(scores, a, keys + k * (ByRows ? stride : 1), stride);
  }
}

template <int Rows, int Columns, int Width, bool ByRows>
__device__ inline void multiply_values_in_lanes(float* sums, const float* weights, const float* values, int stride) {
#pragma unroll
  for (int j = 0; j < Columns; ++j)
#pragma unroll 1
    for (int owner = 0; owner < 4; ++owner) {
      float a[2 * Rows][4];
#pragma unroll
      for (int row = 0; row < 2 * Rows; ++row)
#pragma unroll
        for (int n = 0; n < 4; ++n)
          a[row][n] = __shfl_sync(
              0xffffffffu, weights[(row / 2 * Columns + j) * 8 + n / 2 * 4 + row % 2 * 2 + n % 2], owner, 4);
      add_four_products<Rows, Width, ByRows>(sums, a, values + (j * 16 + owner * 4) * (ByRows ? stride : 1), stride);
    }
}

// Adds up what `Parts` warps with the same queries have found for their parts of the keys, in the first of them. The
// others pass sums, maxima and totals by shared memory, value by value of all lanes.
template <int Rows, int Width, int Parts>
__device__ inline void add_parts(float* sums, float* maxima, float* totals, void* exchanged) {
  constexpr int values = Rows * Width * 8, rows = Rows * 2;
  const float lowest = __int_as_float(0xff800000);
  float* own = (float*)exchanged + threadIdx.y * (values + 2 * rows) * 32 + lane();
  if (threadIdx.y % Parts) {
#pragma unroll
    for (int i = 0; i < values; ++i) own[i * 32] = sums[i];
#pragma unroll
    for (int row = 0; row < rows; ++row) {
      own[(values + row) * 32] = maxima[row];
      own[(values + rows + row) * 32] = totals[row];
    }
  }
  __syncthreads();
  if (threadIdx.y % Parts) return;
#pragma unroll 1
  for (int part = 1; part < Parts; ++part) {
    own += (values + 2 * rows) * 32;
#pragma unroll
    for (int row = 0; row < rows; ++row) {
      float before = maxima[row], other = own[(values + row) * 32], largest = fmaxf(before, other);
      float base = largest == lowest ? 0 : largest;
      float scale = __expf(before - base), other_scale = __expf(other - base);
      maxima[row] = largest;
      totals[row] = totals[row] * scale + own[(values + rows + row) * 32] * other_scale;
#pragma unroll
      for (int n = 0; n < Width * 4; ++n) {
        int i = (row / 2 * Width + n / 4) * 8 + n % 4 / 2 * 4 + row % 2 * 2 + n % 2;
        sums[i] = sums[i] * scale + own[i * 32] * other_scale;
      }
    }
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
