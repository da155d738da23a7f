"""A tensor intrinsic: eight sums of four products of floats. A real intrinsic calls an instruction of the
device."""

from tvm.script import tirx as T  # noqa: N812 - TVM's parser wants this name

from compiler.lowering.tensor_intrinsics import PluginIntrinsic
from search.sketches.intrinsics import Intrinsic


@T.prim_func(s_tir=True)
def description(a: T.handle, b: T.handle, c: T.handle) -> None:
    """c[8] += a[4] . b[8, 4]."""
    A = T.match_buffer(a, (4,), "float32", offset_factor=1)  # noqa: N806
    B = T.match_buffer(b, (8, 4), "float32", offset_factor=1)  # noqa: N806
    C = T.match_buffer(c, (8,), "float32", offset_factor=1)  # noqa: N806
    with T.sblock("root"):
        T.reads(C[0:8], A[0:4], B[0:8, 0:4])
        T.writes(C[0:8])
        for i in T.serial(0, 8):
            for k in T.serial(0, 4):
                with T.sblock("update"):
                    vi, vk = T.axis.remap("SR", [i, k])
                    C[vi] = C[vi] + A[vk] * B[vi, vk]


@T.prim_func(s_tir=True)
def implementation(a: T.handle, b: T.handle, c: T.handle) -> None:
    """c[8] += a[4] . b[8, 4]."""
    A = T.match_buffer(a, (4,), "float32", offset_factor=1)  # noqa: N806
    B = T.match_buffer(b, (8, 4), "float32", offset_factor=1)  # noqa: N806
    C = T.match_buffer(c, (8,), "float32", offset_factor=1)  # noqa: N806
    with T.sblock("root"):
        T.reads(C[0:8], A[0:4], B[0:8, 0:4])
        T.writes(C[0:8])
        for i in T.unroll(0, 8):
            for k in T.unroll(0, 4):
                C[i] = C[i] + A[k] * B[i, k]


DOT_8X4 = PluginIntrinsic(
    Intrinsic("dot_8x4", lanes=8, depth=4, rows="float32", columns="float32", sums="float32", features=()),
    description,
    implementation,
)
