/* Executes AMX's instructions on processors without them.
 *
 * Such a processor raises SIGILL. The handler decodes the instruction, does what Intel's manual says
 * (Software Developer's Manual, volume 2, and volume 1, chapter 18), and goes on behind it. It ends the process
 * with a message where the processor would raise an exception.
 */
#define _GNU_SOURCE
#include <float.h>
#include <math.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

enum { TILES = 8, ROWS = 16, BYTES = 64 };
/* The kinds of instructions that are counted. */
enum { CONFIGURE, RELEASE, LOAD, STORE, MULTIPLY, KINDS };

typedef struct {
  uint8_t rows;
  uint16_t row_bytes;
  uint8_t data[ROWS][BYTES];
} Tile;

static _Thread_local Tile tiles[TILES];
static _Thread_local int is_configured;
static atomic_long counts[KINDS];
static struct sigaction before;

static void refuse(const char *reason) {
  fprintf(stderr, "AMX raises an exception: %s\n", reason);
  abort();
}

static void require(int holds, const char *reason) {
  if (!holds) refuse(reason);
}

static void configure(const uint8_t *memory) {
  uint8_t rows[ROWS];
  uint16_t row_bytes[ROWS];
  memcpy(row_bytes, memory + 16, sizeof row_bytes);
  memcpy(rows, memory + 48, sizeof rows);
  require(memory[0] == 1, "LDTILECFG of another palette than 1");
  for (int i = 1; i < 16; i++) require(memory[i] == 0, "LDTILECFG of a start row, or of reserved bytes");
  for (int i = 0; i < ROWS; i++) {
    require(i < TILES || (!rows[i] && !row_bytes[i]), "LDTILECFG of more than 8 tiles");
    require(!rows[i] == !row_bytes[i], "LDTILECFG of rows without bytes, or bytes without rows");
    require(rows[i] <= ROWS && row_bytes[i] <= BYTES, "LDTILECFG of too large a tile");
  }
  memset(tiles, 0, sizeof tiles);
  for (int i = 0; i < TILES; i++) tiles[i].rows = rows[i], tiles[i].row_bytes = row_bytes[i];
  is_configured = 1;
}

static void load(Tile *tile, const uint8_t *memory, int64_t stride) {
  memset(tile->data, 0, sizeof tile->data);
  for (int row = 0; row < tile->rows; row++) memcpy(tile->data[row], memory + row * stride, tile->row_bytes);
}

static void store(const Tile *tile, uint8_t *memory, int64_t stride) {
  for (int row = 0; row < tile->rows; row++) memcpy(memory + row * stride, tile->data[row], tile->row_bytes);
}

static int32_t byte_of(uint8_t byte, int is_signed) { return is_signed ? (int8_t)byte : byte; }

static float daz(float value) {
  return value != 0 && fabsf(value) < FLT_MIN ? copysignf(0, value) : value;
}

static float half(const uint8_t *bytes) {
  uint32_t bits = (uint32_t)bytes[1] << 24 | (uint32_t)bytes[0] << 16;
  float value;
  memcpy(&value, &bits, 4);
  return daz(value);
}

static void multiply(Tile *sums, const Tile *a, const Tile *b, int is_bfloat16, int a_signed, int b_signed) {
  require(sums != a && sums != b && a != b, "a product of a tile with itself");
  require(sums->row_bytes % 4 == 0 && a->row_bytes % 4 == 0 && b->row_bytes % 4 == 0, "uneven rows");
  require(sums->rows == a->rows, "sums and first operand with different rows");
  require(a->row_bytes / 4 == b->rows, "operands with different depths");
  require(sums->row_bytes == b->row_bytes, "sums and second operand with different lanes");
  int lanes = sums->row_bytes / 4, groups = a->row_bytes / 4;
  for (int m = 0; m < sums->rows; m++)
    for (int n = 0; n < lanes; n++) {
      if (is_bfloat16) {
        float even = 0, odd = 0, total;
        for (int k = 0; k < groups; k++) {
          even = daz(fmaf(half(&a->data[m][4 * k]), half(&b->data[k][4 * n]), even));
          odd = daz(fmaf(half(&a->data[m][4 * k + 2]), half(&b->data[k][4 * n + 2]), odd));
        }
        memcpy(&total, &sums->data[m][4 * n], 4);
        total = daz(daz(total) + daz(even + odd));
        memcpy(&sums->data[m][4 * n], &total, 4);
        continue;
      }
      uint32_t total;
      memcpy(&total, &sums->data[m][4 * n], 4);
      for (int k = 0; k < groups; k++)
        for (int i = 0; i < 4; i++)
          total += (uint32_t)(byte_of(a->data[m][4 * k + i], a_signed) * byte_of(b->data[k][4 * n + i], b_signed));
      memcpy(&sums->data[m][4 * n], &total, 4);
    }
  memset(sums->data[sums->rows], 0, (size_t)(ROWS - sums->rows) * BYTES);
}

static const int REGISTERS[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                                  REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};

static Tile *used(int number) {
  require(is_configured, "an instruction before LDTILECFG");
  require(number < TILES && tiles[number].rows, "a tile without a configuration");
  return &tiles[number];
}

/* Execute the instruction at `code`; return its length, or 0 if it isn't AMX's. */
static int execute(const uint8_t *code, const greg_t *registers) {
  if (code[0] != 0xC4 || (code[1] & 0x1F) != 2 || (code[2] & 0x84)) return 0; /* VEX.128.0F38.W0 */
  int prefix = code[2] & 3, third = ~(code[2] >> 3) & 15, opcode = code[3], modrm = code[4];
  int mod = modrm >> 6, reg = (modrm >> 3 & 7) | (code[1] & 0x80 ? 0 : 8), rm = modrm & 7;
  int index_high = code[1] & 0x40 ? 0 : 8, base_high = code[1] & 0x20 ? 0 : 8, length = 5;
  if (mod == 3) {
    if (opcode == 0x49 && modrm == 0xC0 && prefix == 0) {
      memset(tiles, 0, sizeof tiles);
      is_configured = 0;
      counts[RELEASE]++;
    } else if (opcode == 0x49 && rm == 0 && prefix == 3) {
      memset(used(reg)->data, 0, sizeof tiles[reg].data);
    } else if (opcode == 0x5C && prefix == 2) {
      multiply(used(reg), used(rm | base_high), used(third), 1, 0, 0);
      counts[MULTIPLY]++;
    } else if (opcode == 0x5E) { /* none, 66, F3 and F2 mean uu, us, su and ss */
      multiply(used(reg), used(rm | base_high), used(third), 0, prefix >= 2, prefix & 1);
      counts[MULTIPLY]++;
    } else {
      return 0;
    }
    return length;
  }
  int64_t base = 0, stride = 0;
  int32_t displacement = 0;
  int is_relative = 0, is_absolute = 0;
  if (rm == 4) {
    int sib = code[length++], number = (sib >> 3 & 7) | index_high;
    if (number != 4) stride = (int64_t)registers[REGISTERS[number]] << (sib >> 6);
    is_absolute = mod == 0 && (sib & 7) == 5;
    if (!is_absolute) base = registers[REGISTERS[(sib & 7) | base_high]];
  } else if (mod == 0 && rm == 5) {
    is_relative = 1;
  } else {
    base = registers[REGISTERS[rm | base_high]];
  }
  if (mod == 1) {
    displacement = (int8_t)code[length];
    length += 1;
  } else if (mod == 2 || is_relative || is_absolute) {
    memcpy(&displacement, code + length, 4);
    length += 4;
  }
  if (is_relative) base = (int64_t)(code + length);
  uint8_t *memory = (uint8_t *)(base + displacement);
  if (opcode == 0x49 && prefix == 0 && reg == 0) {
    configure(memory + stride);
    counts[CONFIGURE]++;
  } else if (opcode == 0x4B && rm == 4 && (prefix == 3 || prefix == 1)) {
    load(used(reg), memory, stride);
    counts[LOAD]++;
  } else if (opcode == 0x4B && rm == 4 && prefix == 2) {
    store(used(reg), memory, stride);
    counts[STORE]++;
  } else {
    return 0;
  }
  return length;
}

static void handle(int signal, siginfo_t *info, void *context) {
  greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
  int length = execute((const uint8_t *)registers[REG_RIP], registers);
  if (length)
    registers[REG_RIP] += length;
  else
    sigaction(SIGILL, &before, NULL); /* the instruction raises the signal again */
}

int amx_install(void) {
  struct sigaction action = {0};
  action.sa_sigaction = handle;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  return sigaction(SIGILL, &action, &before);
}

int amx_remove(void) { return sigaction(SIGILL, &before, NULL); }

/* Return how many instructions of a kind were executed, and begin to count anew. */
long amx_take_count(int kind) { return atomic_exchange(&counts[kind], 0); }
