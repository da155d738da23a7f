"""What ptxas reports of kernels."""

from __future__ import annotations

from compiler.codegen.nvcc import read_report
from core.measurement import Resources

REPORT = """
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'main_kernel' for 'sm_80'
ptxas info    : Function properties for main_kernel
    24 bytes stack frame, 16 bytes spill stores, 20 bytes spill loads
ptxas info    : Used 84 registers, used 1 barriers, 8192 bytes smem, 376 bytes cmem[0]
ptxas info    : Compiling entry function 'main_kernel_1' for 'sm_80'
ptxas info    : Function properties for main_kernel_1
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 10 registers, used 0 barriers, 360 bytes cmem[0]
"""


def test_the_report_has_the_registers_and_spills_of_the_largest_kernel() -> None:
    assert read_report(REPORT) == Resources(84, 16)


def test_a_compiler_that_says_nothing_reports_nothing() -> None:
    assert read_report("") is None
