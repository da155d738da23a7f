"""Networks as PyTorch exports them: halves beside floats, caches that are written into."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tunefarm_runtime import load

from compiler.importing.formats.exported_program import ExportedProgram
from compiler.importing.formats.outlines import read_outline
from compiler.importing.formats.reading import read_model
from compiler.importing.model import fuse, kernel_calls
from compiler.importing.spec import ModelError
from compiler.target import detect_device
from compiler.verifying.decoder_cache import check_shorter_steps
from compiler.verifying.imported import Imported, verify_file
from core.exported_programs import program_inputs
from tests.compiled import build_module
from tests.compiled_models import manifest_of
from tunefarm.client.sizes import sizes_of

torch: Any = pytest.importorskip("torch")
nn, functional = torch.nn, torch.nn.functional
TARGET = '{"kind":"llvm","num-cores":1}'
TOKENS, DIM, HEAD = 6, 16, 4
CHANNELS = (3, 4), (4, 8), (12, 4)
put = torch.ops.aten.index_put


class UNet(nn.Module):  # type: ignore[name-defined]
    """Concatenates tensors that were upsampled in floats."""

    def __init__(self) -> None:
        super().__init__()
        self.high, self.low, self.last = (
            nn.Conv2d(*each, 3, padding=1) for each in ((3, 4), (4, 8), (12, 4))
        )
        self.norm = nn.GroupNorm(2, 8)

    def forward(self, x: Any) -> Any:
        x = torch.relu(self.high(x))
        low = functional.silu(self.norm(self.low(functional.max_pool2d(x, 2))))
        up = functional.interpolate(low.float(), scale_factor=2, mode="bilinear")
        return self.last(torch.cat([x, up], 1).to(x.dtype))


class Decoder(nn.Module):  # type: ignore[name-defined]
    """Writes the key and the value of a token into caches that are inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, DIM)
        self.query, self.key, self.value = (nn.Linear(DIM, DIM) for _ in range(3))

    def attend(self, token: Any, place: Any, keys: Any, values: Any) -> Any:
        seen = torch.arange(TOKENS) <= place[:, None]
        scores = self.query(self.embedding(token)) @ keys.transpose(1, 2)
        return torch.softmax(scores.masked_fill(~seen, -1e4), -1) @ values

    def forward(self, token: Any, place: Any, keys: Any, values: Any) -> Any:
        x = self.embedding(token)
        keys, values = keys.index_copy(1, place, self.key(x)), values.index_copy(1, place, self.value(x))
        return self.attend(token, place, keys, values), keys, values


class CachingDecoder(Decoder):
    """Writes into caches that are its own buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("keys", torch.zeros(1, TOKENS, DIM))
        self.register_buffer("values", torch.zeros(1, TOKENS, DIM))

    def forward(self, token: Any, place: Any) -> Any:  # type: ignore[override]
        x = self.embedding(token)
        self.keys.index_copy_(1, place, self.key(x))
        self.values.index_copy_(1, place, self.value(x))
        return self.attend(token, place, self.keys, self.values)


class WritingDecoder(Decoder):
    """It writes into the caches that it is given."""

    def forward(self, token: Any, place: Any, keys: Any, values: Any) -> Any:
        x = self.embedding(token)
        keys.index_copy_(1, place, self.key(x))
        values.index_copy_(1, place, self.value(x))
        return self.attend(token, place, keys, values)


class Conformer(nn.Module):  # type: ignore[name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.wide = nn.LayerNorm(DIM), nn.Linear(DIM, 2 * DIM)
        self.mix, self.batch_norm = nn.Conv1d(DIM, DIM, 3, padding=1, groups=DIM), nn.BatchNorm1d(DIM)

    def forward(self, x: Any) -> Any:
        y = functional.glu(self.wide(self.norm(x)), -1).transpose(1, 2)
        return x + functional.silu(self.batch_norm(self.mix(y))).transpose(1, 2)


def halves() -> tuple[Any, Sequence[Any]]:
    return UNet().half(), (torch.zeros(1, 3, 8, 8).half(),)


def brain_floats() -> tuple[Any, Sequence[Any]]:
    return UNet().bfloat16(), (torch.zeros(1, 3, 8, 8).bfloat16(),)


def one_float_weight() -> tuple[Any, Sequence[Any]]:
    network = Conformer().bfloat16()
    network.batch_norm.float()
    return network, (torch.zeros(1, TOKENS, DIM).bfloat16(),)


TOKEN = torch.zeros(1, 1, dtype=torch.long), torch.zeros(1, dtype=torch.long)
THREE_TOKENS = torch.zeros(1, 3, dtype=torch.long), torch.arange(3)
DYNAMIC_TOKENS = {1: torch.export.Dim("tokens", max=5)}, {0: torch.export.Dim("tokens", max=5)}


def caches() -> list[Any]:
    return [torch.zeros(1, TOKENS, DIM) for _ in range(2)]


def decoder() -> tuple[Any, Sequence[Any]]:
    return Decoder(), (*TOKEN, *caches())


def caching_decoder() -> tuple[Any, Sequence[Any]]:
    return CachingDecoder(), TOKEN


def writing_decoder() -> tuple[Any, Sequence[Any]]:
    return WritingDecoder(), (*TOKEN, *caches())


class StaticCache(nn.Module):  # type: ignore[name-defined]
    """A layer of grouped attention with rotated keys and a static cache, as transformers exports it."""

    def __init__(self, writes: Callable[[Any, Any, Any], None]) -> None:
        super().__init__()
        self.writes = writes
        self.embedding = nn.Embedding(20, 4 * HEAD)
        self.query, self.out = nn.Linear(4 * HEAD, 4 * HEAD), nn.Linear(4 * HEAD, 20)
        self.key, self.value = (nn.Linear(4 * HEAD, 2 * HEAD) for _ in range(2))
        for layer in range(2):
            self.register_buffer(f"key_cache_{layer}", torch.zeros(1, 2, TOKENS, HEAD))
            self.register_buffer(f"value_cache_{layer}", torch.zeros(1, 2, TOKENS, HEAD))

    def heads(self, x: Any) -> Any:
        return x.view(1, x.shape[1], -1, HEAD).transpose(1, 2)

    def forward(self, input_ids: Any, cache_position: Any) -> Any:
        x = self.embedding(input_ids)
        cache_position = self.places(input_ids, cache_position)
        angle = cache_position[:, None] / torch.arange(1, HEAD + 1)
        seen = torch.arange(TOKENS) <= cache_position[:, None]
        for layer in range(2):
            keys, values = (self.cache(f"{kind}_cache_{layer}") for kind in ("key", "value"))
            self.writes(keys, cache_position, self.heads(self.key(x)) * angle.cos())
            self.writes(values, cache_position, self.heads(self.value(x)))
            whole = [
                one[:, :, None].expand(1, 2, 2, TOKENS, HEAD).reshape(1, 4, TOKENS, HEAD)
                for one in (keys, values)
            ]
            query = self.heads(self.query(x)) * angle.cos()
            mixed = functional.scaled_dot_product_attention(query, *whole, attn_mask=seen)
            x = x + mixed.transpose(1, 2).reshape(1, x.shape[1], -1)
        return self.out(x)

    def places(self, input_ids: Any, cache_position: Any) -> Any:
        return cache_position

    def cache(self, name: str) -> Any:
        return getattr(self, name)


class HeldCache(StaticCache):
    """Holds its buffers, and the number of its tokens, where torch.export takes them for constants, as
    transformers' static caches do.
    """

    def __init__(self) -> None:
        super().__init__(_copied_by_index)
        self.register_buffer("length", torch.tensor(0))
        self.held = [dict(self.named_buffers())]

    def places(self, input_ids: Any, cache_position: Any) -> Any:
        length = self.cache("length")
        length.copy_(cache_position[0])
        places = torch.arange(input_ids.shape[1]) + length
        length.add_(input_ids.shape[1])
        return places

    def cache(self, name: str) -> Any:
        return self.held[0][name]


def _copied_by_index(cache: Any, at: Any, rows: Any) -> None:
    cache.index_copy_(2, at, rows)


def _assigned(cache: Any, at: Any, rows: Any) -> None:
    cache[:, :, at] = rows


def _first(cache: Any, at: Any, rows: Any) -> None:
    cache[:, :, :1] = rows


def _added(cache: Any, at: Any, rows: Any) -> None:
    cache.index_add_(2, at, rows)


NETWORKS: Mapping[str, Callable[[], tuple[Any, Sequence[Any]]]] = {
    made.__name__: made
    for made in (halves, brain_floats, one_float_weight, decoder, caching_decoder, writing_decoder)
}


def saved(network: Any, example: Sequence[Any], dynamic: Any = None) -> bytes:
    """Return the file of a network, with dynamic dimensions if there are any."""
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        program = torch.export.export(network.eval(), tuple(example), dynamic_shapes=dynamic)
        torch.export.save(program, buffer)
    return buffer.getvalue()


def read(file: bytes, shapes: Mapping[str, tuple[int, ...]]) -> ExportedProgram:
    program = read_model(file, shapes)
    assert isinstance(program, ExportedProgram)
    return program


def exported(network: Any, example: Sequence[Any]) -> ExportedProgram:
    return read(saved(network, example), {})


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_is_imported_and_right(name: str) -> None:
    assert len(list(verify_file(exported(*NETWORKS[name]()), TARGET, TARGET))) >= 2


STATIC_CACHES: list[Callable[[], StaticCache]] = [
    partial(StaticCache, _copied_by_index),
    partial(StaticCache, _assigned),
    HeldCache,
]


@pytest.mark.parametrize("made", STATIC_CACHES, ids=["copied", "assigned", "held"])
def test_a_static_cache_stays_in_the_library(made: Callable[[], StaticCache], tmp_path: Path) -> None:
    network = made().eval()
    file = exported(network, TOKEN)
    assert len(list(verify_file(file, TARGET, TARGET))) >= 2
    device = detect_device(1)
    imported = file.to_relax()
    assert imported.cache is not None, imported.no_cache
    fused = fuse(imported, device.target)
    kernels = [call.args[0].name_hint for call in kernel_calls(fused)]
    assert sum(name.startswith("write_rows") for name in kernels) == 4
    build_module(fused, {}, device.target, tmp_path / "model.so")
    manifest = manifest_of(imported, device.target)
    (tmp_path / "manifest.json").write_text(manifest.to_json())
    model = load(tmp_path)
    assert (len(model.outputs), model.length) == (1, 0)
    for _ in range(2):
        for _, buffer in network.named_buffers():
            buffer.zero_()
        model.reset()
        for place, token in enumerate((3, 4, 5, 9)):
            with torch.no_grad():
                wanted = network(torch.tensor([[token]]), torch.tensor([place])).numpy()
            np.testing.assert_allclose(model.step(token)[0], wanted, rtol=1e-3, atol=1e-4)
        model.rewind(1)
        np.testing.assert_allclose(model.step([4, 5, 9])[0][:, -1:], wanted, rtol=1e-3, atol=1e-4)
        decoder = model._decoder
        assert decoder is not None
        for name, rows in decoder._arrays.items():
            rows[decoder._rows_of(name, 0, 4)] = np.nan


@pytest.mark.slow_lane(seconds=20)
def test_sizes_of_a_dynamic_program_share_a_cache(tmp_path: Path) -> None:
    network = StaticCache(_copied_by_index).eval()
    file, device = saved(network, THREE_TOKENS, DYNAMIC_TOKENS), detect_device(1)
    for count in (1, 4):
        program = read(file, {"input_ids": (1, count)})
        imported = program.to_relax()
        assert imported.cache is not None, imported.no_cache
        assert (imported.cache.count, imported.cache.capacity) == (count, TOKENS)
        if count > 1:
            check_shorter_steps(program, imported.computed_in)
        (tmp_path / f"tokens={count}").mkdir()
        build_module(fuse(imported, device.target), {}, device.target, tmp_path / f"tokens={count}/model.so")
        (tmp_path / f"tokens={count}/manifest.json").write_text(
            manifest_of(imported, device.target).to_json()
        )
    model = load(tmp_path)
    tokens = [3, 4, 5, 9, 2, 7]
    with torch.no_grad():
        wanted = network(torch.tensor([tokens]), torch.arange(TOKENS)).numpy()
    for parts in ([1] * TOKENS, [4, 2], [3, 1, 2], [1, 4, 1]):
        model.reset()
        ends = np.cumsum(parts)
        found = [model.step(tokens[end - part : end])[0] for part, end in zip(parts, ends, strict=True)]
        np.testing.assert_allclose(np.concatenate(found, 1), wanted, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("shapes", "reason"),
    [
        ({}, r"input 'input_ids' has dynamic dimensions \(1, s\d+\): give its shape with --shape input_ids="),
        ({"input_ids": (1,)}, r"input 'input_ids' has 2 dimensions, and \(1,\) has 1"),
        ({"input_ids": (2, 2)}, r"input 'input_ids' has the dimensions \(1, s\d+\) and can't have the shape"),
        ({"input_ids": (1, 2), "cache_position": (3,)}, "input 'cache_position' has the dimensions"),
        (
            {"input_ids": (1, TOKENS)},
            rf"dimension s\d+ of input 'input_ids' can't be {TOKENS}: .* for 1 to 5",
        ),
        ({"ids": (1, 2), "input_ids": (1, 2)}, "the model has no input 'ids'"),
    ],
)
def test_sizes_of_dynamic_dimensions_are_checked(shapes: Mapping[str, tuple[int, ...]], reason: str) -> None:
    file = saved(StaticCache(_copied_by_index), THREE_TOKENS, DYNAMIC_TOKENS)
    with pytest.raises(ModelError, match=reason):
        read(file, shapes)


def test_an_outline_has_dynamic_dimensions() -> None:
    outline = read_outline(saved(StaticCache(_copied_by_index), THREE_TOKENS, DYNAMIC_TOKENS))
    shapes = {one.name: one.shape for one in outline.inputs}
    assert shapes["input_ids"] == (1, *(shapes["cache_position"] or ()))
    assert str(shapes["cache_position"][0]).startswith("s")  # type: ignore[index]
    assert all(one.supported for one in outline.operators)


@pytest.mark.slow
@pytest.mark.parametrize("made", [STATIC_CACHES[0], HeldCache], ids=["copied", "held"])
def test_the_command_gives_a_dynamic_decoder_its_sizes(
    made: Callable[[], StaticCache], tmp_path: Path
) -> None:
    file = saved(made(), THREE_TOKENS, DYNAMIC_TOKENS)
    (tmp_path / "model.pt2").write_bytes(file)
    if made is not HeldCache:
        with (tmp_path / "model.pt2").open("rb") as opened:
            found = program_inputs(opened).dimensions
        assert found == {one.name: one.shape for one in read_outline(file).inputs}
    [sizes] = sizes_of([tmp_path / "model.pt2"], {})
    caches = [read(file, size.shapes).to_relax().cache for size in sizes]
    assert [(one.count, one.capacity) for one in caches if one] == [(1, TOKENS), (5, TOKENS)]


class TwoLengths(nn.Module):  # type: ignore[name-defined]
    def forward(self, x: Any, y: Any) -> Any:
        return x.sum() + y


def test_a_dimension_that_another_gives_is_computed(tmp_path: Path) -> None:
    size = torch.export.Dim("size", max=50)
    example = torch.zeros(3, 4), torch.zeros(6, 4)
    file = saved(TwoLengths(), example, ({0: size}, {0: 2 * size}))
    (tmp_path / "model.pt2").write_bytes(file)
    (dim,) = (str(dim) for dim in read_outline(file).inputs[0].shape or () if isinstance(dim, str))
    [sizes] = sizes_of([tmp_path / "model.pt2"], {dim: (2, 5)})
    shapes = [[spec.shape for spec in read(file, size.shapes).inputs] for size in sizes]
    assert shapes == [[(2, 4), (4, 4)], [(5, 4), (10, 4)]]


class SeesLaterTokens(StaticCache):
    """Adds a mean over all new tokens to the outputs."""

    def forward(self, input_ids: Any, cache_position: Any) -> Any:
        return super().forward(input_ids, cache_position) + input_ids.float().mean()


class LastToken(StaticCache):
    """Returns a row for the last token only."""

    def forward(self, input_ids: Any, cache_position: Any) -> Any:
        return super().forward(input_ids, cache_position)[:, -1:]


def test_a_step_that_mixes_its_tokens_is_refused() -> None:
    file = exported(SeesLaterTokens(_copied_by_index), THREE_TOKENS)
    with pytest.raises(ModelError, match="a step of 3 tokens computes another output"):
        check_shorter_steps(file, "float32")


def test_a_cache_of_several_tokens_needs_a_row_for_each() -> None:
    assert (
        "doesn't have one row for each of 3" in exported(LastToken(_copied_by_index), THREE_TOKENS).no_cache
    )


def _read_before(cache: Any, at: Any, rows: Any) -> None:
    cache.index_copy_(2, at, rows + cache.sum(2, keepdim=True))


@pytest.mark.parametrize(
    ("writes", "example", "reason"),
    [
        (_first, TOKEN, "its buffer 'b_key_cache_0' isn't only written at one place"),
        (_added, TOKEN, "its buffer 'b_key_cache_0' is also read, added to"),
        (_read_before, TOKEN, "its buffer 'b_key_cache_0' is also read"),
    ],
)
def test_other_buffers_are_inputs_and_outputs(
    writes: Callable[..., None], example: Sequence[Any], reason: str
) -> None:
    model = exported(StaticCache(writes).eval(), example).to_relax()
    assert model.cache is None
    assert model.no_cache.startswith(reason)
    assert len(model.outputs) == 5


def test_a_buffer_that_is_written_into_is_passed_on() -> None:
    network = CachingDecoder().eval()
    file = exported(network, TOKEN).as_function()
    model = file.to_relax()
    assert [spec.name for spec in model.inputs] == ["b_keys", "b_values", "token", "place"]
    imported = Imported(model, TARGET)
    states = [np.zeros((1, TOKENS, DIM), np.float32)] * 2
    for place in range(3):
        arrays = [*states, np.array([[place + 5]]), np.array([place])]
        feeds = {spec.name: array for spec, array in zip(model.inputs, arrays, strict=True)}
        *states, found = imported.compute(feeds).values()
        with torch.no_grad():
            wanted = network(*map(torch.from_numpy, arrays[2:])).numpy()
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_an_input_that_is_written_into_is_returned() -> None:
    network, given = WritingDecoder().eval(), caches()
    file = exported(network, (*TOKEN, *given))
    imported = Imported(file.to_relax(), TARGET)
    states = [cache.numpy().copy() for cache in given]
    for place in range(3):
        arrays = [np.array([[place + 5]]), np.array([place]), *states]
        feeds = {spec.name: array for spec, array in zip(file.inputs, arrays, strict=True)}
        *states, found = imported.compute(feeds).values()
        with torch.no_grad():
            wanted = network(*map(torch.from_numpy, arrays[:2]), *given)
        for one, other in zip([*states, found], [*given, wanted], strict=True):
            np.testing.assert_allclose(one, other.numpy(), rtol=1e-4, atol=1e-5)


PUTS: Mapping[str, Callable[[Any, Any, Any], Any]] = {
    "rows": lambda x, at, v: put(x, [at], v[:, None, None]),
    "one place": lambda x, at, v: put(x, [None, at[:1]], v[:1]),
    "one place from the end": lambda x, at, v: put(x, [None, at[:1] - 5], v[:1]),
    "added": lambda x, at, v: put(x, [None, at[:1]], v[:1], True),
    "places": lambda x, at, v: put(x, [None, None, at], v),
    "places of two axes": lambda x, at, v: put(x, [None, at[:2, None], at], v[:2, None]),
    "apart": lambda x, at, v: put(x, [at, None, at], v[:, None]),
    "all": lambda x, at, v: put(x, [at, at, at], v, True),
}


@pytest.mark.parametrize("name", PUTS)
def test_values_are_put_where_pytorch_puts_them(name: str) -> None:
    class Network(nn.Module):  # type: ignore[name-defined]
        def forward(self, x: Any, at: Any, values: Any) -> Any:
            return PUTS[name](x, at, values)

    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((4, 5, 6)).astype(np.float32), np.array([2, 0, 3])]
    arrays.append(rng.standard_normal(3).astype(np.float32))
    file = exported(Network(), [torch.from_numpy(array) for array in arrays])
    feeds = {spec.name: array for spec, array in zip(file.inputs, arrays, strict=True)}
    (found,) = Imported(file.to_relax(), TARGET).compute(feeds).values()
    np.testing.assert_array_equal(found, PUTS[name](*map(torch.from_numpy, arrays)).numpy())


class Calls(nn.Module):  # type: ignore[name-defined]
    """Returns what some functions compute of its inputs."""

    def __init__(self, *functions: Callable[..., Any]) -> None:
        super().__init__()
        self.functions = functions

    def forward(self, *inputs: Any) -> Any:
        return tuple(function(*inputs) for function in self.functions)


def check_calls(functions: Sequence[Callable[..., Any]], *inputs: Any) -> None:
    """Compare functions with PyTorch, element by element; NaN equals NaN."""
    file = exported(Calls(*functions), inputs)
    given = {spec.name: tensor.numpy() for spec, tensor in zip(file.inputs, inputs, strict=True)}
    found = list(Imported(file.to_relax(), TARGET, TARGET).compute(given).values())
    for function, actual in zip(functions, found, strict=True):
        wanted = function(*inputs).numpy()
        assert actual.dtype == wanted.dtype
        np.testing.assert_allclose(actual, wanted, rtol=1e-5, atol=1e-6)


def test_selu_and_elu_have_their_scales() -> None:
    numbers = torch.tensor([-3.0, -1.0, -0.0, 0.5, 2.0, float("-inf"), float("nan")])
    check_calls([functional.selu, functional.elu, lambda x: functional.elu(x, alpha=0.3)], numbers)


def test_functions_of_floats_take_integers() -> None:
    functions = [torch.exp, torch.sin, torch.sigmoid, torch.reciprocal, torch.sqrt, torch.log]
    check_calls(functions, torch.tensor([1, 2, 7], dtype=torch.int32))


def test_integers_are_divided_as_pytorch_does() -> None:
    numbers = torch.tensor([-(2**31), -8, -7, 0, 7, 2**31 - 1], dtype=torch.int32)
    functions = [
        *(lambda x, y: x // y, lambda x, y: x % y, torch.fmod, lambda x, y: x // 3, lambda x, y: x % -3),
        *(lambda x, y: torch.div(x, y, rounding_mode="trunc"), lambda x, y: x // -3, lambda x, y: x / y),
    ]
    check_calls(functions, numbers, torch.tensor([3, -2, 2, 5, -3, -7], dtype=torch.int32))


def test_integers_beside_floats_are_floats() -> None:
    functions = [
        *(lambda x: x * 2.5, lambda x: x + 0.5, lambda x: x / 2, lambda x: x**0.5, lambda x: 0.5 - x),
        *(lambda x: x == 2.5, lambda x: x < 2.5, lambda x: x.clamp(0.5, 2.5), lambda x: x % 2.5),
    ]
    check_calls(functions, torch.tensor([0, 1, 2, 3, 7], dtype=torch.int32))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x + torch.rand(3),
        torch.randn_like,
        torch.bernoulli,
        lambda x: functional.dropout(x, 0.5, training=True),
        lambda x: x.clone().exponential_(),
    ],
)
def test_random_numbers_are_refused(function: Callable[[Any], Any]) -> None:
    file = exported(Calls(function), (torch.rand(3),))
    with pytest.raises(ModelError, match=r"operator \w+\.\w+ of node '\w+' draws random numbers"):
        file.to_relax()
