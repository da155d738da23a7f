"""Known fast programs, written by hand. The space must contain all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from search.dag import Dag
from search.programs.program import Program
from tests.unit.search import dags
from tests.unit.search.builders import dag, node
from tests.unit.search.programs import program_of, sketch_of

# The factors of a node's axes, outermost first, and the options of its choices.
Settings = Mapping[str, tuple[int, ...] | int | str]


@dataclass(frozen=True)
class Known:
    """A program of `graph`: its sketch and the values of all variables with an effect."""

    graph: Dag
    sketch: str
    values: Mapping[str, Settings] = field(default_factory=dict)

    @property
    def program(self) -> Program:
        return program_of(sketch_of(self.graph, self.sketch), **self.values)


DIRECT: Settings = {"read a": "direct", "read b": "direct"}


def _product(
    i: tuple[int, ...], j: tuple[int, ...], k: tuple[int, ...], **ways: int | str
) -> Mapping[str, Settings]:
    return {"matmul": {"i": i, "j": j, "k": k, "unroll": 16, **DIRECT, **ways}}


def row_products(rows: int = 48, terms: int = 2048) -> Dag:
    """A matrix and a vector; the matrix is read along its rows."""
    reads = ["weight[i, k]", "vector[k]"]
    return dag(
        {"weight": (rows, terms), "vector": (terms,)},
        [node("gemv", {"i": rows}, reads, reduction={"k": terms}, flops=2.0)],
    )


def row_lengths(rows: int, columns: int) -> Dag:
    return dag(
        {"data": (rows, columns)},
        [
            node("sum", {"i": rows}, ["data[i, k]"], reduction={"k": columns}, flops=2.0),
            node("length", {"i": rows}, ["sum[i]"], flops=16.0, is_expensive=True),
        ],
    )


def capsules(count: int = 64) -> Dag:
    """An elementwise node on matrices of 4 x 4, whose rows are shorter than a vector."""
    axes = {"i": count, "y": 4, "x": 4}
    return dag({"data": (count, 4, 4)}, [node("doubled", axes, ["data[i, y, x]"], flops=1.0)])


def dilated_and_padded(size: int = 8, inputs: int = 32, outputs: int = 64) -> Dag:
    """4 x 4, stride 2, transposed: zeros between the inputs and around them, then a convolution."""
    wide = 2 * size - 1
    return dag(
        {"data": (1, size, size, inputs), "weight": (4, 4, inputs, outputs)},
        [
            node(
                "dilate",
                {"n": 1, "y": wide, "x": wide, "c": inputs},
                ["data[n, y//2, x//2, c]"],
                has_branch=True,
            ),
            node(
                "pad",
                {"n": 1, "y": wide + 4, "x": wide + 4, "c": inputs},
                ["dilate[n, y - 2, x - 2, c]"],
                has_branch=True,
            ),
            node(
                "conv",
                {"n": 1, "y": 2 * size, "x": 2 * size, "f": outputs},
                ["pad[n, y + ry, x + rx, c]", "weight[3 + -1*ry, 3 + -1*rx, c, f]"],
                reduction={"ry": 4, "rx": 4, "c": inputs},
                flops=2.0,
            ),
        ],
    )


ROW: Settings = {"location": "1", "parallel": 0, "unroll": 0}

KNOWN_GOOD: dict[str, Known] = {
    # Registers hold 8 rows of two vectors: 97% of an AVX-512 core's peak.
    "matmul in tiles of 8 x 32": Known(
        dags.matmul(512, 512, 512), "tile matmul SSRSRS", _product((8, 8, 1, 8), (2, 8, 1, 32), (8, 64))
    ),
    "matmul in tiles of 8 x 16": Known(
        dags.matmul(512, 512, 512), "tile matmul SSRSRS", _product((8, 8, 1, 8), (4, 8, 1, 16), (8, 64))
    ),
    "matmul with copies of its operands": Known(
        dags.matmul(512, 512, 512),
        "tile matmul SSRSRS in a write cache, copy at 2",
        _product((4, 4, 4, 8), (4, 1, 4, 32), (8, 64), **{"read a": "2", "read b": "3"}),
    ),
    # 1009 columns are 31 tiles of 32 and a peeled one of 17.
    "matmul of a prime width": Known(
        dags.matmul(64, 1009, 128), "tile matmul SSRSRS", _product((8, 1, 1, 8), (1, 1, 32, 32), (2, 64))
    ),
    # 19 rows are 4 tiles of 4 and one of 3.
    "matmul of a prime height": Known(
        dags.matmul(19, 128, 64), "tile matmul SSRSRS", _product((5, 1, 1, 4), (4, 1, 1, 32), (1, 64))
    ),
    "convolution with packed weights": Known(
        dags.conv2d(7, 512, 512, constants=("weight",)),
        "nest pad; tile conv SSRSRS, relu at 1; inline add; fuse relu",
        {
            "pad": {"location": "root", "vector": 16, "parallel": 2, "unroll": 0},
            "conv": {
                "y": (1, 1, 7, 1),
                "x": (1, 1, 1, 7),
                "f": (16, 1, 1, 32),
                "ry": (1, 3),
                "rx": (1, 3),
                "rc": (32, 16),
                "unroll": 0,
                "read weight": "packed",
            },
        },
    ),
    # One row after the other, exponentials and both reductions in vectors, nothing but the row in memory.
    "softmax row by row": Known(
        dags.softmax(256, 512),
        "nest max rfactor inner; nest exp; nest sum rfactor inner; nest divide",
        {
            "max": {**ROW, "lanes": 16},
            "exp": {**ROW, "vector": 16},
            "sum": {**ROW, "lanes": 16},
            "divide": {"vector": 16, "parallel": 1, "unroll": 0},
        },
    ),
    "layer norm row by row": Known(
        dags.layer_norm(128, 768),
        "nest sum rfactor inner; inline mean; nest variance rfactor inner; nest norm",
        {
            "sum": {**ROW, "lanes": 64},
            "variance": {**ROW, "lanes": 64},
            "norm": {"vector": 16, "parallel": 1, "unroll": 0},
        },
    ),
    "rows of a matrix in partial sums": Known(
        row_products(),
        "nest gemv rfactor inner",
        {"gemv": {"lanes": 64, "parallel": 1, "unroll": 0}},
    ),
    "a product of few results shared by its terms": Known(
        dags.matmul(8, 8, 4096),
        "nest matmul rfactor outer",
        {"matmul": {"lanes": 8, "vector": 8, "fused": 1, "parallel": 0, "unroll": 0}},
    ),
    "depthwise with its rectifier": Known(
        dags.depthwise(56, 64),
        "nest pad; tile depthwise SSRSRS, clip at 1; fuse clip",
        {
            "pad": {"location": "1", "vector": 16, "parallel": 0, "unroll": 0},
            "depthwise": {
                "i": (14, 1, 4, 1),
                "j": (1, 1, 8, 7),
                "c": (2, 1, 1, 32),
                "di": (1, 3),
                "dj": (1, 3),
                "unroll": 16,
                "read weight": "direct",
            },
        },
    ),
    # The zeros between the inputs are never stored.
    "transposed convolution without a dilated copy": Known(
        dilated_and_padded(),
        "nest dilate; nest pad; tile conv SSRSRS",
        {
            "dilate": {"location": "inline", "vector": 1, "fused": 1, "parallel": 0, "unroll": 0},
            "pad": {"location": "1", "vector": 16, "fused": 1, "parallel": 0, "unroll": 0},
            "conv": {
                "y": (4, 1, 4, 1),
                "x": (1, 1, 2, 8),
                "f": (2, 1, 1, 32),
                "ry": (1, 4),
                "rx": (1, 4),
                "c": (4, 8),
                "unroll": 0,
                "read weight": "direct",
            },
        },
    ),
    # 63 full vectors and one of a single element.
    "sums over rows of a prime length": Known(
        row_lengths(64, 1009),
        "nest sum rfactor uneven; nest length",
        {
            "sum": {"lanes": 16, "parallel": 1, "unroll": 0},
            "length": {"vector": 16, "parallel": 0, "unroll": 0},
        },
    ),
    # Rows of four are shorter than a vector, but a whole capsule fills one.
    "capsules in full vectors": Known(
        capsules(),
        "nest doubled",
        {"doubled": {"vector": 16, "fused": 2, "parallel": 1, "unroll": 0}},
    ),
    "transposition in short vectors": Known(
        dags.transpose(512, 384),
        "nest transpose",
        {"transpose": {"vector": 16, "row": 8, "parallel": 1, "unroll": 16}},
    ),
    "transposition of an odd number of rows": Known(
        dags.transpose(197, 64),
        "nest transpose",
        {"transpose": {"vector": 1, "row": 16, "parallel": 1, "unroll": 0}},
    ),
    "transposition of heads": Known(
        dags.split_heads(64, 12, 64),
        "nest reshape; nest heads",
        {
            "reshape": {"location": "inline", "vector": 1, "parallel": 0, "unroll": 0},
            "heads": {"vector": 64, "parallel": 2, "unroll": 0},
        },
    ),
}
