/* Run a bundle on inputs of ones (0 for integers), and print the first elements of each float32 output.
 * usage: main [FOLDER] */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tunefarm.h"

static void check(tunefarm_status status) {
  if (status.code == TUNEFARM_OK) return;
  fprintf(stderr, "%s\n", status.message);
  exit(status.code);
}

int main(int argc, char** argv) {
  tunefarm_model* model;
  const tunefarm_tensor *inputs, *outputs;
  size_t input_count, output_count;
  check(tunefarm_load(argc > 1 ? argv[1] : ".", 0, &model));
  check(tunefarm_inputs(model, &inputs, &input_count));
  check(tunefarm_outputs(model, &outputs, &output_count));

  void** in = calloc(input_count + 1, sizeof *in);
  void** out = calloc(output_count, sizeof *out);
  for (size_t i = 0; i < input_count; ++i) {
    in[i] = calloc(1, inputs[i].bytes + 1);
    if (strcmp(inputs[i].dtype, "float32") == 0)
      for (size_t at = 0; at < inputs[i].bytes / sizeof(float); ++at) ((float*)in[i])[at] = 1;
  }
  for (size_t i = 0; i < output_count; ++i) out[i] = malloc(outputs[i].bytes + 1);

  int is_decoder = tunefarm_reset(model, 0).code == TUNEFARM_OK;
  if (is_decoder) check(tunefarm_step(model, 1, (const void* const*)in, out));
  else check(tunefarm_run(model, (const void* const*)in, out));

  for (size_t i = 0; i < output_count; ++i) {
    printf("%s (%s):", outputs[i].name, outputs[i].dtype);
    if (strcmp(outputs[i].dtype, "float32") == 0)
      for (size_t at = 0; at < 5 && at < outputs[i].bytes / sizeof(float); ++at) printf(" %g", ((float*)out[i])[at]);
    printf("\n");
    free(out[i]);
  }
  for (size_t i = 0; i < input_count; ++i) free(in[i]);
  free(in);
  free(out);
  tunefarm_free(model);
  return 0;
}
