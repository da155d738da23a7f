/* Answers for the processor where a library asks what it can do: the instructions that asked were replaced
 * by ones that no processor knows (see cpu_masking.py), so that the kernel calls us instead. */

#define _GNU_SOURCE
#include <cpuid.h>
#include <signal.h>
#include <stdlib.h>
#include <ucontext.h>

/* 0x06 is no instruction in 64-bit mode; 0xa2 is left of CPUID, 0x0f 0xa2. */
static const unsigned char MARK[2] = {0x06, 0xa2};

static int hides_avx = 0;
static int asked = 0;

int tunefarm_cpuid_asked(void) { return asked; }

static void hide(unsigned leaf, unsigned part, unsigned *a, unsigned *b, unsigned *c, unsigned *d) {
    if (leaf == 7 && part == 0) {
        *b &= ~(1u << 16 | 1u << 17 | 1u << 21 | 1u << 26 | 1u << 27 | 1u << 28 | 1u << 30 | 1u << 31);
        *c &= ~(1u << 1 | 1u << 6 | 1u << 11 | 1u << 12 | 1u << 14);
        *d &= ~(1u << 2 | 1u << 3 | 1u << 8 | 1u << 22 | 1u << 23 | 1u << 24 | 1u << 25);
    }
    if (leaf == 7 && part == 1) *a &= ~(1u << 5 | 1u << 21); /* bfloat16 of AVX-512, half floats of AMX */
    if (!hides_avx) return;
    if (leaf == 1) *c &= ~(1u << 12 | 1u << 28 | 1u << 29);         /* FMA, AVX, half floats */
    if (leaf == 7 && part == 0) {
        *b &= ~(1u << 5);           /* AVX2 */
        *c &= ~(1u << 9 | 1u << 10); /* vectors of AES and carry-less products */
    }
    if (leaf == 7 && part == 1) {
        *a &= ~(1u << 4 | 1u << 23);          /* VNNI and IFMA of AVX */
        *d &= ~(1u << 4 | 1u << 5 | 1u << 10); /* VNNI and conversions of AVX */
    }
    if (leaf == 0x80000001u) *c &= ~(1u << 11 | 1u << 16); /* XOP, FMA4 */
}

static void answer(int signal_number, siginfo_t *info, void *context) {
    greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    const unsigned char *code = (const unsigned char *)registers[REG_RIP];
    unsigned leaf = (unsigned)registers[REG_RAX], part = (unsigned)registers[REG_RCX], a, b, c, d;
    (void)info;
    if (code[0] != MARK[0] || code[1] != MARK[1]) {
        signal(signal_number, SIG_DFL); /* somebody else's: it ends the process when it is run again */
        return;
    }
    __cpuid_count(leaf, part, a, b, c, d);
    hide(leaf, part, &a, &b, &c, &d);
    registers[REG_RAX] = a;
    registers[REG_RBX] = b;
    registers[REG_RCX] = c;
    registers[REG_RDX] = d;
    registers[REG_RIP] += sizeof MARK;
    asked++;
}

/* With `avx` everything from AVX on is hidden, otherwise everything from AVX-512 on. */
int tunefarm_hide(int avx) {
    struct sigaction action = {0};
    hides_avx = avx;
    action.sa_sigaction = answer;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    return sigaction(SIGILL, &action, NULL);
}
