"""The emulator runs handwritten kernels, and finds errors that a GPU would make."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.cuda_emulator.emulator import Emulated, EmulationError, HostCode, Launch, compile_batch
from tests.cuda_emulator.toolchain import compile_error

THREADS = 64
REVERSE = """
extern "C" __global__ void main_kernel(float* __restrict__ result, float* __restrict__ data) {
  __shared__ float copy[64];
  copy[threadIdx.x] = data[threadIdx.x];
  BARRIER
  result[threadIdx.x] = copy[63 - threadIdx.x];
}
"""
SUM = """
extern "C" __global__ void main_kernel(float* __restrict__ result, float* __restrict__ data) {
  float sum = data[threadIdx.x];
  for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_down_sync(0xffffffff, sum, distance, 32);
  if (threadIdx.x % 32 == 0) result[threadIdx.x / 32] = sum;
}
"""
# As TVM writes asynchronous copies.
COPY = """
__forceinline__ __device__ void wait_for_all() {
  asm volatile("cp.async.wait_group 0;" :  :  : "memory");
}
__forceinline__ __device__ void commit() {
  asm volatile("cp.async.commit_group;" :  : );
}
__forceinline__ __device__ void copy_later(void* dst, int dst_off, void* src, int src_off) {
  uint8_t* dst_p = (uint8_t*)dst + dst_off * 4;
  uint8_t* src_p = (uint8_t*)src + src_off * 4;
  unsigned int dst_addr = __cvta_generic_to_shared(dst_p);
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2;"
    :: "r"(dst_addr), "l"(src_p), "n"(4));
}
extern "C" __global__ void main_kernel(float* __restrict__ result, float* __restrict__ data) {
  __shared__ float copy[64];
  copy_later(copy, threadIdx.x, data, threadIdx.x);
  commit();
  WAIT
  __syncthreads();
  result[threadIdx.x] = copy[63 - threadIdx.x];
}
"""


def emulated(source: str, folder: Path) -> Emulated:
    host = HostCode((Launch("main_kernel", (0, 1), (1, 1, 1), (THREADS, 1, 1)),), {})
    (program,) = compile_batch([(source, host)], folder)
    return program


def run(source: str, folder: Path, seed: int) -> np.ndarray:
    data, result = np.arange(THREADS, dtype=np.float32), np.full(THREADS, -1, dtype=np.float32)
    emulated(source, folder).run([result, data], seed)
    return result


@pytest.mark.parametrize("seed", [0, 1])
def test_threads_exchange_values_through_shared_memory(tmp_path: Path, seed: int) -> None:
    result = run(REVERSE.replace("BARRIER", "__syncthreads();"), tmp_path, seed)
    assert (result == np.arange(THREADS)[::-1]).all()


def test_a_missing_barrier_gives_a_wrong_result(tmp_path: Path) -> None:
    assert (run(REVERSE.replace("BARRIER", ""), tmp_path, 1) != np.arange(THREADS)[::-1]).any()


def test_asynchronous_copies_have_to_be_waited_for(tmp_path: Path) -> None:
    for number, wait in enumerate(("wait_for_all();", "")):
        folder = tmp_path / str(number)
        folder.mkdir()
        result = run(COPY.replace("WAIT", wait), folder, 0)
        assert (result == np.arange(THREADS)[::-1]).all() == bool(wait)


def test_lanes_of_a_warp_exchange_values(tmp_path: Path) -> None:
    assert run(SUM, tmp_path, 0)[:2].tolist() == [sum(range(32)), sum(range(32, 64))]


def test_a_barrier_that_some_threads_miss_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(EmulationError, match="wait at a barrier"):
        run(REVERSE.replace("BARRIER", "if (threadIdx.x < 32) __syncthreads();"), tmp_path, 0)


def test_cudas_compilers_accept_valid_and_refuse_invalid_code() -> None:
    good = REVERSE.replace("BARRIER", "__syncthreads();")
    assert compile_error([good, good], 80) == ""
    assert "NVRTC" in compile_error([good, good.replace("63 -", "undefined -")], 80)
    assert "ptxas" in compile_error([good.replace("[64]", "[64000]")], 80)
