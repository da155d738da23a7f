/* Times calls of a bundle, or of its only kernel, in turns.
 *
 * usage: calls BUNDLE THREADS CALLS [KERNEL]
 *
 * A sample is CALLS calls in a row. Each line of standard input, "WARM_UP_S MIN_S", asks for a turn; a line of standard
 * output answers with the seconds of one call in each sample. KERNEL is the symbol of a function in model.so. It is
 * called on the model's inputs and outputs, without TVM's virtual machine. */
#define _POSIX_C_SOURCE 200809L
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <tvm/ffi/c_api.h>

#include "tunefarm.h"

enum { MAX_TENSORS = 16, MIN_SAMPLES = 3 };
typedef int (*kernel_function)(void*, const TVMFFIAny*, int32_t, TVMFFIAny*);

static tunefarm_model* model;
static kernel_function kernel;
static void *inputs[MAX_TENSORS], *outputs[MAX_TENSORS];
static DLTensor tensors[2 * MAX_TENSORS];
static TVMFFIAny arguments[2 * MAX_TENSORS];
static int count;

static void fail(const char* why) {
  fprintf(stderr, "%s\n", why);
  exit(1);
}

static void check(tunefarm_status status) {
  if (status.code != TUNEFARM_OK) fail(status.message);
}

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static void call(void) {
  if (kernel == NULL) {
    check(tunefarm_run(model, (const void* const*)inputs, outputs));
    return;
  }
  TVMFFIAny result = {0};
  if (kernel(NULL, arguments, count, &result) != 0) fail("the kernel failed");
}

/* Allocate tensors, and describe them as arguments of the kernel. */
static void place(tunefarm_status (*describe)(const tunefarm_model*, const tunefarm_tensor**, size_t*), void** memory) {
  const tunefarm_tensor* described;
  size_t number;
  check(describe(model, &described, &number));
  if (number > MAX_TENSORS) fail("the model has too many tensors");
  for (size_t i = 0; i < number; ++i) {
    if (posix_memalign(&memory[i], 64, described[i].bytes + 64) != 0) fail("there is no memory");
    memset(memory[i], 0, described[i].bytes);
    DLTensor tensor = {memory[i], {kDLCPU, 0}, described[i].ndim, {0}, (int64_t*)described[i].shape, NULL, 0};
    TVMFFIByteArray type = {described[i].dtype, strlen(described[i].dtype)};
    if (TVMFFIDataTypeFromString(&type, &tensor.dtype) != 0) fail("a type is unknown");
    tensors[count] = tensor;
    arguments[count].type_index = kTVMFFIDLTensorPtr;
    arguments[count].v_ptr = &tensors[count];
    ++count;
  }
}

int main(int argc, char** argv) {
  if (argc < 4) fail("usage: calls BUNDLE THREADS CALLS [KERNEL]");
  const int calls = atoi(argv[3]);
  check(tunefarm_load(argv[1], atoi(argv[2]), &model));
  place(tunefarm_inputs, inputs);
  place(tunefarm_outputs, outputs);
  if (argc > 4) {
    char path[4096];
    snprintf(path, sizeof path, "%s/model.so", argv[1]);
    void* library = dlopen(path, RTLD_NOW);
    void* symbol = library == NULL ? NULL : dlsym(library, argv[4]);
    if (symbol == NULL) fail(dlerror());
    memcpy(&kernel, &symbol, sizeof kernel);
  }
  double warm_up_s, min_s;
  while (scanf("%lf %lf", &warm_up_s, &min_s) == 2) {
    for (double end = now() + warm_up_s; now() < end;) call();
    const double end = now() + min_s;
    for (int samples = 0; samples < MIN_SAMPLES || now() < end; ++samples) {
      const double begin = now();
      for (int i = 0; i < calls; ++i) call();
      printf("%.9g ", (now() - begin) / calls);
    }
    printf("\n");
    fflush(stdout);
  }
  tunefarm_free(model);
  return 0;
}
