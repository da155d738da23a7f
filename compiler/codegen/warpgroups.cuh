// Matrix products of warpgroups: 128 threads multiply 64 rows and N columns by `wgmma` of compute capability 9.0. The
// tensor cores read both operands in shared memory. The sums stay in registers, in the layout of `mma.sync`: warp w
// holds rows 16 w to 16 w + 15.
//
// A tile in shared memory consists of columns of 16 bytes: tile[column][row][16 bytes]. Eight rows of a column are a matrix
// for `wgmma`, without swizzling. A padding row between columns makes them start in different banks.
namespace tensor_cores {
template <int N>
struct fragment<accumulator, 64, N, 16, float, void> {
  float x[N / 2];
};
template <int N>
struct fragment<accumulator, 64, N, 16, int, void> {
  int x[N / 2];
};

// Describes a tile to `wgmma`: the distance in bytes of neighbouring matrices along the reduction and across it.
__device__ inline unsigned long long describe(const void* tile, unsigned along, unsigned across) {
  return shared_address(tile) >> 4 & 0x3fff | (unsigned long long)(along >> 4) << 16 |
         (unsigned long long)(across >> 4) << 32;
}

template <int N, class Sum, class Value>
__device__ inline void fill_fragment(fragment<accumulator, 64, N, 16, Sum>& sums, Value value) {
  for (int i = 0; i < N / 2; ++i) sums.x[i] = value;
}

// Adds the product of two tiles to the sums. `a_column` and `b_column` are the distances of columns in elements. The
// last product of a thread is still being computed when the function returns, all products before it are complete.
template <class T, int Depth, bool ByRows, int N, class Sum>
__device__ inline void multiply_tiles(fragment<accumulator, 64, N, 16, Sum>* sums, const T* a, int a_column,
                                      const T* b, int b_column) {
  constexpr unsigned matrix = 128;
  unsigned a_bytes = a_column * sizeof(T), b_bytes = b_column * sizeof(T);
  unsigned long long first = describe(a, a_bytes, matrix);
  unsigned long long second = ByRows ? describe(b, matrix, b_bytes) : describe(b, b_bytes, matrix);
  unsigned long long first_step = 2 * a_bytes >> 4, second_step = (ByRows ? 2 * matrix : 2 * b_bytes) >> 4;
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
  for (int k = 0; k < Depth * sizeof(T) / 32; ++k)
    multiply_columns<ByRows>(sums->x, first + k * first_step, second + k * second_step, T());
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
  asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
}

// The same for tiles of columns of 128 bytes, each row swizzled (tensor_maps.cuh). Eight rows of a column repeat.
template <class T, int Depth, bool ByRows, int N, class Sum>
__device__ inline void multiply_swizzled(fragment<accumulator, 64, N, 16, Sum>* sums, const T* a, int, const T* b,
                                         int b_column) {
  constexpr unsigned eight_rows = 1024;
  constexpr unsigned long long swizzled = 1ull << 62;
  unsigned long long first = describe(a, 0, eight_rows) | swizzled;
  unsigned long long second = describe(b, ByRows ? b_column * sizeof(T) : 0, eight_rows) | swizzled;
  unsigned long long second_step = (ByRows ? 2 * eight_rows : 32) >> 4;
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
  for (int k = 0; k < Depth * sizeof(T) / 32; ++k)
    multiply_columns<ByRows>(sums->x, first + k * (32 >> 4), second + k * second_step, T());
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
  asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
}

// Makes what a block's threads wrote to shared memory visible to `wgmma`, and waits for them.
__device__ inline void synchronize() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
}

// The compiler may not read a sum earlier.
__device__ inline void read_from_here(float& sum) { asm volatile("" : "+f"(sum)::"memory"); }
__device__ inline void read_from_here(int& sum) { asm volatile("" : "+r"(sum)::"memory"); }

// Stores the sums when the last products of all threads are complete: the target may lie where their operands are.
template <int N, class Sum>
__device__ inline void store_matrix_sync(Sum* target, fragment<accumulator, 64, N, 16, Sum>& sums, unsigned stride,
                                         layout_t) {
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  for (int i = 0; i < N / 2; ++i) read_from_here(sums.x[i]);
  __syncthreads();
  Sum* first = target + (threadIdx.x / 32 * 16 + lane() / 4) * stride + lane() % 4 * 2;
  for (int i = 0; i < N / 4; ++i)
    *(pair<Sum>*)(first + i % 2 * 8 * stride + i / 2 * 8) = pair<Sum>{sums.x[2 * i], sums.x[2 * i + 1]};
}
}  // namespace tensor_cores
