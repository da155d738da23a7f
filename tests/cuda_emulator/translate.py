"""Translate TVM's CUDA C to C++ for the CPU, with device.h and a launcher for every kernel, and compile it.

The launcher of a kernel K is a C function, whose `arguments` point to the arguments' values:

    int emulate_K(void** arguments, const unsigned grid[3], const unsigned block[3], int seed)
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
DEVICE = ("device.h", "device.cc", "tensor_map.h")
_KERNEL = re.compile(r"__global__ void (?:__launch_bounds__\([^)]*\) )?(\w+)\(([^)]*)\)")

# Asynchronous copies and what waits for them, as functions of device.h.
_ASYNCHRONOUS = (
    (
        re.compile(
            r'unsigned int dst_addr = [^;]*;\s*asm volatile\("cp\.async\.c[ag][^"]*"[^;]*"n"\((\d+)\)\);'
        ),
        r"emulator::copy_later(dst_p, src_p, \1);",
    ),
    (
        re.compile(
            r'unsigned int dst_addr = [^;]*;\s*__asm__ __volatile__\(.*?"n"\((\d+)\), "r"\(predicate\).*?\);',
            re.DOTALL,
        ),
        r"if (predicate) emulator::copy_later(dst_p, src_p, \1); else std::memset(dst_p, 0, \1);",
    ),
    (re.compile(r'asm volatile\("cp\.async\.commit_group;"[^;]*;'), "emulator::commit_copies();"),
    (re.compile(r'asm volatile\("cp\.async\.wait_group (\d+);"[^;]*;'), r"emulator::await_copies(\1);"),
)
# Other instructions, as objects of device.h.
_ASSEMBLY = re.compile(r'asm volatile\(\s*((?:"[^"]*"\s*)+):([^;]*?):([^;]*?)(?::\s*"memory")?\);')
_OPERAND = re.compile(r'"[=+]*[rfln]"\((.*?)\)(?=\s*(?:,\s*"|$))', re.DOTALL)


def for_cpu(source: str, capability: int = 80) -> str:
    """The source and its launchers, for GPUs of a compute capability."""
    source = re.sub(r"#include <(cuda|mma)\.h>", "", source)
    # Fragments are classes, which g++ aligns by itself.
    source = re.sub(r"alignas\(64\) (?=tensor_cores)", "", source)
    source = source.replace("alignas(64)", "__attribute__((aligned(64)))").replace("half_t", "half")
    source = re.sub(
        r"extern __shared__ .*?(\w+) (\w+)\[\];", r"\1* \2 = (\1*)emulator::shared_memory;", source
    )
    for instruction, call in _ASYNCHRONOUS:
        source = instruction.sub(call, source)
    source = _ASSEMBLY.sub(_executed, source)
    begin = ['#include "device.h"', f"#define __CUDA_ARCH__ {capability}0"]
    return "\n".join([*begin, source, *_launchers(source)])


def _executed(assembly: re.Match[str]) -> str:
    """Return the call that executes an instruction on its operands."""
    text, outputs, inputs = assembly.groups()
    operands = [f"emulator::output({one})" for one in _OPERAND.findall(outputs.strip())]
    operands += [f"emulator::input({one})" for one in _OPERAND.findall(inputs.strip())]
    return (
        f"{{ static const emulator::Instruction instruction({text.strip()}); "
        f"instruction.execute({{{', '.join(operands)}}}); }}"
    )


def compile_for_cpu(source: str, headers: Path, device: Path, library: Path) -> str:
    """Compile the result of `for_cpu` to a shared library, and keep the text beside it. Return g++'s errors;
    "" if there are none. `headers` are CUDA's, and the folder `device` is prepared.
    """
    text = library.with_suffix(".cc")
    text.write_text(source)
    command = [
        "g++",
        *_flags(device, headers),
        "-shared",
        str(text),
        str(device / "device.o"),
        "-o",
        str(library),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    if not done.returncode:
        return ""
    return "\n".join(line for line in done.stderr.splitlines() if "error" in line)[:2000] or done.stderr


def prepare(device: Path, headers: Path) -> None:
    """Copy the device's sources to a folder and compile them, because they and CUDA's headers take g++ longer
    than most kernels.
    """
    for source in DEVICE:
        shutil.copy(HERE / source, device)
    compile_one = ["g++", *_flags(device, headers)]
    subprocess.run([*compile_one, "-x", "c++-header", str(device / "device.h")], check=True)
    code = [str(device / "device.cc"), "-o", str(device / "device.o")]
    subprocess.run([*compile_one, "-c", *code], check=True)


def _flags(device: Path, headers: Path) -> list[str]:
    return [
        # A library with unique symbols is never unloaded.
        *["-O1", "-w", "-fPIC", "-std=c++17", "-fno-gnu-unique"],
        f"-I{device}",
        f"-isystem{headers}",
        f"-isystem{headers}/cccl",
    ]


def _launchers(source: str) -> Iterator[str]:
    for name, parameters in dict(_KERNEL.findall(source)).items():
        types = [re.sub(r"(\s*__restrict__)?\s*\b\w+$", "", one.strip()) for one in parameters.split(",")]
        values = ", ".join(f"*({type_}*)arguments_{name}[{i}]" for i, type_ in enumerate(types))
        yield f"""
static void** arguments_{name};
static void body_{name}() {{ {name}({values}); }}
extern "C" int emulate_{name}(void** arguments, const unsigned grid[3], const unsigned block[3], int seed) {{
  arguments_{name} = arguments;
  dim3 blocks(grid[0], grid[1], grid[2]), threads(block[0], block[1], block[2]);
  return emulator::launch(blocks, threads, body_{name}, seed);
}}
extern "C" const size_t sizes_{name}[] = {{ {", ".join(f"sizeof({type_})" for type_ in types)}, 0 }};"""
