"""Small handwritten subgraphs of every kind, as the compiler reads them from TVM's operators."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from core.device import Device
from core.job import TF32
from search.dag import Dag, Node
from tests.unit.search.builders import dag, node

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


def _pad(size: int, channels: int, border: int = 1) -> Node:
    shape = {"n": 1, "y": size + 2 * border, "x": size + 2 * border, "c": channels}
    return node("pad", shape, [f"data[n, y - {border}, x - {border}, c]"], has_branch=True)


def conv2d(size: int = 14, inputs: int = 16, outputs: int = 32, constants: tuple[str, ...] = ()) -> Dag:
    """3x3, stride 1, padded by 1; then bias and rectifier."""
    out = {"n": 1, "y": size, "x": size, "f": outputs}
    return dag(
        {"data": (1, size, size, inputs), "weight": (3, 3, inputs, outputs), "bias": (1, 1, 1, outputs)},
        [
            _pad(size, inputs),
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
        constants=constants,
    )


def matmul(n: int = 32, m: int = 48, k: int = 64) -> Dag:
    return dag(
        {"a": (n, k), "b": (k, m)},
        [node("matmul", {"i": n, "j": m}, ["a[i, k]", "b[k, j]"], reduction={"k": k}, flops=2.0)],
    )


def depthwise(size: int = 14, channels: int = 32, kernel: int = 3) -> Dag:
    out = {"b": 1, "i": size, "j": size, "c": channels}
    return dag(
        {"data": (1, size, size, channels), "weight": (kernel, kernel, channels, 1)},
        [
            _pad(size, channels, kernel // 2),
            node(
                "depthwise",
                out,
                ["pad[b, i + di, j + dj, c]", "weight[di, dj, c, 0]"],
                reduction={"di": kernel, "dj": kernel},
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
            _pad(size, channels),
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


def log_softmax(rows: int = 6, columns: int = 40) -> Dag:
    """The sum reads the data and the maximum directly, so no exponentials are stored."""
    return dag(
        {"data": (rows, columns)},
        [
            node("max", {"i": rows}, ["data[i, k]"], reduction={"k": columns}, flops=1.0, reducer="max"),
            node(
                "sum",
                {"i": rows},
                ["data[i, k]", "max[i]"],
                reduction={"k": columns},
                flops=18.0,
                is_expensive=True,
            ),
            node(
                "log",
                {"i": rows, "j": columns},
                ["data[i, j]", "max[i]", "sum[i]"],
                flops=18.0,
                is_expensive=True,
            ),
        ],
    )


def layer_norm(rows: int = 12, columns: int = 32) -> Dag:
    """Two passes: the mean, then the sum of squared distances from it."""
    row = {"i": rows}
    reads = ["data[i, j]", "mean[i]", "variance[i]", "scale[j]", "shift[j]"]
    return dag(
        {"data": (rows, columns), "scale": (columns,), "shift": (columns,)},
        [
            node("sum", row, ["data[i, k]"], reduction={"k": columns}, flops=1.0),
            node("mean", row, ["sum[i]"], flops=1.0),
            node("variance", row, ["data[i, k]", "mean[i]"], reduction={"k": columns}, flops=3.0),
            node("norm", {"i": rows, "j": columns}, reads, flops=8.0, is_expensive=True),
        ],
    )


def layer_norm_one_pass(rows: int = 12, columns: int = 32) -> Dag:
    """The sums of values and of squares come out of one nest."""
    sums = node(
        "sums",
        {"i": rows},
        ["data[i, k]"],
        reduction={"k": columns},
        flops=3.0,
        reducer="other",
        also=("squares",),
    )
    reads = ["data[i, j]", "sums[i]", "squares[i]", "scale[j]", "shift[j]"]
    norm = node("norm", {"i": rows, "j": columns}, reads, flops=8.0, is_expensive=True)
    return dag({"data": (rows, columns), "scale": (columns,), "shift": (columns,)}, [sums, norm])


def attention(heads: int = 2, length: int = 12, size: int = 8) -> Dag:
    """softmax(Q K^T / sqrt(size)) V"""
    return dag(
        dict.fromkeys(("query", "key", "value"), (heads, length, size)), _attention(heads, length, size)
    )


def joined_attention(heads: int = 2, length: int = 32, size: int = 8, queries: int = 0) -> Dag:
    """The attention of each query, its heads side by side. There are as many queries as keys by default."""
    rows = queries or length
    joined = node("joined", {"i": rows, "h": heads, "c": size}, ["attention[h, i, c]"], flops=0.0)
    operands = _operands(heads, length, size) | {"query": (heads, rows, size)}
    return dag(operands, [*_attention(heads, length, size, rows), joined])


def attention_of_halves(heads: int = 2, length: int = 32, size: int = 16, dtype: str = "float16") -> Dag:
    """A joined attention of halves, summed in float32. Its softmax is computed in float32."""
    joined = node("joined", {"i": length, "h": heads, "c": size}, ["attention[h, i, c]"], flops=0.0)
    nodes = [*_attention(heads, length, size), joined]
    operands = _operands(heads, length, size)
    return dag(operands, nodes, dtypes=dict.fromkeys((*operands, "weights", "joined"), dtype))


def attention_in_tf32(heads: int = 2, length: int = 32, size: int = 16) -> Dag:
    """A joined attention of float32, with the factors of both products rounded to TF32."""
    graph = joined_attention(heads, length, size)
    products = ("scores", "attention")
    nodes = (replace(one, rounds_to=TF32) if one.name in products else one for one in graph.nodes)
    return replace(graph, nodes=tuple(nodes))


def _operands(heads: int, length: int, size: int) -> dict[str, tuple[int, ...]]:
    return dict.fromkeys(("query", "key", "value"), (heads, length, size))


def _attention(heads: int, length: int, size: int, queries: int = 0) -> list[Node]:
    row = {"h": heads, "i": queries or length}
    square = row | {"j": length}
    return [
        node("scores", square, ["query[h, i, d]", "key[h, j, d]"], reduction={"d": size}, flops=2.0),
        node("scaled", square, ["scores[h, i, j]"], flops=1.0),
        node("max", row, ["scaled[h, i, k]"], reduction={"k": length}, flops=1.0, reducer="max"),
        node("exp", square, ["scaled[h, i, j]", "max[h, i]"], flops=17.0, is_expensive=True),
        node("sum", row, ["exp[h, i, k]"], reduction={"k": length}, flops=1.0),
        node("weights", square, ["exp[h, i, j]", "sum[h, i]"], flops=1.0),
        node(
            "attention",
            row | {"c": size},
            ["weights[h, i, t]", "value[h, t, c]"],
            reduction={"t": length},
            flops=2.0,
        ),
    ]


def norm(rows: int = 6, columns: int = 40) -> Dag:
    return dag(
        {"data": (rows, columns)},
        [
            node("square", {"i": rows, "k": columns}, ["data[i, k]"], flops=1.0),
            node("sum", {"i": rows}, ["square[i, k]"], reduction={"k": columns}, flops=1.0),
            node("root", {"i": rows}, ["sum[i]"], flops=1.0, is_expensive=True),
        ],
    )


def argmax(rows: int = 12, columns: int = 20) -> Dag:
    """Reduce position and value together, then copy the position."""
    found = node(
        "found",
        {"i": rows},
        ["data[i, k]"],
        reduction={"k": columns},
        flops=1.0,
        reducer="other",
        has_branch=True,
        also=("value",),
    )
    position = node("position", {"i": rows}, ["found[i]"])
    types = {"found": "int32", "position": "int32"}
    return dag({"data": (rows, columns)}, [found, position], dtypes=types)


def winograd(tiles: int = 4, inputs: int = 4, outputs: int = 8) -> Dag:
    """Tiles of 4 x 4. Constant matrices transform them before and after a product for each position."""
    place = {"e": 4, "v": 4, "p": tiles}
    both = {"r": 4, "s": 4}
    return dag(
        {"tile": (4, 4, tiles, inputs), "weight": (4, 4, outputs, inputs)},
        [
            node("B", {"i": 4, "j": 4}, [], has_branch=True),
            node(
                "packed",
                place | {"c": inputs},
                ["tile[r, s, p, c]", "B[r, e]", "B[s, v]"],
                reduction=both,
                flops=4.0,
                constant_axes=("e", "v", "r", "s"),
            ),
            node(
                "product",
                place | {"f": outputs},
                ["packed[e, v, p, c]", "weight[e, v, f, c]"],
                reduction={"c": inputs},
                flops=2.0,
            ),
            node("A", {"i": 4, "j": 2}, [], has_branch=True),
            node(
                "inverse",
                {"y": 2, "x": 2, "p": tiles, "f": outputs},
                ["product[r, s, p, f]", "A[r, y]", "A[s, x]"],
                reduction=both,
                flops=4.0,
                constant_axes=("y", "x", "r", "s"),
            ),
        ],
        constants=("weight",),
    )


def winograd_image(tiles: int = 4, inputs: int = 16, outputs: int = 16) -> Dag:
    """An image in rows and columns of such tiles, assembled from them and activated."""
    transform, product, inverse = (
        {"e": 4, "v": 4},
        {"p": tiles, "q": tiles},
        {"p": tiles, "y": 2, "q": tiles, "x": 2},
    )
    size = 2 * tiles
    return dag(
        {"data": (size + 2, size + 2, inputs), "weight": (4, 4, inputs, outputs)},
        [
            node("B", {"i": 4, "j": 4}, [], has_branch=True),
            node(
                "packed",
                transform | product | {"c": inputs},
                ["data[2*p + r, 2*q + s, c]", "B[r, e]", "B[s, v]"],
                reduction={"r": 4, "s": 4},
                flops=4.0,
                constant_axes=("e", "v", "r", "s"),
            ),
            node(
                "product",
                transform | product | {"f": outputs},
                ["packed[e, v, p, q, c]", "weight[e, v, c, f]"],
                reduction={"c": inputs},
                flops=2.0,
            ),
            node("A", {"i": 4, "j": 2}, [], has_branch=True),
            node(
                "inverse",
                inverse | {"f": outputs},
                ["product[r, s, p, q, f]", "A[r, y]", "A[s, x]"],
                reduction={"r": 4, "s": 4},
                flops=4.0,
                constant_axes=("y", "x", "r", "s"),
            ),
            node("image", {"h": size, "w": size, "f": outputs}, ["inverse[h//2, ?h, w//2, ?w, f]"]),
            node("relu", {"h": size, "w": size, "f": outputs}, ["image[h, w, f]"], flops=1.0),
        ],
        constants=("weight",),
    )


def grouped(size: int = 8, channels: int = 16, groups: int = 4) -> Dag:
    """1 x 1 in groups: each result reads the channels of its own group."""
    inside = channels // groups
    return dag(
        {"data": (size, size, channels), "weight": (inside, channels)},
        [
            node(
                "grouped",
                {"y": size, "x": size, "f": channels},
                [f"data[y, x, {inside}*f//{inside} + c]", "weight[c, f]"],
                reduction={"c": inside},
                flops=2.0,
            )
        ],
    )


def transposed(size: int = 4, inputs: int = 8, outputs: int = 16) -> Dag:
    """4 x 4, stride 2: conditions inside the sum skip the gaps between the inputs."""
    reads = ["pad[n, y//2 + ry//2, x//2 + rx//2, c]", "weight[3 + -1*ry, 3 + -1*rx, c, f]"]
    return dag(
        {"data": (1, size, size, inputs), "weight": (4, 4, inputs, outputs)},
        [
            _pad(size, inputs),
            node(
                "conv",
                {"n": 1, "y": 2 * size, "x": 2 * size, "f": outputs},
                reads,
                reduction={"ry": 4, "rx": 4, "c": inputs},
                flops=2.0,
                has_branch=True,
            ),
        ],
    )


def two_matmuls(n: int = 16) -> Dag:
    """The second product reads the rectified first one."""
    square = {"i": n, "j": n}
    return dag(
        dict.fromkeys("abc", (n, n)),
        [
            node("first", square, ["a[i, k]", "b[k, j]"], reduction={"k": n}, flops=2.0),
            node("relu", square, ["first[i, j]"], flops=1.0),
            node("second", square, ["relu[i, k]", "c[k, j]"], reduction={"k": n}, flops=2.0),
        ],
    )


def split_heads(length: int = 6, heads: int = 4, size: int = 16) -> Dag:
    """A reshape and a transposition, both copies."""
    return dag(
        {"data": (length, heads * size)},
        [
            node("reshape", {"l": length, "h": heads, "d": size}, [f"data[l, {size}*h + d]"]),
            node("heads", {"h": heads, "l": length, "d": size}, ["reshape[l, h, d]"]),
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
    """The end of every normalization: two vectors are read again for every row, without a reduction."""
    return dag(
        {"data": (rows, columns), "scale": (columns,), "shift": (columns,)},
        [node("affine", {"i": rows, "j": columns}, ["data[i, j]", "scale[j]", "shift[j]"], flops=2.0)],
    )


def total(count: int = 64) -> Dag:
    """A sum over all elements, without a spatial axis."""
    return dag({"data": (count,)}, [node("total", {}, ["data[k]"], reduction={"k": count}, flops=1.0)])


def scalar() -> Dag:
    """One value, without variables."""
    return dag({"data": ()}, [node("squared", {}, ["data"], flops=2.0)])


DAGS: dict[str, Callable[[], Dag]] = {
    "conv2d": conv2d,
    "matmul": matmul,
    # A row, and extents that are multiples of no tile.
    "gemv": lambda: matmul(1, 40, 128),
    "prime_matmul": lambda: matmul(19, 101, 7),
    "two_matmuls": two_matmuls,
    "depthwise": depthwise,
    "grouped": grouped,
    "transposed": transposed,
    "winograd": winograd,
    "winograd_image": winograd_image,
    "max_pool": max_pool,
    "global_pool": global_pool,
    "softmax": softmax,
    "long_softmax": lambda: softmax(16, 128),
    "log_softmax": log_softmax,
    "layer_norm": layer_norm,
    "long_layer_norm": lambda: layer_norm(12, 768),
    "layer_norm_one_pass": layer_norm_one_pass,
    "attention": attention,
    "joined_attention": joined_attention,
    "wide_attention": lambda: joined_attention(size=16),
    "attention_of_halves": attention_of_halves,
    "attention_in_tf32": attention_in_tf32,
    "norm": norm,
    "argmax": argmax,
    "add_relu": add_relu,
    "transpose": transpose,
    "split_heads": split_heads,
    "take": take,
    "scale_shift": scale_shift,
    "total": total,
    "scalar": scalar,
}
