/* The functions of tunefarm.h, over the C interface of TVM's runtime (tvm/ffi/c_api.h). */
#define _GNU_SOURCE
#include "tunefarm.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <tvm/ffi/c_api.h>
#include <unistd.h>

enum { ALIGNMENT = 64, MAX_DIMS = 16, MAX_TENSORS = 1024, MAX_LINE = 4096, MAX_ELEMENT_BYTES = 8, POOLED_ALLOCATOR = 2 };
enum { MAX_HELPERS = 256 };
/* The threads of TVM's pool sleep after about this long. Waking them isn't worth it for a short run. */
static const double PAUSE_S = 0.002, SHORT_S = 0.0003;

typedef struct {
  tunefarm_tensor* tensors;
  DLDataType* types;
  void** buffers; /* aligned copies of inputs, made when they are first needed */
  size_t count;
} tensor_list;

struct tunefarm_model {
  tensor_list inputs, outputs;
  tensor_list state; /* a decoder's inputs that the model keeps: the number of earlier tokens, then the cache */
  size_t capacity, count; /* the tokens that the cache holds, and the tokens of a step; 0 for other models */
  size_t written; /* steps wrote the cache's rows before this one; the others are zero */
  int axes[MAX_TENSORS]; /* of the rows, for each tensor of the state */
  TVMFFIObjectHandle library, machine, main;
  TVMFFIAny* arguments; /* the inputs, then what stays the same in all runs: the state and the weights */
  DLManagedTensor* managed;
  size_t kept; /* how many arguments stay the same */
  void* file; /* model.so with the weights, mapped into memory */
  size_t file_bytes;
};

/* An object's own fields come right after the header that all objects share. */
static void* fields_of(TVMFFIObjectHandle object) { return (char*)object + sizeof(TVMFFIObject); }

static tunefarm_status status(int code, const char* format, ...) {
  tunefarm_status result = {code, ""};
  va_list values;
  va_start(values, format);
  vsnprintf(result.message, sizeof result.message, format, values);
  va_end(values);
  return result;
}

static tunefarm_status ok(void) { return status(TUNEFARM_OK, "%s", ""); }

/* The error that TVM raised in this thread. */
static tunefarm_status tvm_error(const char* what) {
  TVMFFIObjectHandle error = NULL;
  TVMFFIErrorMoveFromRaised(&error);
  if (error == NULL) return status(TUNEFARM_FAILED, "%s: TVM's runtime gave no reason", what);
  TVMFFIErrorCell* cell = fields_of(error);
  tunefarm_status result =
      status(TUNEFARM_FAILED, "%s: %.*s", what, (int)cell->message.size, cell->message.data);
  TVMFFIObjectDecRef(error);
  return result;
}

static TVMFFIByteArray bytes_of(const char* text) {
  TVMFFIByteArray bytes = {text, strlen(text)};
  return bytes;
}

static void release(TVMFFIObjectHandle object) {
  if (object != NULL) TVMFFIObjectDecRef(object);
}

static TVMFFIAny object_argument(TVMFFIObjectHandle object) {
  TVMFFIAny any = {0};
  any.type_index = ((TVMFFIObject*)object)->type_index;
  any.v_obj = (TVMFFIObject*)object;
  return any;
}

static TVMFFIAny string_argument(const char* text) {
  TVMFFIAny any = {0};
  any.type_index = kTVMFFIRawStr;
  any.v_c_str = text;
  return any;
}

static TVMFFIAny int_argument(int64_t value) {
  TVMFFIAny any = {0};
  any.type_index = kTVMFFIInt;
  any.v_int64 = value;
  return any;
}

/* Call a global function that returns an object, or nothing if `result` is NULL. */
static int call_global(const char* name, TVMFFIAny* arguments, int count, TVMFFIObjectHandle* result) {
  TVMFFIByteArray key = bytes_of(name);
  TVMFFIObjectHandle function = NULL;
  TVMFFIAny returned = {0};
  if (TVMFFIFunctionGetGlobal(&key, &function) != 0 || function == NULL) return -1;
  int code = TVMFFIFunctionCall(function, arguments, count, &returned);
  release(function);
  if (code == 0 && result != NULL) *result = returned.v_obj;
  return code;
}

/* A function of a module. It is NULL if the module has none of this name. */
static int module_function(TVMFFIObjectHandle module, const char* name, TVMFFIObjectHandle* function) {
  TVMFFIAny arguments[3] = {object_argument(module), string_argument(name), {0}};
  arguments[2].type_index = kTVMFFIBool;
  arguments[2].v_int64 = 1; /* look into imported modules, too */
  return call_global("ffi.ModuleGetFunction", arguments, 3, function);
}

static int call(TVMFFIObjectHandle function, TVMFFIAny* arguments, int count, TVMFFIObjectHandle* result) {
  TVMFFIAny returned = {0};
  int code = function == NULL ? -1 : TVMFFIFunctionCall(function, arguments, count, &returned);
  if (code == 0 && result != NULL) *result = returned.v_obj;
  return code;
}

/* Parse "input NAME DTYPE LENGTH..." of model.txt; names have no white space there (%XX instead). */
static tunefarm_status parse_tensor(tensor_list* list, char* text) {
  char *state = NULL, *name = strtok_r(text, " \n", &state), *dtype = strtok_r(NULL, " \n", &state), *word;
  int64_t lengths[MAX_DIMS], elements = 1;
  int ndim = 0;
  if (name == NULL || dtype == NULL || list->count == MAX_TENSORS)
    return status(TUNEFARM_BAD_FOLDER, "model.txt is damaged: make the bundle again");
  while ((word = strtok_r(NULL, " \n", &state)) != NULL) {
    if (ndim == MAX_DIMS) return status(TUNEFARM_BAD_FOLDER, "%s has over %d dimensions", name, MAX_DIMS);
    lengths[ndim] = strtoll(word, NULL, 10);
    if (lengths[ndim] < 0 || (lengths[ndim] > 0 && elements > INT64_MAX / MAX_ELEMENT_BYTES / lengths[ndim]))
      return status(TUNEFARM_BAD_FOLDER, "model.txt is damaged: make the bundle again");
    elements *= lengths[ndim++];
  }
  size_t at = list->count;
  list->tensors = realloc(list->tensors, (at + 1) * sizeof *list->tensors);
  list->types = realloc(list->types, (at + 1) * sizeof *list->types);
  list->buffers = realloc(list->buffers, (at + 1) * sizeof *list->buffers);
  int64_t* shape = malloc(sizeof(int64_t) * (size_t)(ndim + 1));
  if (list->tensors == NULL || list->types == NULL || list->buffers == NULL || shape == NULL)
    return status(TUNEFARM_NO_MEMORY, "there is no memory for the model's description");
  memcpy(shape, lengths, sizeof(int64_t) * (size_t)ndim);
  TVMFFIByteArray type_name = bytes_of(dtype);
  if (TVMFFIDataTypeFromString(&type_name, &list->types[at]) != 0) return tvm_error(dtype);
  if (list->types[at].bits < 8 || strncmp(dtype, "float8", 6) == 0) {
    /* The library keeps the code of such an element in a byte. */
    DLDataType byte = {kDLUInt, 8, 1};
    list->types[at] = byte;
  }
  size_t bits = (size_t)list->types[at].bits * list->types[at].lanes;
  tunefarm_tensor tensor = {strdup(name), strdup(dtype), ndim, shape, (size_t)elements * (bits / 8)};
  list->tensors[at] = tensor;
  list->buffers[at] = NULL;
  list->count = at + 1;
  return ok();
}

/* Parse "cache CAPACITY COUNT AXIS...": each of the cache's buffers has its rows along an axis. */
static void parse_cache(tunefarm_model* model, const char* text) {
  char* end = NULL;
  model->capacity = strtoul(text, &end, 10);
  model->count = strtoul(end, &end, 10);
  for (size_t i = 1; i < MAX_TENSORS; ++i) model->axes[i] = (int)strtoul(end, &end, 10);
}

/* Whether the state is the number of earlier tokens, and buffers with rows for as many tokens as the cache holds. */
static int is_whole_cache(const tunefarm_model* model) {
  const tensor_list* state = &model->state;
  if (model->count > model->capacity || state->count < 2 || state->tensors[0].bytes != sizeof(int64_t)) return 0;
  for (size_t i = 1; i < state->count; ++i) {
    int axis = model->axes[i];
    if (axis < 0 || axis >= state->tensors[i].ndim || state->tensors[i].shape[axis] != (int64_t)model->capacity) return 0;
  }
  return 1;
}

/* Ask Linux to let this process use AMX's tiles. */
static tunefarm_status request_tiles(const char* folder) {
#if defined(__linux__) && defined(__x86_64__)
  enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 };
  if (syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) != 0)
    return status(TUNEFARM_FAILED,
                  "%.400s uses AMX, and Linux doesn't let this process use it (%s): update the kernel to 5.16 or later, "
                  "or tune the model on a worker with --features=-amx_tile",
                  folder, strerror(errno));
#else
  (void)folder;
#endif
  return ok();
}

static tunefarm_status read_description(tunefarm_model* model, const char* folder, int* threads) {
  char path[MAX_LINE], line[MAX_LINE];
  snprintf(path, sizeof path, "%s/model.txt", folder);
  FILE* file = fopen(path, "r");
  if (file == NULL) return status(TUNEFARM_BAD_FOLDER, "%.400s can't be read: name a bundle's folder", path);
  tunefarm_status result = ok();
  while (result.code == TUNEFARM_OK && fgets(line, sizeof line, file) != NULL) {
    if (strncmp(line, "input ", 6) == 0) result = parse_tensor(&model->inputs, line + 6);
    else if (strncmp(line, "output ", 7) == 0) result = parse_tensor(&model->outputs, line + 7);
    else if (strncmp(line, "state ", 6) == 0) result = parse_tensor(&model->state, line + 6);
    else if (strcmp(line, "tiles\n") == 0) result = request_tiles(folder);
    else if (strncmp(line, "cache ", 6) == 0) parse_cache(model, line + 6);
    else if (strncmp(line, "threads ", 8) == 0 && *threads == 0) *threads = atoi(line + 8);
  }
  fclose(file);
  if (result.code == TUNEFARM_OK && model->outputs.count == 0)
    return status(TUNEFARM_BAD_FOLDER, "%.400s describes no output: make the bundle again", path);
  int is_whole = model->count == 0 ? model->state.count == 0 : is_whole_cache(model);
  if (result.code == TUNEFARM_OK && !is_whole)
    return status(TUNEFARM_BAD_FOLDER, "%.400s describes no whole cache: make the bundle again", path);
  return result;
}

static void keep_memory(DLManagedTensor* tensor) { (void)tensor; /* it belongs to the caller */ }

/* Make memory of a tensor that stays the same an argument. */
static tunefarm_status keep_argument(tunefarm_model* model, void* data, DLDataType type, int ndim, const int64_t* lengths) {
  size_t at = model->inputs.count + model->kept;
  DLManagedTensor* managed = &model->managed[at];
  int64_t* shape = calloc((size_t)ndim + 1, sizeof *shape);
  if (shape == NULL) return status(TUNEFARM_NO_MEMORY, "there is no memory for the model's description");
  memcpy(shape, lengths, (size_t)ndim * sizeof *shape);
  DLTensor tensor = {data, {kDLCPU, 0}, ndim, type, shape, NULL, 0};
  managed->dl_tensor = tensor;
  managed->deleter = keep_memory;
  TVMFFIObjectHandle object = NULL;
  ++model->kept;
  if (TVMFFITensorFromDLPack(managed, ALIGNMENT, 1, &object) != 0) return tvm_error("a weight or a cache");
  model->arguments[at] = object_argument(object);
  return ok();
}

static tunefarm_status make_arguments(tunefarm_model* model, size_t weights) {
  size_t count = model->inputs.count + model->state.count + weights + 1;
  model->arguments = calloc(count, sizeof *model->arguments);
  model->managed = calloc(count, sizeof *model->managed);
  if (model->arguments == NULL || model->managed == NULL) return status(TUNEFARM_NO_MEMORY, "there is no memory for the arguments");
  for (size_t i = 0; i < model->inputs.count; ++i) {
    DLTensor tensor = {NULL, {kDLCPU, 0}, model->inputs.tensors[i].ndim, model->inputs.types[i],
                       (int64_t*)model->inputs.tensors[i].shape, NULL, 0};
    model->managed[i].dl_tensor = tensor;
    model->managed[i].deleter = keep_memory;
  }
  for (size_t i = 0; i < model->state.count; ++i) {
    const tunefarm_tensor* tensor = &model->state.tensors[i];
    if (posix_memalign(&model->state.buffers[i], ALIGNMENT, tensor->bytes + ALIGNMENT) != 0)
      return status(TUNEFARM_NO_MEMORY, "there is no memory for %s", tensor->name);
    memset(model->state.buffers[i], 0, tensor->bytes);
    tunefarm_status result = keep_argument(model, model->state.buffers[i], model->state.types[i], tensor->ndim, tensor->shape);
    if (result.code != TUNEFARM_OK) return result;
  }
  return ok();
}

/* Make a weight in the mapped file an argument. A line of the index is "SHA256 DTYPE OFFSET SIZE LENGTH...". */
static tunefarm_status add_weight(tunefarm_model* model, char* line, const char* path) {
  char *state = NULL, *word;
  int64_t numbers[MAX_DIMS + 2];
  int count = 0;
  strtok_r(line, " ", &state);
  char* dtype = strtok_r(NULL, " ", &state);
  while (count < MAX_DIMS + 2 && (word = strtok_r(NULL, " ", &state)) != NULL) numbers[count++] = strtoll(word, NULL, 10);
  if (count < 2 || numbers[0] < 0 || numbers[1] < 0 || (uint64_t)numbers[0] + (uint64_t)numbers[1] > model->file_bytes)
    return status(TUNEFARM_BAD_FOLDER, "%.400s is damaged: make the bundle again", path);
  DLDataType type;
  TVMFFIByteArray type_name = bytes_of(dtype);
  if (TVMFFIDataTypeFromString(&type_name, &type) != 0) return tvm_error(dtype);
  uint64_t element_bits = (uint64_t)type.bits * type.lanes;
  uint64_t most = element_bits == 0 ? 0 : (uint64_t)numbers[1] * 8 / element_bits, elements = 1;
  for (int k = 2; k < count; ++k) {
    if (numbers[k] < 0 || (numbers[k] > 0 && elements > most / (uint64_t)numbers[k]))
      return status(TUNEFARM_BAD_FOLDER, "%.400s is damaged: make the bundle again", path);
    elements *= (uint64_t)numbers[k];
  }
  if (elements > most) return status(TUNEFARM_BAD_FOLDER, "%.400s is damaged: make the bundle again", path);
  return keep_argument(model, (char*)model->file + numbers[0], type, count - 2, numbers + 2);
}

/* Map the weights behind the library, if there are any. Their index, its mark and its length end the file. */
static tunefarm_status load_weights(tunefarm_model* model, const char* path) {
  struct stat file;
  int descriptor = open(path, O_RDONLY);
  if (descriptor < 0 || fstat(descriptor, &file) != 0) {
    if (descriptor >= 0) close(descriptor);
    return status(TUNEFARM_BAD_FOLDER, "%.400s can't be read", path);
  }
  model->file_bytes = (size_t)file.st_size;
  void* mapped = mmap(NULL, model->file_bytes, PROT_READ, MAP_PRIVATE, descriptor, 0);
  close(descriptor);
  if (mapped == MAP_FAILED) return status(TUNEFARM_NO_MEMORY, "%.400s can't be mapped into memory", path);
  model->file = mapped;
  const char* end = (char*)model->file + model->file_bytes;
  uint64_t length = 0;
  if (model->file_bytes < 16 || memcmp(end - 16, "TFWHOLE1", 8) != 0) return make_arguments(model, 0);
  memcpy(&length, end - 8, sizeof length);
  char* text = length <= model->file_bytes - 16 ? strndup(end - 16 - length, (size_t)length) : NULL;
  if (text == NULL) return status(TUNEFARM_BAD_FOLDER, "%.400s is damaged: make the bundle again", path);
  size_t lines = 0;
  for (const char* at = text; *at != 0; ++at) lines += *at == '\n';
  tunefarm_status result = make_arguments(model, lines);
  char* state = NULL;
  strtok_r(text, "\n", &state); /* the length of the library */
  for (char* line; result.code == TUNEFARM_OK && (line = strtok_r(NULL, "\n", &state)) != NULL;)
    result = add_weight(model, line, path);
  free(text);
  return result;
}

static tunefarm_status load(tunefarm_model* model, const char* folder, int threads) {
  char path[MAX_LINE], count[32];
  tunefarm_status result = read_description(model, folder, &threads);
  if (result.code != TUNEFARM_OK) return result;
  snprintf(count, sizeof count, "%d", threads);
  if (threads > 0) setenv("TVM_NUM_THREADS", count, 1);
  setenv("TVM_BIND_THREADS", "0", 0); /* or else TVM binds the caller to the first processors */
  setenv("TVM_THREAD_POOL_SPIN_COUNT", "4000", 0); /* or else idle threads compete with other processes */
  /* model.so finds what it calls among the symbols of the whole process, which has each library once. */
  static const char* const libraries[] = {"libtvm_ffi.so", "libtvm_runtime.so", "libtvm_runtime_extra.so"};
  for (size_t i = 0; i < sizeof libraries / sizeof *libraries; ++i) {
    if (dlopen(libraries[i], RTLD_NOW | RTLD_GLOBAL | RTLD_NOLOAD) != NULL) continue;
    snprintf(path, sizeof path, "%s/lib/%s", folder, libraries[i]);
    if (dlopen(path, RTLD_NOW | RTLD_GLOBAL) == NULL)
      return status(TUNEFARM_BAD_FOLDER, "TVM's runtime can't be loaded: %.400s", dlerror());
  }
  snprintf(path, sizeof path, "%s/model.so", folder);
  TVMFFIAny file = string_argument(path);
  if (call_global("ffi.ModuleLoadFromFile", &file, 1, &model->library) != 0) return tvm_error(path);
  TVMFFIObjectHandle function = NULL;
  TVMFFIAny device[3] = {int_argument(kDLCPU), int_argument(0), int_argument(POOLED_ALLOCATOR)};
  int code = module_function(model->library, "vm_load_executable", &function);
  if (code == 0) code = call(function, NULL, 0, &model->machine);
  release(function);
  function = NULL;
  if (code == 0) code = module_function(model->machine, "vm_initialization", &function);
  if (code == 0) code = call(function, device, 3, NULL);
  release(function);
  if (code == 0) code = module_function(model->machine, "main", &model->main);
  if (code != 0) return tvm_error(path);
  return load_weights(model, path);
}

tunefarm_status tunefarm_load(const char* folder, int threads, tunefarm_model** model) {
  if (folder == NULL || model == NULL || threads < 0 || strlen(folder) > MAX_LINE - 32)
    return status(TUNEFARM_BAD_ARGUMENT, "pass a folder, a number of threads (0 for the model's own) and a place for the model");
  *model = calloc(1, sizeof **model);
  if (*model == NULL) return status(TUNEFARM_NO_MEMORY, "there is no memory for the model");
  tunefarm_status result = load(*model, folder, threads);
  if (result.code != TUNEFARM_OK) {
    tunefarm_free(*model);
    *model = NULL;
  }
  return result;
}

static tunefarm_status describe(const tensor_list* list, const tunefarm_tensor** tensors, size_t* count) {
  if (tensors == NULL || count == NULL) return status(TUNEFARM_BAD_ARGUMENT, "pass places for the tensors and their number");
  *tensors = list->tensors;
  *count = list->count;
  return ok();
}

tunefarm_status tunefarm_inputs(const tunefarm_model* model, const tunefarm_tensor** tensors, size_t* count) {
  if (model == NULL) return status(TUNEFARM_BAD_ARGUMENT, "the model is NULL: load one first");
  return describe(&model->inputs, tensors, count);
}

tunefarm_status tunefarm_outputs(const tunefarm_model* model, const tunefarm_tensor** tensors, size_t* count) {
  if (model == NULL) return status(TUNEFARM_BAD_ARGUMENT, "the model is NULL: load one first");
  return describe(&model->outputs, tensors, count);
}

/* Where compiled code may read an input: the caller's memory, or an aligned copy of it. */
static void* aligned(tensor_list* list, size_t i, const void* data) {
  if ((uintptr_t)data % ALIGNMENT == 0) return (void*)data;
  if (list->buffers[i] == NULL && posix_memalign(&list->buffers[i], ALIGNMENT, list->tensors[i].bytes + ALIGNMENT) != 0)
    return NULL;
  return memcpy(list->buffers[i], data, list->tensors[i].bytes);
}

static tunefarm_status copy_output(const tunefarm_model* model, size_t i, TVMFFIObjectHandle tensor, void* data) {
  DLTensor* from = fields_of(tensor);
  int64_t elements = 1;
  for (int axis = 0; axis < from->ndim; ++axis) elements *= from->shape[axis];
  size_t bytes = (size_t)elements * (((size_t)from->dtype.bits * from->dtype.lanes + 7) / 8);
  if (bytes != model->outputs.tensors[i].bytes)
    return status(TUNEFARM_FAILED, "output %s has %zu bytes, and model.txt says %zu", model->outputs.tensors[i].name, bytes,
                  model->outputs.tensors[i].bytes);
  memcpy(data, (char*)from->data + from->byte_offset, bytes);
  return ok();
}

/* The threads of TVM's pool that help this thread. The system may wake them on this thread's processor and leave
 * them there: a short run then takes as many times longer. So they are woken on separate processors first. They
 * aren't bound there, because a thread bound to a busy processor holds up all others. */
static _Thread_local struct {
  int is_known, count;
  pid_t ids[MAX_HELPERS];
  double ended_s, took_s; /* of the last run */
} helpers;

/* TVMBackendParallelLaunch runs a task in each thread of the caller's pool, if `count` is 0. */
typedef int (*pool_task)(int number, void* group, void* given);
typedef int (*pool_launcher)(pool_task task, void* given, int count);

static pid_t own_id(void) { return (pid_t)syscall(SYS_gettid); }

static int note_id(int number, void* group, void* given) {
  (void)group;
  if (number < MAX_HELPERS) ((pid_t*)given)[number] = own_id();
  return 0;
}

static int do_nothing(int number, void* group, void* given) {
  (void)number, (void)group, (void)given;
  return 0;
}

static int launch(pool_task task, void* given) {
  pool_launcher launcher = NULL;
  void* symbol = dlsym(RTLD_DEFAULT, "TVMBackendParallelLaunch");
  memcpy(&launcher, &symbol, sizeof launcher); /* C has no conversion to a pointer to a function */
  return launcher == NULL ? -1 : launcher(task, given, 0);
}

static void find_helpers(void) {
  pid_t ids[MAX_HELPERS] = {0};
  const char* binding = getenv("TVM_BIND_THREADS");
  helpers.is_known = 1;
  /* Threads that a user binds stay where they are. */
  if (binding == NULL || strcmp(binding, "0") != 0 || launch(note_id, ids) != 0) return;
  for (int i = 0; i < MAX_HELPERS; ++i)
    if (ids[i] != 0 && ids[i] != own_id()) helpers.ids[helpers.count++] = ids[i];
}

static void wake_helpers(void) {
  cpu_set_t allowed, one;
  int processor = -1, current = sched_getcpu();
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0 || CPU_COUNT(&allowed) <= helpers.count) return;
  for (int i = 0; i < helpers.count; ++i) {
    do ++processor;
    while (processor < CPU_SETSIZE && (processor == current || !CPU_ISSET(processor, &allowed)));
    if (processor == CPU_SETSIZE) break;
    CPU_ZERO(&one);
    CPU_SET(processor, &one);
    sched_setaffinity(helpers.ids[i], sizeof one, &one);
  }
  launch(do_nothing, NULL);
  for (int i = 0; i < helpers.count; ++i) sched_setaffinity(helpers.ids[i], sizeof allowed, &allowed);
}

static double seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Call the model's function. After a pause, wake the threads that help first. */
static int call_main(tunefarm_model* model, TVMFFIObjectHandle* returned) {
  double begun_s = seconds();
  if (!helpers.is_known) find_helpers();
  int is_short = helpers.ended_s > 0.0 && helpers.took_s < SHORT_S;
  if (helpers.count > 0 && !is_short && begun_s - helpers.ended_s > PAUSE_S) wake_helpers();
  int code = call(model->main, model->arguments, (int)(model->inputs.count + model->kept), returned);
  helpers.ended_s = seconds();
  helpers.took_s = helpers.ended_s - begun_s;
  return code;
}

static tunefarm_status run(tunefarm_model* model, const void* const* inputs, void* const* outputs) {
  tunefarm_status result = ok();
  TVMFFIObjectHandle returned = NULL;
  size_t made = 0;
  for (; made < model->inputs.count && result.code == TUNEFARM_OK; ++made) {
    TVMFFIObjectHandle tensor = NULL;
    void* data = inputs[made] == NULL ? NULL : aligned(&model->inputs, made, inputs[made]);
    model->managed[made].dl_tensor.data = data;
    if (inputs[made] == NULL) result = status(TUNEFARM_BAD_ARGUMENT, "input %s is NULL", model->inputs.tensors[made].name);
    else if (data == NULL) result = status(TUNEFARM_NO_MEMORY, "there is no memory for input %s", model->inputs.tensors[made].name);
    else if (TVMFFITensorFromDLPack(&model->managed[made], ALIGNMENT, 1, &tensor) != 0) result = tvm_error("an input");
    if (result.code != TUNEFARM_OK) break;
    model->arguments[made] = object_argument(tensor);
  }
  if (result.code == TUNEFARM_OK && call_main(model, &returned) != 0)
    result = tvm_error("the model failed");
  for (size_t i = 0; i < made; ++i) release(model->arguments[i].v_obj);
  for (size_t i = 0; result.code == TUNEFARM_OK && i < model->outputs.count; ++i) {
    TVMFFIObjectHandle tensor = returned;
    TVMFFIAny item[2] = {object_argument(returned), int_argument((int64_t)i)};
    /* TVM returns a single output by itself, and several as an array. */
    if (model->outputs.count > 1 && call_global("ffi.ArrayGetItem", item, 2, &tensor) != 0) result = tvm_error("an output");
    else if (outputs[i] == NULL) result = status(TUNEFARM_BAD_ARGUMENT, "output %s is NULL", model->outputs.tensors[i].name);
    else result = copy_output(model, i, tensor, outputs[i]);
    if (model->outputs.count > 1 && tensor != returned) release(tensor);
  }
  release(returned);
  return result;
}

/* Check the arguments of tunefarm_run, and of tunefarm_step if it is a decoder's step. */
static tunefarm_status check_call(const tunefarm_model* model, int is_step, const void* inputs, const void* outputs) {
  if (model == NULL || outputs == NULL || (inputs == NULL && model->inputs.count > 0))
    return status(TUNEFARM_BAD_ARGUMENT, "pass a model, its inputs and places for its outputs");
  if (is_step && model->count == 0)
    return status(TUNEFARM_BAD_ARGUMENT, "the model keeps no cache: call tunefarm_run");
  if (!is_step && model->count > 0)
    return status(TUNEFARM_BAD_ARGUMENT, "the model keeps its cache: call tunefarm_step");
  return ok();
}

tunefarm_status tunefarm_run(tunefarm_model* model, const void* const* inputs, void* const* outputs) {
  tunefarm_status result = check_call(model, 0, inputs, outputs);
  return result.code == TUNEFARM_OK ? run(model, inputs, outputs) : result;
}

/* The number of tokens in a decoder's cache. */
static int64_t* length_of(tunefarm_model* model) { return model->state.buffers[0]; }

tunefarm_status tunefarm_reset(tunefarm_model* model, size_t length) {
  if (model == NULL || model->count == 0) return status(TUNEFARM_BAD_ARGUMENT, "pass a decoder that keeps its cache");
  int64_t* kept = length_of(model);
  if (length > (size_t)*kept)
    return status(TUNEFARM_BAD_ARGUMENT, "the cache can't be reset to %zu tokens: it has %lld", length, (long long)*kept);
  *kept = (int64_t)length;
  return ok();
}

/* Set the rows from `end` on to zero. They hold no token, but a step reads them: a probability of zero times what
 * another text left there may be NaN. */
static void clear_after(tunefarm_model* model, size_t end) {
  for (size_t i = 1; end < model->written && i < model->state.count; ++i) {
    const tunefarm_tensor* tensor = &model->state.tensors[i];
    size_t parts = 1;
    for (int axis = 0; axis < model->axes[i]; ++axis) parts *= (size_t)tensor->shape[axis];
    size_t row = parts == 0 ? 0 : tensor->bytes / parts / model->capacity;
    for (size_t part = 0; part < parts; ++part)
      memset((char*)model->state.buffers[i] + (part * model->capacity + end) * row, 0, (model->written - end) * row);
  }
  model->written = end;
}

tunefarm_status tunefarm_step(tunefarm_model* model, size_t tokens, const void* const* inputs, void* const* outputs) {
  tunefarm_status result = check_call(model, 1, inputs, outputs);
  if (result.code != TUNEFARM_OK) return result;
  int64_t* length = length_of(model);
  if (tokens == 0 || tokens > model->count)
    return status(TUNEFARM_BAD_ARGUMENT, "a step takes 1 to %zu tokens, not %zu", model->count, tokens);
  if ((size_t)*length + model->count > model->capacity)
    return status(TUNEFARM_BAD_ARGUMENT, "the cache has %lld tokens, and a step needs room for %zu of %zu: call tunefarm_reset",
                  (long long)*length, model->count, model->capacity);
  clear_after(model, (size_t)*length + model->count);
  result = run(model, inputs, outputs);
  if (result.code == TUNEFARM_OK) *length += (int64_t)tokens;
  return result;
}

static void free_list(tensor_list* list) {
  for (size_t i = 0; i < list->count; ++i) {
    free((void*)list->tensors[i].name);
    free((void*)list->tensors[i].dtype);
    free((void*)list->tensors[i].shape);
    free(list->buffers[i]);
  }
  free(list->tensors);
  free(list->types);
  free(list->buffers);
}

void tunefarm_free(tunefarm_model* model) {
  if (model == NULL) return;
  for (size_t i = 0; i < model->kept; ++i) {
    release(model->arguments[model->inputs.count + i].v_obj);
    free(model->managed[model->inputs.count + i].dl_tensor.shape);
  }
  if (model->file != NULL) munmap(model->file, model->file_bytes);
  release(model->main);
  release(model->machine);
  release(model->library);
  free_list(&model->inputs);
  free_list(&model->outputs);
  free_list(&model->state);
  free(model->arguments);
  free(model->managed);
  free(model);
}
