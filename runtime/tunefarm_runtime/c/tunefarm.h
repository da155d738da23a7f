/* Run a model that tunefarm has compiled, from C.
 *
 * A bundle is a folder with model.so, model.txt and the runtime libraries. Load it, fill the inputs, run, read the
 * outputs. Each function but tunefarm_free returns a status: code 0, or a code below and a message.
 * A model is for one thread at a time.
 */
#ifndef TUNEFARM_H
#define TUNEFARM_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { TUNEFARM_OK = 0, TUNEFARM_BAD_ARGUMENT = 1, TUNEFARM_BAD_FOLDER = 2, TUNEFARM_NO_MEMORY = 3, TUNEFARM_FAILED = 4 };

typedef struct {
  int code;
  char message[500];
} tunefarm_status;

typedef struct {
  const char* name;
  const char* dtype;    /* "float32", "int64", ...; an element of less than a byte ("int4", "uint4", "int2", "uint2",
                         * "float4_e2m1fn") is the low bits of a byte. Upper bits of inputs are ignored, of outputs 0 */
  int ndim;
  const int64_t* shape; /* ndim lengths; elements are in row-major order */
  size_t bytes;         /* the size of the whole tensor */
} tunefarm_tensor;

typedef struct tunefarm_model tunefarm_model;

/* Load the bundle in `folder`. `threads` is the number of threads to compute with, 0 for the number that the model
 * was tuned for. The first load of a process decides it for all models. */
tunefarm_status tunefarm_load(const char* folder, int threads, tunefarm_model** model);

/* Describe the inputs, or the outputs. The array belongs to the model. A decoder's cache isn't among them. */
tunefarm_status tunefarm_inputs(const tunefarm_model* model, const tunefarm_tensor** tensors, size_t* count);
tunefarm_status tunefarm_outputs(const tunefarm_model* model, const tunefarm_tensor** tensors, size_t* count);

/* Run the model. `inputs` and `outputs` hold a pointer for each input and output, to as many bytes as its tensor
 * has. An input that begins at a multiple of 64 bytes is read where it is; another one is copied first. */
tunefarm_status tunefarm_run(tunefarm_model* model, const void* const* inputs, void* const* outputs);

/* Run a decoder that keeps its cache, and append so many new tokens to the cache. `inputs` and `outputs` are as in
 * tunefarm_run. If `tokens` is less than their shapes say, fill the inputs up with any token: the outputs of the first
 * `tokens` are right. A step needs room in the cache for as many tokens as the shapes say. */
tunefarm_status tunefarm_step(tunefarm_model* model, size_t tokens, const void* const* inputs, void* const* outputs);

/* Keep only the first `length` tokens in a decoder's cache; 0 empties it. */
tunefarm_status tunefarm_reset(tunefarm_model* model, size_t length);

/* Free the model. NULL is allowed. */
void tunefarm_free(tunefarm_model* model);

#ifdef __cplusplus
}
#endif
#endif
