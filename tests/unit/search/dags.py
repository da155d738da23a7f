"""Small subgraphs of every kind, written by hand: what the compiler makes of TVM's operators."""

from __future__ import annotations

from collections.abc import Callable

from search.dag import Access, Axis, AxisKind, Buffer, BufferRole, Dag, Index, Node, Term
from search.device import Device

DEVICE = Device(
    name="board",
    triple="x86_64-linux-gnu",
    mcpu="skylake-avx512",
    features=("avx2", "avx512f"),
    cores=4,
    vector_bytes=64,
    l1_bytes=32 << 10,
    l2_bytes=1 << 20,
    l3_bytes=16 << 20,
    toolchain="tvm 0 llvm 0",
    target="{}",
)

Shape = tuple[int, ...]


def node(
    name: str,
    spatial: dict[str, int],
    reads: list[str],
    *,
    reduction: dict[str, int] | None = None,
    flops: float = 0.0,
    has_branch: bool = False,
    is_expensive: bool = False,
    reducer: str = "sum",
) -> Node:
    """A node that writes a buffer of its own name at its spatial axes, in order; `reads` are such as
    "data[n, 2*y + ry - 1, 3*f//4, ?i]": three times f//4; ? marks what is not affine."""
    axes = [Axis(axis, extent, AxisKind.SPATIAL) for axis, extent in spatial.items()]
    axes += [Axis(axis, extent, AxisKind.REDUCTION) for axis, extent in (reduction or {}).items()]
    names = [axis.name for axis in axes]
    return Node(
        name=name,
        axes=tuple(axes),
        write=access(f"{name}[{', '.join(spatial)}]", names),
        reads=tuple(access(read, names) for read in reads),
        flops=flops,
        has_branch=has_branch,
        is_expensive=is_expensive,
        reducer=reducer if reduction else None,
    )


def access(text: str, axes: list[str]) -> Access:
    buffer, _, inner = text.removesuffix("]").partition("[")
    return Access(buffer, tuple(index(part, axes) for part in inner.split(",") if part.strip()))


def index(text: str, axes: list[str]) -> Index:
    terms: list[Term] = []
    offset = 0
    for part in text.replace(" ", "").replace("-", "+-").replace("?", "").split("+"):
        coefficient, _, quotient = part.rpartition("*")
        name, _, divisor = quotient.partition("//")
        if name in axes:
            terms.append(Term(axes.index(name), int(coefficient or 1), int(divisor or 1)))
        elif part:
            offset += int(part)
    return Index(tuple(sorted(terms)), offset, affine="?" not in text)


def dag(inputs: dict[str, Shape], nodes: list[Node], dtypes: dict[str, str] | None = None) -> Dag:
    """The last node's result is the output."""
    types = dtypes or {}
    buffers = [
        Buffer(name, shape, types.get(name, "float32"), BufferRole.INPUT) for name, shape in inputs.items()
    ]
    for item in nodes:
        role = BufferRole.OUTPUT if item is nodes[-1] else BufferRole.INTERMEDIATE
        buffers.append(Buffer(item.name, tuple(item.axes[a].extent for a in item.spatial), "float32", role))
    return Dag(nodes[-1].name, tuple(buffers), tuple(nodes))


def conv2d(size: int = 14, inputs: int = 16, outputs: int = 32) -> Dag:
    """3x3, stride 1, padded by 1; then bias and rectifier."""
    out = {"n": 1, "y": size, "x": size, "f": outputs}
    return dag(
        {"data": (1, size, size, inputs), "weight": (3, 3, inputs, outputs), "bias": (1, 1, 1, outputs)},
        [
            node(
                "pad",
                {"n": 1, "y": size + 2, "x": size + 2, "c": inputs},
                ["data[n, y - 1, x - 1, c]"],
                has_branch=True,
            ),
            node(
                "conv",
                out,
                ["pad[n, y + ry, x + rx, rc]", "weight[ry, rx, rc, f]"],
                reduction={"ry": 3, "rx": 3, "rc": inputs},
                flops=2.0,
            ),
            node("add", out, ["conv[n, y, x, f]", "bias[n, 0, 0, f]"], flops=1.0),
            node("relu", out, ["add[n, y, x, f]"], flops=1.0),
        ],
    )


def matmul(n: int = 32, m: int = 48, k: int = 64) -> Dag:
    return dag(
        {"a": (n, k), "b": (k, m)},
        [node("matmul", {"i": n, "j": m}, ["a[i, k]", "b[k, j]"], reduction={"k": k}, flops=2.0)],
    )


def depthwise(size: int = 14, channels: int = 32) -> Dag:
    out = {"b": 1, "i": size, "j": size, "c": channels}
    return dag(
        {"data": (1, size, size, channels), "weight": (3, 3, channels, 1)},
        [
            node(
                "pad",
                {"n": 1, "y": size + 2, "x": size + 2, "c": channels},
                ["data[n, y - 1, x - 1, c]"],
                has_branch=True,
            ),
            node(
                "depthwise",
                out,
                ["pad[b, i + di, j + dj, c]", "weight[di, dj, c, 0]"],
                reduction={"di": 3, "dj": 3},
                flops=2.0,
            ),
            node("clip", out, ["depthwise[b, i, j, c]"], flops=2.0),
        ],
    )


def max_pool(size: int = 14, channels: int = 32) -> Dag:
    """3x3, stride 2, padded by 1."""
    return dag(
        {"data": (1, size, size, channels)},
        [
            node(
                "pad",
                {"n": 1, "y": size + 2, "x": size + 2, "c": channels},
                ["data[n, y - 1, x - 1, c]"],
                has_branch=True,
            ),
            node(
                "pool",
                {"n": 1, "y": size // 2, "x": size // 2, "c": channels},
                ["pad[n, 2*y + ry, 2*x + rx, c]"],
                reduction={"ry": 3, "rx": 3},
                flops=1.0,
                reducer="max",
            ),
        ],
    )


def global_pool(size: int = 7, channels: int = 64) -> Dag:
    out = {"n": 1, "y": 1, "x": 1, "c": channels}
    return dag(
        {"data": (1, size, size, channels)},
        [
            node(
                "sum",
                out,
                [f"data[n, {size}*y + ry, {size}*x + rx, c]"],
                reduction={"ry": size, "rx": size},
                flops=1.0,
            ),
            node("average", out, ["sum[n, y, x, c]"], flops=1.0),
        ],
    )


def softmax(rows: int = 16, columns: int = 40) -> Dag:
    row, element = {"i": rows}, {"i": rows, "j": columns}
    return dag(
        {"data": (rows, columns)},
        [
            node("max", row, ["data[i, k]"], reduction={"k": columns}, flops=1.0, reducer="max"),
            node("exp", element, ["data[i, j]", "max[i]"], flops=17.0, is_expensive=True),
            node("sum", row, ["exp[i, k]"], reduction={"k": columns}, flops=1.0),
            node("divide", element, ["exp[i, j]", "sum[i]"], flops=1.0),
        ],
    )


def add_relu(size: int = 14, channels: int = 24) -> Dag:
    shape = {"n": 1, "y": size, "x": size, "c": channels}
    sizes = (1, size, size, channels)
    return dag(
        {"a": sizes, "b": sizes},
        [
            node("add", shape, ["a[n, y, x, c]", "b[n, y, x, c]"], flops=1.0),
            node("relu", shape, ["add[n, y, x, c]"], flops=1.0),
        ],
    )


def transpose(rows: int = 24, columns: int = 40) -> Dag:
    return dag({"data": (rows, columns)}, [node("transpose", {"i": columns, "j": rows}, ["data[j, i]"])])


def take(rows: int = 50, columns: int = 16, count: int = 12) -> Dag:
    return dag(
        {"table": (rows, columns), "indices": (count,)},
        [node("take", {"i": count, "j": columns}, ["indices[i]", "table[?i, j]"])],
        dtypes={"indices": "int64"},
    )


def scale_shift(rows: int = 16, columns: int = 32) -> Dag:
    """Reads two vectors again for every row, without a reduction: the end of every normalisation."""
    return dag(
        {"data": (rows, columns), "scale": (columns,), "shift": (columns,)},
        [node("affine", {"i": rows, "j": columns}, ["data[i, j]", "scale[j]", "shift[j]"], flops=2.0)],
    )


def total(count: int = 64) -> Dag:
    """A sum of everything: no spatial axis at all."""
    return dag({"data": (count,)}, [node("total", {}, ["data[k]"], reduction={"k": count}, flops=1.0)])


DAGS: dict[str, Callable[[], Dag]] = {
    "conv2d": conv2d,
    "matmul": matmul,
    "depthwise": depthwise,
    "max_pool": max_pool,
    "global_pool": global_pool,
    "softmax": softmax,
    "add_relu": add_relu,
    "transpose": transpose,
    "take": take,
    "scale_shift": scale_shift,
    "total": total,
}
