// Fetches of whole tiles by the tensor memory accelerator of compute capability 9.0. One thread starts a fetch by a
// tensor map, which the host encodes, and a barrier in shared memory counts the bytes that arrive.
//
// A tile consists of columns of 128 bytes: tile[column][row][128 bytes]. The 16-byte parts of each row change places by
// the number of their row, modulo 8 ("swizzling by 128 bytes"). What lies outside of the matrix arrives as zeros.
namespace tensor_cores {
struct alignas(64) TensorMap {
  unsigned long long opaque[16];
};

// The fetches of a block. All threads commit groups of fetches and wait for them, as with `cp.async`. `Barriers` is
// at least the number of groups that are in flight at a time.
template <int Barriers>
class TileFetches {
 public:
  // All threads of a block construct it together.
  __device__ inline explicit TileFetches(unsigned long long* barriers) : first_(shared_address(barriers)) {
    if (is_first_thread())
      for (int i = 0; i < Barriers; ++i)
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" : : "r"(first_ + 8 * i) : "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
  }

  // Starts the fetch of a tile of a matrix in the current group. `row` and `column` are the tile's first ones, and a
  // column has `unit` elements, 128 bytes.
  __device__ inline void start(const void* tile, unsigned long long map, int rows, int columns, int unit, int image,
                               int row, int column) const {
    if (!is_first_thread()) return;
    unsigned barrier = of_group(started_), target = shared_address(tile);
    asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;"
                 : : "r"(barrier), "r"(columns * rows * 128) : "memory");
    for (int i = 0; i < columns; ++i)
      asm volatile(
          "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];"
          : : "r"(target + i * rows * 128), "l"(map), "r"((column + i) * unit), "r"(row), "r"(image), "r"(barrier)
          : "memory");
  }

  // Ends the current group.
  __device__ inline void commit() {
    if (is_first_thread()) asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" : : "r"(of_group(started_)) : "memory");
    ++started_;
  }

  // Waits until all but the last `InFlight` groups have arrived.
  template <int InFlight>
  __device__ inline void wait() {
    for (; arrived_ + InFlight < started_; ++arrived_) {
      unsigned is_complete;
      do asm volatile(
            "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.b32 %0, 1, 0, p; }"
            : "=r"(is_complete) : "r"(of_group(arrived_)), "r"(arrived_ / Barriers % 2) : "memory");
      while (!is_complete);
    }
  }

 private:
  __device__ static inline bool is_first_thread() { return threadIdx.x + threadIdx.y == 0; }

  // The barrier of a group. Each is used again when all threads have waited for its last group.
  __device__ inline unsigned of_group(unsigned group) const { return first_ + 8 * (group % Barriers); }

  unsigned first_, started_ = 0, arrived_ = 0;
};
}  // namespace tensor_cores
