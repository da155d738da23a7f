"""Operators of PyTorch are imported as PyTorch computes them, or are refused by name."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from compiler.importing.formats.exported_program import ExportedProgram
from compiler.importing.formats.reading import read_model
from compiler.importing.spec import ModelError
from compiler.verifying.imported import Imported, verify_file
from compiler.verifying.inputs import ORDINARY_SETS
from tests.devices import UNOPTIMIZED as TARGET
from tests.marks import slow_lane_except

torch: Any = pytest.importorskip("torch")
functional = torch.nn.functional
pytestmark = pytest.mark.slow
Function = Callable[..., Any]
resized = functional.interpolate


def written(x: Any) -> Any:
    y = x.clone()
    y[y > 0] = 0
    return y


def places(x: Any) -> Any:
    return (x > 0).long() + 1


IMAGES: dict[str, Function] = {
    "nearest": lambda x: resized(x, size=(5, 11)),
    "nearest of a scale": lambda x: resized(x, scale_factor=0.6),
    "nearest-exact": lambda x: resized(x, scale_factor=1.7, mode="nearest-exact"),
    "bilinear of a scale": lambda x: resized(x, scale_factor=0.6, mode="bilinear"),
    "bilinear to one": lambda x: resized(x, size=(1, 1), mode="bilinear", align_corners=True),
    "places of maxima": lambda x: functional.max_pool2d(x, 3, 2, 1, return_indices=True)[1],
    "maxima of parts": lambda x: functional.adaptive_max_pool2d(x, (4, 2)),
    "means with a divisor": lambda x: functional.avg_pool2d(x, 3, 2, divisor_override=5),
    "unfold": lambda x: functional.unfold(x, (2, 3), dilation=2, padding=1, stride=2),
}
TABLES: dict[str, Function] = {
    "sign": torch.sign,
    "isfinite": torch.isfinite,
    "exp2": torch.exp2,
    "fmax": lambda x: torch.fmax(x, x.flip(0)),
    "amax": lambda x: x.amax(-1),
    "last of a row": lambda x: x[..., -1],
    "windows by strides": lambda x: x.as_strided((3, 2), (2, 1), 1),
    "an output twice": lambda x: (x.abs(),) * 2,
    "amin of all": lambda x: x.amin(),
    "logsumexp": lambda x: x.logsumexp(-1),
    "stable sort": lambda x: torch.argsort((x > 0).float(), stable=True, descending=True),
    "product": lambda x: x.prod(-1),
    "sum of booleans": lambda x: (x > 0) + (x < 1),
    "integers from below": lambda x: x.nan_to_num(0, 0, 0).clamp(-9, 9).int().clamp(min=1),
    "scatter_add": lambda x: x.scatter_add(0, places(x), x),
    "scatter_reduce": lambda x: x.scatter_reduce(0, places(x), x, "amax", include_self=False),
    "index from the end": lambda x: x[torch.tensor([-1, 0])],
    "indices of two axes": lambda x: x.reshape(4, 2, 3)[torch.tensor([-1, 0]), :, torch.tensor([2, 1])],
    "a mask": written,
    "extremes along an axis": lambda x: (*x.max(1), *x.min(0, keepdim=True)),
    "sums with a factor": lambda x: (
        torch.add(x, x.flip(0), alpha=3),
        torch.sub(x.half(), 2, alpha=0.3),
        torch.rsub(x, x.flip(1), alpha=-2),
    ),
    "groups without weights": lambda x: functional.group_norm(x, 2),
    "signs": lambda x: torch.copysign(torch.copysign(x.flip(0), -0.0), x),
    "shifts": lambda x: (places(x) << 3 >> places(x)) << (places(x) - 1),
    "maxima of windows side by side": lambda x: functional.max_pool2d(x[None], 2),
    "fewer places than elements": lambda x: x.reshape(2, 4, 3).scatter(
        2, places(x).reshape(2, 4, 3)[:1, :3, :1], x.reshape(2, 4, 3)
    ),
}


def verified(function: Function, *inputs: Any) -> list[str]:
    class Module(torch.nn.Module):
        def forward(self, *given: Any) -> Any:
            return function(*given)

    return [one.inputs for one in verify_file(read_model(exported(Module(), *inputs), {}), TARGET, TARGET)]


INF, NAN = float("inf"), float("nan")
attention = functional.scaled_dot_product_attention
# Of matrices, with two heads each.
NUMBERS: dict[str, Function] = {
    "filled with infinity": lambda x: torch.minimum(x, torch.full_like(x, INF)),
    "filled with NaN": lambda x: x + torch.full(x.shape, NAN),
    "filled with a large number": lambda x: x.double() + torch.full(x.shape, 1e300, dtype=torch.float64),
    "filled with booleans": lambda x: torch.full(x.shape, True) & (x > 0),
    "filled where a mask holds": lambda x: x.masked_fill(x > 0, -INF),
    "filled halves": lambda x: torch.maximum(x.half(), torch.full(x.shape, -INF, dtype=torch.float16)),
    "a causal mask": lambda x: (x @ x.mT + torch.full((5, 5), -INF).triu(1)).softmax(-1),
    "causal attention": lambda x: attention(x, x, x, is_causal=True),
    "attention behind a mask": lambda x: attention(x, x, x, torch.eye(5, dtype=torch.bool)),
    "attention of groups": lambda x: attention(x, x[:, :1], x[:, :1], is_causal=True, enable_gqa=True),
}


def test_filled_tensors_agree_with_pytorch() -> None:
    check_together(NUMBERS, torch.randn(1, 2, 5, 4))


def test_quotients_are_rounded_by_the_exact_remainder() -> None:
    """PyTorch: 1 // 0.1 is 9. Dividing in floats would give 10."""
    functions: dict[str, Function] = {
        "quotient": lambda x, y: x // y,
        "remainder": lambda x, y: x % y,
        "by a number": lambda x, y: torch.stack([x // 0.1, x % -0.1, x.half().float() // y]),
        "crossed bounds": lambda x, y: x.clamp(1, -1),
        "of bytes": lambda x, y: (x.abs() * 9).to(torch.uint8) // 3,
        "of two types": lambda x, y: torch.div(
            (x.nan_to_num(posinf=9) * 9).to(torch.int16),
            torch.tensor([-3], dtype=torch.int8),
            rounding_mode="trunc",
        ),
        "bounds that are tensors": lambda x, y: x[:, None].clamp(min=y, max=y[0]),
        "a lower bound": lambda x, y: x.clamp_min(y),
        "bounds of integers": lambda x, y: (
            x.nan_to_num(posinf=9).int()[:, None].clamp(max=torch.tensor([3, -3]))
        ),
    }
    x = torch.tensor([1.0, 0.5, 6.0, -1.0, INF, 7.5, 0.0, 1.0])
    check_together(functions, x, torch.tensor([0.1, 0.1, 0.2, 0.1, 2.0, -2.5, 0.0, INF]))


def test_reductions_sorts_and_windows_agree_with_pytorch() -> None:
    functions: dict[str, Function] = {
        "negative bytes": lambda x: -x.abs().to(torch.uint8),
        "softmax of scalars": lambda x: (x[0, 0].softmax(0), x[0, 1].log_softmax(0)),
        "any": lambda x: (
            (x > 1).any(),
            x.any(1),
            (x > 0).any((0, 1), True),
            x.long().any(0),
            (x > 0).all(1),
        ),
        "moments": lambda x: torch.var_mean(x, 1, correction=0, keepdim=True),
        "moments of all": lambda x: (*torch.var_mean(x), *torch.std_mean(x.double(), 0), x.half().std(1)),
        "no degree of freedom": lambda x: (x[:, :1].var(1), x[:, :1].var(1, correction=3)),
        "norm 0": lambda x: torch.linalg.vector_norm(x.round(), 0, 1),
        "norms": lambda x: (torch.linalg.vector_norm(x, INF), torch.linalg.vector_norm(x, -INF, 0, True)),
        "sums so far": lambda x: ((x > 0).cumsum(1), (x * 9).to(torch.int8).cumsum(0), x.half().cumsum(1)),
        "sums as floats": lambda x: ((x * 9).long().cumsum(1, dtype=torch.float32), x[0, 0].cumsum(0)),
        "products so far": lambda x: ((x > 0).cumprod(1), (x * 3).int().cumprod(0)),
        "sorted booleans": lambda x: (x > 0).sort(stable=True, descending=True)[0],
        "order of booleans": lambda x: (x > 0).sort(stable=True, dim=0)[1],
        "sorted bytes": lambda x: (x.abs() * 90).to(torch.uint8).sort(1)[0],
        "sorted halves": lambda x: x.half().sort(0, descending=True)[0],
        "slices": lambda x: x.index_reduce(1, torch.tensor([0, 2, 0]), x[:, :3], "amax"),
        "slices alone": lambda x: x.index_reduce(0, torch.tensor([3, 3]), x[:2], "prod", include_self=False),
        "windows": lambda x: (x.unfold(1, 3, 2), x.unfold(0, 2, 1).unfold(1, 6, 1)),
        "triangles": lambda x: x[torch.tril_indices(3, 4, -1)[0]] + x[torch.triu_indices(2, 2, 1)[1]],
    }
    torch.manual_seed(0)
    check_together({name: flattened(each) for name, each in functions.items()}, torch.randn(4, 6), digits=3)


def flattened(function: Function) -> Function:
    """Return the function with its outputs joined in one tensor of doubles."""

    def convert(*given: Any) -> Any:
        found = function(*given)
        return torch.cat([one.double().ravel() for one in (found if isinstance(found, tuple) else (found,))])

    return convert


def test_outputs_without_a_value_are_left_out() -> None:
    class Module(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return None, x + 1, None, (x * 2, None)

    file = read_model(exported(Module(), torch.ones(3)), {})
    assert [one.inputs for one in verify_file(file, TARGET, TARGET)][:2] == [*ORDINARY_SETS]
    (name,) = (spec.name for spec in file.inputs)
    found = Imported(file.to_relax(), TARGET, TARGET).compute({name: np.ones(3, np.float32)})
    assert [array.tolist() for array in found.values()] == [[2.0] * 3, [2.0] * 3]


def test_functions_of_bfloat16_agree_with_pytorch() -> None:
    functions: dict[str, Function] = {
        "normalize": functional.normalize,
        "norm": lambda x: torch.linalg.vector_norm(x, 3, dim=1),
        "power": lambda x: x.abs() ** 0.3,
        "remainder": lambda x: torch.remainder(x, 0.75),
        "is finite": torch.isfinite,
    }

    def rounded(function: Function) -> Function:
        return lambda x: function(x.bfloat16()).float()

    check_together({name: rounded(each) for name, each in functions.items()}, torch.rand(3, 8), digits=2)


def test_indices_out_of_range_are_clipped() -> None:
    """PyTorch refuses them."""
    data = exported(_Gathered(), torch.zeros(5, 3), torch.zeros(4, 3, dtype=torch.int64))
    file, x = read_model(data, {}), np.arange(15, dtype=np.float32).reshape(5, 3)
    places = np.tile(np.array([[5], [9], [-1], [-6]]), 3)
    given = dict(zip((spec.name for spec in file.inputs), (x, places), strict=True))
    (found,) = Imported(file.to_relax(), TARGET, TARGET).compute(given).values()
    np.testing.assert_array_equal(found, x[[4, 4, 4, 0]])


class _Gathered(torch.nn.Module):
    def forward(self, x: Any, places: Any) -> Any:
        return x.gather(0, places)


@pytest.mark.parametrize("rank", [2, 3])
def test_grid_samples_agree_with_pytorch(rank: int) -> None:
    modes = ("bilinear", "nearest", "bicubic") if rank == 2 else ("bilinear", "nearest")
    extents = (4, 5) if rank == 2 else (3, 4, 5)

    def sampled(mode: str, padding: str, aligned: bool) -> Function:
        return lambda x, grid: functional.grid_sample(x, grid, mode, padding, aligned)

    chosen = {
        f"{mode} {padding} {aligned}": sampled(mode, padding, aligned)
        for mode in modes
        for padding, aligned in (("zeros", False), ("border", True), ("reflection", False))
    }
    grid = 1.2 * torch.randn(2, *(2 for _ in extents[1:]), 3, rank)
    check_together(chosen, torch.randn(2, 3, *extents), grid)


def check_together(functions: dict[str, Function], *inputs: Any, digits: int = 4) -> None:
    """Compare functions with PyTorch as one program, and name the one that differs."""

    class Module(torch.nn.Module):
        def forward(self, *given: Any) -> Any:
            return tuple(function(*given) for function in functions.values())

    file = read_model(exported(Module(), *inputs), {})
    assert isinstance(file, ExportedProgram)
    given = {spec.name: tensor.numpy() for spec, tensor in zip(file.inputs, inputs, strict=True)}
    found = Imported(file.to_relax(), TARGET, TARGET).compute(given).values()
    for name, right, own in zip(functions, file.compute(given), found, strict=True):
        assert (own.dtype, own.shape) == (right.dtype, right.shape), name
        tolerance = 1e-2 if right.dtype == np.float16 else 10.0**-digits
        np.testing.assert_allclose(own, right, rtol=tolerance, atol=tolerance, err_msg=name)


def exported(module: Any, *inputs: Any) -> bytes:
    data = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.export.save(torch.export.export(module.eval(), inputs), data)
    return data.getvalue()


@pytest.mark.parametrize("name", slow_lane_except([*IMAGES], "nearest", "places of maxima", seconds=0.5))
def test_an_image_operator_is_verified(name: str) -> None:
    assert len(verified(IMAGES[name], torch.zeros(2, 3, 8, 8))) == 6


@pytest.mark.parametrize(
    "name", slow_lane_except([*TABLES], "sign", "scatter_add", "index from the end", seconds=0.5)
)
def test_an_operator_is_verified(name: str) -> None:
    assert len(verified(TABLES[name], torch.zeros(4, 6))) == 6


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x: torch.erfc(x), r"operator erfc.default of node 'erfc' can't be imported: .* Replace it"),
        (
            lambda x: x.mT.as_strided((2, 3), (3, 1)),
            r"it reads memory in another order .* \(its inputs are float32 \(.*\)\). Replace it by",
        ),
        (
            lambda x: functional.adaptive_max_pool2d(x[None], (3, 5)),
            r"its windows differ in size, since \(4, 6\) isn't a multiple of \(3, 5\)",
        ),
        (
            lambda x: resized(x[None, None], size=(3, 5), mode="bilinear", antialias=True),
            "antialiasing isn't supported: interpolate without antialias",
        ),
    ],
)
def test_a_refusal_names_the_operator(function: Function, reason: str) -> None:
    with pytest.raises(ModelError, match=reason):
        verified(function, torch.zeros(4, 6))
