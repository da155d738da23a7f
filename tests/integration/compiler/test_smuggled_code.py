"""Three checks keep a trace's code out of a library. Each is tested with the earlier ones removed."""

from __future__ import annotations

import io
import json
import subprocess
from pathlib import Path

import pytest

import compiler.lowering.trace
import compiler.packaging.library
import compiler.packaging.linker
from compiler.codegen.nvcc import compile_cubin
from compiler.lowering.trace import LoweringError, apply_trace
from compiler.measuring.builder import LocalBuilder
from compiler.measuring.runner import LocalRunner
from compiler.object_graph import ObjectGraph
from compiler.packaging.artifact import LIBRARY, Manifest, pack
from compiler.packaging.library import KernelLibrary
from compiler.packaging.llvm_check import check_llvm
from compiler.target import detect_device
from compiler.vocabulary import Vocabulary
from compiler.workload import to_json
from core.library_check import SymbolError, check_cubin, check_library
from core.measurement import Measurement, Outcome
from system.nvcc import find_compiler
from tests.compiled_models import compile_model
from tests.onnx_models import residual
from tests.traces import calling
from tests.workloads import matmul

DEVICE = detect_device(1)
BUILDER = LocalBuilder(DEVICE.target)
WORKLOAD_TEXT = to_json(matmul(16, 16, 16))
SYSTEM = calling("system")


@pytest.fixture
def no_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    """Traces reach TVM as they are."""
    monkeypatch.setattr(compiler.lowering.trace, "parse_trace", json.loads)


@pytest.fixture
def no_vocabulary(no_schema: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scheduled workloads may have anything."""
    monkeypatch.setattr(Vocabulary, "foreign", lambda self, graph: [])


def test_the_schema_rejects_smuggled_code() -> None:
    with pytest.raises(LoweringError, match="escaped"):
        apply_trace(matmul(16, 16, 16), SYSTEM)


@pytest.mark.usefixtures("no_schema")
def test_the_scheduled_workload_is_refused() -> None:
    with pytest.raises(LoweringError, match=r"adds what no schedule needs: .*'tirx\.call_extern'"):
        apply_trace(matmul(16, 16, 16), SYSTEM)


@pytest.mark.usefixtures("no_schema")
def test_a_pragma_that_a_trace_adds_is_refused() -> None:
    trace = [["GetSBlock", [], ["T_matmul", "main"], ["b0"]], ["GetLoops", ["b0"], [], ["l1", "l2", "l3"]]]
    trace.append(["Annotate", ["l1", '"define void @x() { ret void }"'], ["pragma_import_llvm"], []])
    with pytest.raises(LoweringError, match="the annotation 'pragma_import_llvm'"):
        apply_trace(matmul(16, 16, 16), json.dumps([trace, []]))


@pytest.mark.usefixtures("no_vocabulary")
def test_the_library_is_refused() -> None:
    assert ObjectGraph.of(apply_trace(matmul(16, 16, 16), SYSTEM)).named()
    exported = BUILDER.export(WORKLOAD_TEXT, SYSTEM)
    assert isinstance(exported, Measurement)
    assert exported.error.endswith("the library calls what no compiled program needs: system")


@pytest.mark.usefixtures("no_vocabulary")
def test_foreign_calls_in_code_compiled_into_the_process_are_refused() -> None:
    built = BUILDER.build(WORKLOAD_TEXT, SYSTEM)
    assert isinstance(built, Measurement)
    assert built.outcome is Outcome.BUILD_ERROR
    assert "calls what no compiled program needs: system" in built.error


def linked(folder: Path, source: str, *options: str) -> bytes:
    """Compile C to a shared library."""
    (folder / "a.c").write_text(source)
    command = ["gcc", "-shared", "-fPIC", "-o", str(folder / "a.so"), str(folder / "a.c"), *options]
    subprocess.run(command, check=True)
    return (folder / "a.so").read_bytes()


CALLS = 'int system(const char *); int __tvm_ffi_main(void) { return system("true"); }'


def test_a_builders_library_that_calls_another_function_is_not_loaded(tmp_path: Path) -> None:
    packed = KernelLibrary(linked(tmp_path, CALLS), None, 0.1).pack()
    measurement = LocalRunner(DEVICE.target).load(packed)
    assert isinstance(measurement, Measurement)
    assert "calls what no compiled program needs: system" in measurement.error


def test_an_artifact_that_calls_another_function_is_not_loaded(tmp_path: Path) -> None:
    manifest = Manifest("m", "0", DEVICE.target, "c", (), (), 1, {}, 0.0)
    artifact = pack(linked(tmp_path, CALLS), manifest)
    measurement = LocalRunner(DEVICE.target).measure_module(io.BytesIO(artifact), compare=False)
    assert measurement.outcome is Outcome.RUN_ERROR
    assert "calls what no compiled program needs: system" in measurement.error


@pytest.mark.parametrize(
    ("source", "options", "says"),
    [
        (CALLS, (), "needs: system"),
        # Whatever calls it: through the table of addresses, without lazy binding, or by its address in data.
        (CALLS, ("-Wl,-z,now",), "needs: system"),
        (CALLS, ("-fno-plt",), "needs: system"),
        ("int system(const char *); void *__tvm_ffi_main = system;", (), "needs: system"),
        ("extern char **environ; char **main(void) { return environ; }", (), "needs: environ"),
        ("int main(void) { return 0; }", ("-Wl,-rpath,/tmp",), "asks for files"),
        ("int main(void) { return 0; }", ("-Wl,--audit,/tmp/a.so",), "asks for files"),
        ('char s[] = ".extern .func (.param .b32 r) vprintf (.param .b64 a);";', (), "PTX"),
    ],
)
def test_libraries_refer_only_to_listed_names(
    tmp_path: Path, source: str, options: tuple[str, ...], says: str
) -> None:
    with pytest.raises(SymbolError, match=says):
        check_library(io.BytesIO(linked(tmp_path, source, *options)))


def test_the_check_reads_the_same_tables_as_the_loader(tmp_path: Path) -> None:
    """A library without section headers is loaded all the same."""
    data = bytearray(linked(tmp_path, CALLS))
    data[40:48] = bytes(8)  # where they are
    data[58:64] = bytes(6)  # and how many
    with pytest.raises(SymbolError, match="needs: system"):
        check_library(io.BytesIO(bytes(data)))


@pytest.mark.parametrize("length", [0, 3, 20, 64, 100, 500, 4000])
def test_a_truncated_library_is_refused(tmp_path: Path, length: int) -> None:
    with pytest.raises(SymbolError):
        check_library(io.BytesIO(linked(tmp_path, CALLS)[:length]))


def test_mathematics_and_memory_are_listed(tmp_path: Path) -> None:
    source = (
        "#include <math.h>\n#include <string.h>\n"
        "double main(double x, void *a) { memset(a, 0, (int)x); return exp(x) + erff(x) + pow(x, x); }"
    )
    check_library(io.BytesIO(linked(tmp_path, source, "-lm", "-fno-builtin")))


def test_a_model_is_linked_without_complaint(tmp_path: Path) -> None:
    folder = compile_model(residual(), tmp_path / "compiled")
    with (folder / LIBRARY).open("rb") as file:
        check_library(file)


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("declare i32 @system(ptr)\n", "needs: system"),
        ('declare dso_local i32 @"system"(ptr) #1\n', "needs: system"),
        ('  call void asm sideeffect "syscall", ""()\n', "assembly"),
        ('module asm "syscall"\n', "assembly"),
    ],
)
def test_llvms_code_refers_only_to_listed_names(source: str, says: str) -> None:
    check_llvm("declare float @llvm.exp.f32(float)\ndeclare float @expf(float)\n")
    with pytest.raises(SymbolError, match=says):
        check_llvm(source)


KERNEL = 'extern "C" __global__ void main_kernel(float *x) {{ {} }}'


@pytest.mark.skipif(find_compiler() is None, reason="no compiler for GPUs")
@pytest.mark.parametrize(
    ("body", "calls"),
    [("x[0] = expf(x[1]);", ""), ('printf("%f", x[0]);', "vprintf"), ("x[0] = *new float[4];", "malloc")],
)
def test_a_gpus_code_calls_only_itself(tmp_path: Path, body: str, calls: str) -> None:
    cubin, _ = compile_cubin(KERNEL.format(body), "sm_80")
    (tmp_path / "cubin").write_bytes(cubin)
    source = f'asm(".data; .incbin \\"{tmp_path}/cubin\\"; .text"); int main(void) {{ return 0; }}'
    library = io.BytesIO(linked(tmp_path, source))
    if not calls:
        check_cubin(cubin)
        check_library(library)
        return
    says = f"the GPU's code calls what isn't in it: {calls}"
    with pytest.raises(SymbolError, match=says):
        check_cubin(cubin)
    with pytest.raises(SymbolError, match=says):
        check_library(library)
