"""Runs compiled functions for Arm under qemu, with every instruction set that qemu knows.

A small C program stands in for TVM's runtime. It reads the arguments from a file, calls the function in one
thread, and writes the arguments back.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

COMPILER, QEMU = "aarch64-linux-gnu-gcc", "qemu-aarch64-static"
# DLPack's codes of element types.
CODES = {"i": 0, "u": 1, "f": 2}
BFLOAT16 = 4
CALLER = r"""
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
typedef struct { int32_t type_index; uint32_t padding; union { int64_t i; void *p; } v; } Any;
typedef struct { void *data; int32_t device[2]; int32_t ndim; uint8_t code, bits; uint16_t lanes;
                 int64_t *shape, *strides; uint64_t offset; } Tensor;
typedef struct { void *sync_handle; int32_t num_task; } Environment;
int __tvm_ffi_main(void *self, const Any *args, int32_t count, Any *result);
void TVMFFIErrorSetRaisedFromCStrParts(const char *kind, const char **parts, int32_t count) {
  for (int32_t i = 0; i < count; i++) fputs(parts[i], stderr);
}
static int launch(int (*work)(int, Environment *, void *), void *data, int tasks) {
  Environment environment = {0, 1};
  return work(0, &environment, data);
}
static void *allocate(int type, int id, uint64_t size, int code, int bits) {
  return aligned_alloc(64, (size + 63) / 64 * 64);
}
static int release(int type, int id, void *pointer) { free(pointer); return 0; }
// A library calls the runtime by these pointers.
void *__TVMBackendParallelLaunch = launch;
void *__TVMBackendAllocWorkspace = allocate;
void *__TVMBackendFreeWorkspace = release;
int main(int argc, char **argv) {
  FILE *file = fopen(argv[1], "rb");
  int64_t count, facts[3];
  fread(&count, 8, 1, file);
  Any args[count], result = {0};
  Tensor tensors[count];
  int64_t shapes[count][8], sizes[count];
  memset(args, 0, sizeof args);
  memset(tensors, 0, sizeof tensors);
  for (int64_t i = 0; i < count; i++) {
    Tensor *one = &tensors[i];
    fread(facts, 8, 3, file);
    one->code = facts[0], one->bits = facts[1], one->lanes = 1, one->ndim = facts[2], one->device[0] = 1;
    fread(shapes[i], 8, one->ndim, file);
    one->shape = shapes[i], sizes[i] = one->bits / 8;
    for (int d = 0; d < one->ndim; d++) sizes[i] *= shapes[i][d];
    int64_t strides[8] = {0};
    one->strides = memcpy(malloc(sizeof strides), strides, sizeof strides);
    for (int64_t d = one->ndim - 1, step = 1; d >= 0; step *= shapes[i][d--]) one->strides[d] = step;
    one->data = aligned_alloc(64, (sizes[i] + 127) / 64 * 64);
    fread(one->data, 1, sizes[i], file);
    args[i].type_index = 7, args[i].v.p = one;
  }
  int code = __tvm_ffi_main(0, args, count, &result);
  if (code) return 1;
  file = fopen(argv[1], "wb");
  for (int64_t i = 0; i < count; i++) fwrite(tensors[i].data, 1, sizes[i], file);
  return fclose(file);
}
"""


def obstacle() -> str | None:
    """Return why no such program can run here; None if it can."""
    missing = [tool for tool in (COMPILER, QEMU) if shutil.which(tool) is None]
    return f"not installed: {', '.join(missing)}" if missing else None


def run(library: Any, arguments: Sequence[NDArray[Any]], folder: Path) -> NDArray[Any]:
    """Call `main` of a library for Arm; return the last argument as the call leaves it."""
    (folder / "caller.c").write_text(CALLER)
    library.mod.write_to_file(str(folder / "main.o"), "o")
    program, data = folder / "program", folder / "data"
    sources = [folder / "caller.c", folder / "main.o"]
    command = [COMPILER, "-static", "-O1", "-w", "-o", *map(str, [program, *sources]), "-lm"]
    subprocess.run(command, check=True, timeout=60)
    with data.open("wb") as file:
        file.write(np.int64(len(arguments)).tobytes())
        for one in arguments:
            code = BFLOAT16 if str(one.dtype) == "bfloat16" else CODES[one.dtype.kind]
            file.write(np.array([code, 8 * one.itemsize, one.ndim, *one.shape], np.int64).tobytes())
            file.write(np.ascontiguousarray(one).tobytes())
    subprocess.run([QEMU, "-cpu", "max", program, data], check=True, timeout=60)
    last = arguments[-1]
    return np.frombuffer(data.read_bytes()[-last.nbytes :], last.dtype).reshape(last.shape)
