// Runs CUDA C on a CPU: a fiber for each thread, one block at a time.
//
// Threads run until they come to a barrier or exchange values with other lanes. `launch` runs them in the order
// of their numbers. With a seed, their order is shuffled and each warp takes its own time, so that a missing
// barrier shows in the results.
#include "device.h"

#include <deque>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <ucontext.h>
#include <vector>

#include "tensor_map.h"

namespace emulator {

constexpr size_t kStackBytes = 256 << 10;

struct Copy {
  void* target;
  const void* source;
  size_t bytes;
};

constexpr int kDepthBytes = 32;  // the reduction of a product of warpgroups

// A thread's part of such a product: its sums, the descriptors of both operands, and their values when it began.
struct Product {
  std::vector<void*> sums;
  std::vector<uint16_t> operands;
  uint64_t first, second;
  bool second_by_rows, is_half, is_byte;
  int item() const { return is_byte ? 1 : 2; }
  int depth() const { return kDepthBytes / item(); }
};

// A barrier in shared memory: a phase ends when `pending` threads have arrived, and so have all expected bytes.
struct Barrier {
  int threads = 0, pending = 0;
  int64_t bytes = 0;
  unsigned phase = 0;
};

// A box of a matrix that is being fetched to shared memory. `at` is its first element, innermost dimension first.
struct Fetch {
  uint32_t barrier;
  size_t target;
  EncodedMap map;
  int64_t at[3];
  size_t rows() const { return map.box[1] * map.box[2]; }
  size_t bytes() const { return rows() * map.box[0] * map.item_bytes; }
};

struct Fiber {
  // Groups of copies that were begun and not waited for; the last one isn't complete.
  std::deque<std::vector<Copy>> copies;
  std::deque<std::vector<Product>> products;  // likewise
  bool unfenced;  // whether it wrote to shared memory since its last fence
  ucontext_t context;
  std::unique_ptr<char[]> stack;
  State state;
  dim3 index;
};

dim3 thread_index, block_index, block_size;
int running;
uint64_t slots[kMaxThreads];
alignas(1024) char shared_memory[kSharedBytes];

static ucontext_t scheduler;
static std::vector<Fiber> fibers;
static uint32_t registers[kMaxThreads][8];  // what instructions of PTX take from the others
static bool warps_drift;  // whether each warp takes its own time
static Status fault;
static void (*body)();

static std::map<uint32_t, Barrier> barriers;  // by their addresses
static std::vector<Fetch> fetches;  // those that were begun and that nobody has waited for
static int futile_waits;

void leave(State state) {
  fibers[running].state = state;
  swapcontext(&fibers[running].context, &scheduler);
}

// A thread that can't go on ends; its kernel has failed.
static void fail(Status status) {
  fault = status;
  leave(kDone);
}

static void enter() {
  body();
  leave(kDone);
}

void copy_later(void* target, const void* source, size_t bytes) {
  fibers[running].copies.back().push_back({target, source, bytes});
}

void commit_copies() { fibers[running].copies.emplace_back(); }

void await_copies(size_t but) {
  auto& copies = fibers[running].copies;
  for (; copies.size() > but + 1; copies.pop_front())
    for (auto& copy : copies.front()) {
      std::memcpy(copy.target, copy.source, copy.bytes);
      fibers[running].unfenced = true;
    }
}

static void end_phase(Barrier& barrier) {
  if (barrier.pending || barrier.bytes) return;
  ++barrier.phase;
  barrier.pending = barrier.threads;
}

// Places a byte of a tile whose rows of 128 bytes are swizzled.
static size_t swizzled(size_t place) { return place ^ (place >> 7 & 7) << 4; }

// Fetches take place as late as they may, as copies do. Until then their target holds nothing useful.
static void fetch_later(const Fetch& fetch) {
  if (fetch.map.mark != kTensorMap || fetch.map.box[0] * fetch.map.item_bytes != 128) return fail(kUnknownMap);
  if (fetch.target % 1024) return fail(kMisalignedTile);
  if (fetch.target + fetch.bytes() > kSharedBytes) return fail(kOutsideOfSharedMemory);
  std::memset(shared_memory + fetch.target, 0xff, fetch.bytes());
  fetches.push_back(fetch);
}

static void arrive(const Fetch& fetch) {
  size_t place = fetch.target, item = fetch.map.item_bytes;
  for (size_t row = 0; row < fetch.rows(); ++row)
    for (size_t column = 0; column < fetch.map.box[0]; ++column, place += item) {
      uint64_t at[3] = {fetch.at[0] + column, fetch.at[1] + row % fetch.map.box[1], fetch.at[2] + row / fetch.map.box[1]};
      char* target = shared_memory + swizzled(place);
      bool inside = at[0] < fetch.map.extents[0] && at[1] < fetch.map.extents[1] && at[2] < fetch.map.extents[2];
      uint64_t source = at[0] * item + at[1] * fetch.map.strides[0] + at[2] * fetch.map.strides[1];
      if (inside)
        std::memcpy(target, reinterpret_cast<const char*>(fetch.map.address) + source, item);
      else
        std::memset(target, 0, item);
    }
}

// Returns whether a phase of this parity has ended.
static bool has_ended(uint32_t address, unsigned parity) {
  Barrier& barrier = barriers[address];
  if (barrier.phase % 2 != parity) return true;
  std::vector<Fetch> others;
  for (const Fetch& fetch : fetches) {
    if (fetch.barrier != address) {
      others.push_back(fetch);
      continue;
    }
    arrive(fetch);
    barrier.bytes -= fetch.bytes();
  }
  fetches = others;
  end_phase(barrier);
  if (barrier.phase % 2 != parity) return true;
  if (++futile_waits > 100000) fail(kNeverArrives);
  leave(kReady);
  return false;
}

static void prepare(Fiber& fiber, int number) {
  if (!fiber.stack) fiber.stack.reset(new char[kStackBytes]);
  fiber.state = kReady;
  fiber.copies.assign(1, {});
  fiber.products.assign(1, {});
  fiber.unfenced = false;
  fiber.index = dim3(number % block_size.x, number / block_size.x % block_size.y,
                     number / (block_size.x * block_size.y));
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = fiber.stack.get();
  fiber.context.uc_stack.ss_size = kStackBytes;
  fiber.context.uc_link = &scheduler;
  makecontext(&fiber.context, enter, 0);
}

static void run_ready(const std::vector<int>& order) {
  bool rests[kMaxThreads / 32] = {};
  if (warps_drift)
    for (bool& one : rests) one = std::rand() % 2;
  for (int number : order) {
    if (fibers[number].state != kReady || rests[number / 32]) continue;
    running = number;
    thread_index = fibers[number].index;
    swapcontext(&scheduler, &fibers[number].context);
  }
}

static Status run_block(const std::vector<int>& order) {
  int count = order.size();
  for (int number = 0; number < count; ++number) prepare(fibers[number], number);
  barriers.clear();
  fetches.clear();
  futile_waits = 0;
  for (;;) {
    run_ready(order);
    int waiting = 0, done = 0;
    for (int number = 0; number < count; ++number) {
      waiting += fibers[number].state == kAtBarrier;
      done += fibers[number].state == kDone;
    }
    if (fault != kOk) return fault;
    if (done == count) return fetches.empty() ? kOk : kFetchInFlight;
    if (waiting == count) {
      for (int number = 0; number < count; ++number) fibers[number].state = kReady;
    } else if (waiting + done == count) {
      return kDivergedAtBarrier;
    }
  }
}

Status launch(dim3 grid, dim3 block, void (*kernel)(), int seed) {
  int count = block.x * block.y * block.z;
  if (count > kMaxThreads) return kTooManyThreads;
  if (fibers.empty()) fibers.resize(kMaxThreads);
  body = kernel;
  block_size = block;
  std::vector<int> order(count);
  for (int number = 0; number < count; ++number) order[number] = number;
  std::srand(seed);
  warps_drift = seed != 0;
  fault = kOk;
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

static uint32_t rounded_to_tf32(uint32_t bits) { return (bits + 0x1000) & 0xffffe000; }

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

// The part of shared memory that a descriptor of `wgmma` describes. Without swizzling, matrices of 8 rows of 16
// bytes are `leading` bytes apart along the reduction, and `stride` bytes across it. With swizzling, 8 rows of 128
// bytes are `stride` bytes apart; those of a transposed tile are also `leading` bytes apart across the reduction.
class Tile {
 public:
  explicit Tile(uint64_t descriptor)
      : start_((descriptor & 0x3fff) << 4),
        leading_((descriptor >> 16 & 0x3fff) << 4),
        stride_((descriptor >> 32 & 0x3fff) << 4),
        is_swizzled_(descriptor >> 62 == 1) {
    if (descriptor << 2 >> 48 || descriptor >> 62 > 1) fail(kUnknownInstruction);  // otherwise, or with an offset
  }

  // The 8 or 16 bits at `k` of the reduction. A transposed tile has rows along the other side, and 16 bits.
  uint16_t at(int row, int k, bool is_transposed, int item) const {
    int unit = 16 / item;
    size_t place = is_swizzled_ ? swizzled(start_ + (is_transposed ? by_rows(k, row * 2) : by_rows(row, k * item)))
                                : start_ + k / unit * leading_ + row / 8 * stride_ +
                                      (is_transposed ? k % 8 * 16 + row % 8 * 2 : row % 8 * 16 + k % unit * item);
    if (place + 2 > kSharedBytes) fail(kOutsideOfSharedMemory);
    for (const Fetch& fetch : fetches)
      if (place >= fetch.target && place < fetch.target + fetch.bytes()) fail(kFetchInFlight);
    uint16_t bits = 0;
    std::memcpy(&bits, shared_memory + place, item);
    return bits;
  }

 private:
  // The place of a byte in rows of 128 bytes.
  size_t by_rows(int row, int byte) const {
    return row / 8 * stride_ + row % 8 * 128 + byte / 128 * leading_ + byte % 128;
  }

  size_t start_, leading_, stride_;
  bool is_swizzled_;
};

static std::vector<float> halves_as_floats() {
  std::vector<float> values(1 << 16);
  for (size_t bits = 0; bits < values.size(); ++bits) {
    __half_raw half_bits;
    half_bits.x = bits;
    values[bits] = float(half(half_bits));
  }
  return values;
}

static float widened(uint16_t bits, bool is_half) {
  static const std::vector<float> halves = halves_as_floats();
  if (is_half) return halves[bits];
  uint32_t wide = uint32_t(bits) << 16;
  float value;
  std::memcpy(&value, &wide, 4);
  return value;
}

// Returns what a thread needs of both operands, [row or column][k]: two rows, and of every eight columns two.
static std::vector<uint16_t> read_operands(const Product& product) {
  Tile first(product.first), second(product.second);
  std::vector<uint16_t> bits;
  for (int i = 0; i < 2; ++i)
    for (int k = 0; k < product.depth(); ++k)
      bits.push_back(first.at(running % 128 / 32 * 16 + running % 32 / 4 + 8 * i, k, false, product.item()));
  for (size_t pair = 0; pair < product.sums.size() / 2; ++pair)
    for (int k = 0; k < product.depth(); ++k)
      bits.push_back(
          second.at(pair / 2 * 8 + running % 4 * 2 + pair % 2, k, product.second_by_rows, product.item()));
  return bits;
}

// Adds a product to the sums of this thread.
static void add_product(const Product& product) {
  if (read_operands(product) != product.operands) fail(kChangedInFlight);
  std::vector<float> values;
  for (uint16_t bits : product.operands)
    values.push_back(product.is_byte ? float(int8_t(bits)) : widened(bits, product.is_half));
  int depth = product.depth();
  for (size_t pair = 0; pair < product.sums.size() / 2; ++pair)
    for (int i = 0; i < 2; ++i) {
      void* place = product.sums[pair / 2 * 4 + i * 2 + pair % 2];
      double terms[kDepthBytes + 1];
      for (int k = 0; k < depth; ++k)
        terms[k + 1] = double(values[i * depth + k]) * values[(pair + 2) * depth + k];
      if (product.is_byte) {
        int32_t sum;
        std::memcpy(&sum, place, 4);
        sum += int32_t(std::accumulate(terms + 1, terms + depth + 1, 0.0));
        std::memcpy(place, &sum, 4);
        continue;
      }
      float sum;
      std::memcpy(&sum, place, 4);
      terms[0] = sum;
      sum = truncating_sum(terms, depth + 1);
      std::memcpy(place, &sum, 4);
    }
}

// Products take place as late as they may: when the thread waits for them.
static void await_products(size_t but) {
  auto& products = fibers[running].products;
  for (; products.size() > but + 1; products.pop_front())
    for (auto& product : products.front()) add_product(product);
}

// A parsed instruction.
class Parsed {
 public:
  explicit Parsed(const std::string& text)
      : name_(named(text)), arguments_(text.substr(name_.size())) {
    for (size_t at = name_.size(); at < text.size(); ++at) {
      if (text[at] == '{') groups_.emplace_back();
      if (text[at] == '%' && !groups_.empty()) groups_.back().push_back(std::atoi(&text[at + 1]));
    }
    if (std::sscanf(name_.c_str(), "mma.sync.aligned.m%dn8k%d.row.col.", &rows_, &depth_) != 2) return;
    operand_ = name_.find(".f16.f16.") != std::string::npos   ? kHalf
               : name_.find(".bf16.bf16.") != std::string::npos ? kBfloat
               : name_.find(".tf32.tf32.") != std::string::npos ? kTf32
                                                                 : kByte;
    has_half_sums_ = name_.find(".col.f16.") != std::string::npos;
  }

  void execute(const std::vector<Operand>& operands) const {
    if (name_.compare(0, 9, "ldmatrix.") == 0)
      load_matrices(operands);
    else if (depth_)
      multiply(operands);
    else if (name_ == "cvt.rna.tf32.f32")
      set(operands[0], rounded_to_tf32(operands[1].value));
    else if (name_.compare(0, 16, "wgmma.mma_async.") == 0)
      multiply_later(operands);
    else if (name_ == "wgmma.commit_group.sync.aligned")
      fibers[running].products.emplace_back();
    else if (name_ == "wgmma.wait_group.sync.aligned")
      await_products(std::atoi(arguments_.c_str()));
    else if (name_ == "fence.proxy.async.shared::cta")
      fibers[running].unfenced = false;
    else if (name_.compare(0, 9, "mbarrier.") == 0)
      use_barrier(operands);
    else if (name_.compare(0, 24, "cp.async.bulk.tensor.3d.") == 0)
      fetch_tile(operands);
    else if (name_.empty() || name_ == "wgmma.fence.sync.aligned")
      return;  // for the compiler
    else
      fail(kUnknownInstruction);
  }

 private:
  enum Type { kHalf, kBfloat, kTf32, kByte };

  // The first instruction of a text, behind declarations.
  static std::string named(const std::string& text) {
    size_t start = text.compare(0, 2, "{ ") ? 0 : text.find("; ") + 2;
    return text.substr(start, text.find_first_of(" ;", start) - start);
  }

  void use_barrier(const std::vector<Operand>& operands) const {
    uint32_t address = operands[operands[0].place ? 1 : 0].value;
    Barrier& barrier = barriers[address];
    if (name_ == "mbarrier.init.shared::cta.b64") {
      barrier.threads = barrier.pending = 1;
      fibers[running].unfenced = true;
    } else if (name_ == "mbarrier.expect_tx.relaxed.cta.shared::cta.b64") {
      barrier.bytes += operands[1].value;
    } else if (name_ == "mbarrier.arrive.shared::cta.b64") {
      --barrier.pending;
      end_phase(barrier);
    } else if (name_ == "mbarrier.try_wait.parity.shared::cta.b64") {
      set(operands[0], has_ended(address, operands[2].value));
    } else {
      fail(kUnknownInstruction);
    }
  }

  void fetch_tile(const std::vector<Operand>& operands) const {
    for (const Fiber& fiber : fibers)
      if (fiber.unfenced) fail(kUnfenced);
    Fetch fetch{uint32_t(operands[5].value), uint32_t(operands[0].value), {}, {}};
    std::memcpy(&fetch.map, reinterpret_cast<const void*>(operands[1].value), sizeof fetch.map);
    for (int i = 0; i < 3; ++i) fetch.at[i] = int32_t(operands[2 + i].value);
    fetch_later(fetch);
  }

  static void set(const Operand& operand, uint32_t value) { std::memcpy(operand.place, &value, 4); }

  // Lanes 8 i to 8 i + 7 name the rows of 16 bytes of matrix i.
  void load_matrices(const std::vector<Operand>& operands) const {
    registers[running][0] = operands.back().value;
    leave(kReady);
    size_t count = operands.size() - 1;
    uint32_t loaded[4];
    for (size_t i = 0; i < count; ++i)
      if (name_.find(".trans") == std::string::npos) {
        std::memcpy(&loaded[i], row(8 * i + lane() / 4) + lane() % 4 * 4, 4);
      } else {
        for (int j = 0; j < 2; ++j)
          std::memcpy((char*)&loaded[i] + 2 * j, row(8 * i + lane() % 4 * 2 + j) + lane() / 4 * 2, 2);
      }
    leave(kReady);
    for (size_t i = 0; i < count; ++i) set(operands[i], loaded[i]);
  }

  static const char* row(int of_lane) {
    const char* address = shared_memory + int32_t(registers[warp_start() + of_lane][0]);
    if (reinterpret_cast<uintptr_t>(address) % 16) fail(kMisaligned);
    return address;
  }

  void multiply_later(const std::vector<Operand>& operands) const {
    for (const Fiber& fiber : fibers)
      if (fiber.unfenced) fail(kUnfenced);
    int columns, depth;
    Product product;
    if (std::sscanf(name_.c_str(), "wgmma.mma_async.sync.aligned.m64n%dk%d.", &columns, &depth) != 2)
      fail(kUnknownInstruction);
    product.is_byte = name_.find(".s32.s8.s8") != std::string::npos;
    if (depth != product.depth()) fail(kUnknownInstruction);
    for (int i = 0; i < columns / 2; ++i) product.sums.push_back(operands[i].place);
    product.first = operands[columns / 2].value;
    product.second = operands[columns / 2 + 1].value;
    product.second_by_rows = !product.is_byte && operands[columns / 2 + 2].value;
    product.is_half = name_.find(".f16.f16") != std::string::npos;
    product.operands = read_operands(product);
    fibers[running].products.back().push_back(product);
  }

  // Lane 4 g + t has, of rows g and g + 8, the elements t * n to t * n + n - 1 of every 4 n along k, where n fill
  // a register; of the sums, columns 2 t and 2 t + 1 of these rows.
  void multiply(const std::vector<Operand>& operands) const {
    const auto &d = groups_[0], &a = groups_[1], &b = groups_[2], &c = groups_[3];
    for (size_t i = 0; i < a.size(); ++i) registers[running][i] = operands[a[i]].value;
    for (size_t i = 0; i < b.size(); ++i) registers[running][a.size() + i] = operands[b[i]].value;
    leave(kReady);
    int each = operand_ == kTf32 ? 1 : operand_ == kByte ? 4 : 2;
    // The products that are added in one step: an H100 adds up four in TF32.
    int step = operand_ == kTf32 ? 4 : 8;
    uint32_t sums[4];
    for (size_t i = 0; i < c.size(); ++i) sums[i] = operands[c[i]].value;
    for (int i = 0; i < rows_ / 4; ++i) {
      int row = lane() / 4 + i / 2 * 8, column = lane() % 4 * 2 + i % 2;
      double terms[9] = {sum(sums, i)};
      for (int k = 0; k < depth_; k += step) {
        for (int l = 0; l < step; ++l) {
          int from = (k + l) % (4 * each) / each, part = (k + l) / (4 * each), within = (k + l) % each;
          double left = factor(row % 8 * 4 + from, row / 8 + rows_ / 8 * part, within);
          terms[l + 1] = left * factor(column * 4 + from, a.size() + part, within);
        }
        terms[0] = operand_ == kByte ? std::accumulate(terms, terms + step + 1, 0.0)
                                     : truncating_sum(terms, step + 1);
      }
      set_sum(sums, i, terms[0]);
    }
    leave(kReady);
    for (size_t i = 0; i < d.size(); ++i) set(operands[d[i]], sums[i]);
  }

  double factor(int of_lane, int number, int within) const {
    uint32_t value = registers[warp_start() + of_lane][number];
    float number_in_tf32;
    switch (operand_) {
      case kByte:
        return int8_t(value >> 8 * within);
      case kBfloat:
        value = within ? value & 0xffff0000 : value << 16;
        break;
      case kHalf: {
        __half_raw half_bits;
        half_bits.x = value >> 16 * within;
        return float(half(half_bits));
      }
      case kTf32:
        // What tensor cores make of values that weren't rounded isn't defined.
        if (value != rounded_to_tf32(value)) return NAN;
    }
    std::memcpy(&number_in_tf32, &value, 4);
    return number_in_tf32;
  }

  double sum(const uint32_t* sums, int i) const {
    if (operand_ == kByte) return int32_t(sums[i]);
    if (has_half_sums_) {
      __half_raw half_bits;
      half_bits.x = sums[i / 2] >> 16 * (i % 2);
      return float(half(half_bits));
    }
    float value;
    std::memcpy(&value, &sums[i], 4);
    return value;
  }

  void set_sum(uint32_t* sums, int i, double value) const {
    float single = value;
    if (operand_ == kByte) {
      sums[i] = uint32_t(int64_t(value));
    } else if (has_half_sums_) {
      uint32_t half_bits = __half_raw(half(single)).x;
      sums[i / 2] = i % 2 ? (sums[i / 2] & 0xffff) | half_bits << 16 : (sums[i / 2] & 0xffff0000) | half_bits;
    } else {
      std::memcpy(&sums[i], &single, 4);
    }
  }

  std::string name_, arguments_;
  std::vector<std::vector<int>> groups_;  // the operands, by braces
  int rows_ = 0, depth_ = 0;
  Type operand_ = kHalf;
  bool has_half_sums_ = false;
};

Instruction::Instruction(const char* text) : parsed_(new Parsed(text)) {}

void Instruction::execute(std::initializer_list<Operand> operands) const { parsed_->execute(operands); }

}  // namespace emulator
