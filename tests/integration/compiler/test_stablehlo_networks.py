"""JAX networks are imported, verified in a child and compiled, with the tuned layouts."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
import pytest
from numpy.typing import NDArray

from compiler.children.models import compile_untuned
from compiler.children.verification import Verification, verify_import
from compiler.importing.formats.reading import read_model
from compiler.importing.model import extract_tasks, fuse
from compiler.verifying.imported import verify_file
from tests.stablehlo_models import exported, exported_text, serialized

jnp, lax, nn = jax.numpy, jax.lax, jax.nn

Array = NDArray[Any]
TARGET = '{"kind":"llvm","num-cores":1}'
LAST = ("NHWC", "HWIO", "NHWC")


class Weights:
    """Draws the weights of a network."""

    def __init__(self) -> None:
        self._rng = np.random.default_rng(0)

    def __call__(self, *shape: int) -> Array:
        return (self._rng.standard_normal(shape) / np.sqrt(np.prod(shape[:-1]))).astype(np.float32)


def perceptron() -> tuple[Callable[..., Any], Array]:
    draw = Weights()
    layers = [(draw(64, 128), draw(128)), (draw(128, 128), draw(128)), (draw(128, 10), draw(10))]

    def network(x: Any) -> Any:
        for weight, bias in layers[:-1]:
            x = nn.relu(x @ weight + bias)
        weight, bias = layers[-1]
        return nn.softmax(x @ weight + bias)

    return network, draw(4, 64)


def normalized(draw: Weights, channels: int) -> Callable[[Any], Any]:
    scale, offset, mean, variance = (draw(1, channels)[0] for _ in range(4))
    return lambda x: (x - mean) * (lax.rsqrt(variance**2 + 1e-5) * scale) + offset


def convolved(draw: Weights, size: int, before: int, after: int, stride: int = 1, groups: int = 1) -> Any:
    kernel = draw(size, size, before // groups, after)
    norm = normalized(draw, after)
    return lambda x: norm(
        lax.conv_general_dilated(
            x, kernel, (stride, stride), "SAME", dimension_numbers=LAST, feature_group_count=groups
        )
    )


def residual() -> tuple[Callable[..., Any], Array]:
    draw = Weights()
    stem = convolved(draw, 7, 3, 16, stride=2)
    blocks = [
        (convolved(draw, 3, 16, 16), convolved(draw, 3, 16, 16), lambda x: x),
        (
            convolved(draw, 3, 16, 32, stride=2),
            convolved(draw, 3, 32, 32),
            convolved(draw, 1, 16, 32, stride=2),
        ),
    ]
    head = draw(32, 10)

    def network(x: Any) -> Any:
        x = nn.relu(stem(x))
        x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")
        for first, second, shortcut in blocks:
            x = nn.relu(second(nn.relu(first(x))) + shortcut(x))
        return x.mean((1, 2)) @ head

    return network, draw(1, 32, 32, 3)


def mobile() -> tuple[Callable[..., Any], Array]:
    """Depthwise convolutions, averages in windows, an image that is enlarged."""
    draw = Weights()
    layers = [
        convolved(draw, 1, 3, 24),
        convolved(draw, 3, 24, 24, stride=2, groups=24),
        convolved(draw, 1, 24, 16),
    ]

    def network(x: Any) -> Any:
        for layer in layers:
            x = jnp.clip(layer(x), 0, 6)
        x = lax.reduce_window(x, 0.0, lax.add, (1, 2, 2, 1), (1, 2, 2, 1), "VALID") / 4
        return jax.image.resize(x, (1, 16, 16, 16), "nearest")

    return network, draw(1, 16, 16, 3)


def encoder() -> tuple[Callable[..., Any], Array]:
    """Embeddings, two layers of attention and feed-forward networks."""
    draw = Weights()
    width, heads, tokens = 32, 4, 16
    table, places = draw(100, width), draw(tokens, width)
    layers = [
        {
            **{name: draw(width, heads, width // heads) for name in ("query", "key", "value")},
            "out": draw(heads, width // heads, width),
            "up": draw(width, 64),
            "down": draw(64, width),
            "scale": draw(1, width)[0],
            "bias": draw(1, width)[0],
        }
        for _ in range(2)
    ]

    def norm(x: Any, layer: Mapping[str, Any]) -> Any:
        return nn.standardize(x, epsilon=1e-5) * layer["scale"] + layer["bias"]

    def network(ids: Any) -> Any:
        x = jnp.asarray(table)[ids] + places
        for layer in layers:
            query, key, value = (
                jnp.einsum("btd,dhk->bthk", x, layer[name]) for name in ("query", "key", "value")
            )
            scores = jnp.einsum("bqhk,bshk->bhqs", query, key) / np.sqrt(width / heads)
            mixed = jnp.einsum("bhqs,bshk->bqhk", nn.softmax(scores), value)
            x = norm(x + jnp.einsum("bqhk,hkd->bqd", mixed, layer["out"]), layer)
            x = norm(x + nn.gelu(x @ layer["up"], approximate=False) @ layer["down"], layer)
        return x

    return network, np.arange(2 * tokens, dtype=np.int32).reshape(2, tokens)


def recurrent() -> tuple[Callable[..., Any], Array]:
    """An LSTM over a sequence."""
    draw = Weights()
    weight, bias = draw(8 + 16, 4 * 16), draw(1, 64)[0]

    def step(state: Any, x: Any) -> Any:
        hidden, cell = state
        gates = jnp.concatenate([x, hidden], -1) @ weight + bias
        i, f, g, o = jnp.split(gates, 4, -1)
        cell = nn.sigmoid(f) * cell + nn.sigmoid(i) * jnp.tanh(g)
        hidden = nn.sigmoid(o) * jnp.tanh(cell)
        return (hidden, cell), hidden

    def network(xs: Any) -> Any:
        zero = jnp.zeros((2, 16))
        (last, _), every = lax.scan(step, (zero, zero), xs)
        return {"last": last, "every": every}

    return network, draw(10, 2, 8)


NETWORKS = {
    "perceptron": perceptron,
    "residual": residual,
    "mobile": mobile,
    "encoder": encoder,
    "recurrent": recurrent,
}


@pytest.mark.slow_lane(seconds=7)
@pytest.mark.parametrize("name", NETWORKS)
def test_networks_are_verified_and_compiled_in_a_child(name: str) -> None:
    network, x = NETWORKS[name]()
    data = exported(network, x)
    assert verify_import(data, {}, TARGET) == Verification()
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.flush()
        library = io.BytesIO()
        imported = compile_untuned(file, {}, TARGET, library)
        assert imported.tasks
        assert library.getvalue().startswith(b"\x7fELF")


@pytest.mark.parametrize("form", [exported_text, serialized])
def test_every_form_of_a_program_is_the_same_model(form: Callable[..., bytes]) -> None:
    network, x = perceptron()
    wanted, found = (
        [task.workload_hash for task in extract_tasks(fuse(read_model(data, {}).to_relax(), TARGET))]
        for data in (exported(network, x), form(network, x))
    )
    assert found == wanted


def test_convolutions_take_batch_norms_in_and_no_layout_changes() -> None:
    network, x = residual()
    tasks = extract_tasks(fuse(read_model(exported(network, x), {}).to_relax(), TARGET))
    names = [task.name for task in tasks]
    assert not [name for name in names if "transpose" in name]
    assert not [name for name in names if "multiply" in name and "conv2d" in name]
    assert len([name for name in names if name.startswith("conv2d_add")]) == 6


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_a_softmax_is_one_kernel(axis: int) -> None:
    x = np.ones((4, 4, 4), np.float32)
    data = exported(lambda x: nn.softmax(x, axis), x)
    (task,) = extract_tasks(fuse(read_model(data, {}).to_relax(), TARGET))
    assert task.name.startswith("softmax")
    assert len(list(verify_file(read_model(data, {}), TARGET, TARGET))) >= 2


def test_a_graph_similar_to_a_softmax_is_not_a_softmax() -> None:
    """The sums are repeated along the other axis."""
    x = np.ones((4, 4), np.float32)

    def network(x: Any) -> Any:
        y = jnp.exp(x - x.max(1, keepdims=True))
        return y / y.sum(1)

    tasks = extract_tasks(fuse(read_model(exported(network, x), {}).to_relax(), TARGET))
    assert not [task.name for task in tasks if "softmax" in task.name]
