"""Quantize a float model, except for layers that would lose too much accuracy."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import IO, Any

import onnx
from numpy.typing import NDArray

from compiler.importing.formats.model_file import ModelFile
from compiler.importing.formats.onnx_model import OnnxModel
from compiler.importing.spec import ModelError, first_line
from compiler.quantizing.accuracy import Accuracy, FloatModel, Layer, measure
from compiler.quantizing.activations import multiplied_weights, quantize_values
from compiler.quantizing.preparation import prepared
from compiler.quantizing.samples import Samples
from compiler.quantizing.weights import quantize_weights
from compiler.verifying.inputs import input_sets
from core.job import Quantize
from core.quantization import MAX_LAYERS, LayerAccuracy, OutputAccuracy, Quantization

Array = NDArray[Any]
# The most samples for the ranges of values, and the most for measuring the accuracy.
MAX_SAMPLES, MAX_COMPARED = 256, 4
# The least signal-to-noise ratio of a layer by itself, and of an output, in decibels.
MIN_LAYER_DB: Mapping[Quantize, float] = {Quantize.INT8: 25.0, Quantize.INT4: 12.0}
MIN_OUTPUT_DB: Mapping[Quantize, float] = {Quantize.INT8: 20.0, Quantize.INT4: 10.0}
# Each round keeps more layers in floats.
MAX_ROUNDS = 6
# The fraction of layers that a round keeps if an output loses too much, but no layer does by itself.
KEPT_SHARE = 0.25
CALIBRATION = "the calibration data"


def quantize(
    model: ModelFile, kind: Quantize, data: IO[bytes] | None, *, narrow: bool = False
) -> tuple[onnx.ModelProto, Quantization]:
    """Return a model's quantized form, and its accuracy on the samples of the .npz file `data`.

    Without samples, the accuracy is measured on random inputs, and INT8 quantizes only weights. With
    `narrow`, weights have 7 bits if their layers don't lose too much accuracy: processors without VNNI
    multiply values by these faster. Raises ModelError.
    """
    if not isinstance(model, OnnxModel):
        raise ModelError(
            "the service quantizes only ONNX models: export the model to ONNX, or upload a quantized one"
        )
    file = model.file
    if file.computed_in == "quantized":
        raise ModelError("the model is quantized already: tune it without quantizing")
    if file.cache is not None:
        raise ModelError(
            "the service doesn't quantize decoders that keep their cache: export the decoder with weights "
            "of 4 or 8 bits (MatMulNBits)"
        )
    samples = None if data is None else Samples.read(data, file, CALIBRATION).first(MAX_SAMPLES)
    compared = [*islice(input_sets(file) if samples is None else samples, MAX_COMPARED)]
    floats = FloatModel(_attempt(prepared, file))
    weights_only = samples is None or kind is Quantize.INT4
    # The weights of 7 bits, by the names of the nodes that multiply by them.
    narrowed = multiplied_weights(floats.proto) if narrow and not weights_only else {}

    def make(kept: Collection[str]) -> onnx.ModelProto:
        if samples is None or weights_only:
            return quantize_weights(floats.proto, 8 if kind is Quantize.INT8 else 4, kept)
        return quantize_values(floats.proto, samples, kept, {*narrowed.values()})

    kept: set[str] = set() if weights_only else floats.unbounded(compared)
    rounds = MAX_ROUNDS + bool(narrowed)
    for number in range(rounds):
        quantized = _attempt(make, kept)
        accuracy = measure(floats, quantized, compared)
        if not any(layer.is_quantized for layer in accuracy.layers):
            raise ModelError(_why_nothing(kind, weights_only, bool(number)))
        lossy = _lossy_layers(floats, kind, accuracy, kept)
        more = lossy or _worst_layers(kind, accuracy, kept)
        if not more:
            break
        # 8 bits may suffice for the weights of these layers, or for all if only an output loses too much.
        wide = {narrowed[node] for node in lossy & narrowed.keys()} if lossy else {*narrowed.values()}
        if number == 0 and wide:
            narrowed = {node: weight for node, weight in narrowed.items() if weight not in wide}
        elif number < rounds - 1:
            kept |= more
    report = _report(floats, kind, weights_only, samples, len(compared), accuracy, kept)
    computed = {layer.node.name for layer in accuracy.layers if layer.is_quantized}
    return quantized, replace(report, narrow=len(computed & narrowed.keys() - kept))


def _attempt(make: Callable[[Any], onnx.ModelProto], given: object) -> onnx.ModelProto:
    """Run ONNX Runtime's tools, and return their model. Convert their exceptions to ModelError."""
    try:
        return make(given)
    except (ModelError, MemoryError):
        raise
    except Exception as error:
        raise ModelError(
            f"ONNX Runtime can't quantize the model ({first_line(error)}): tune it without quantizing"
        ) from error


def _why_nothing(kind: Quantize, weights_only: bool, had_some: bool) -> str:
    if had_some:
        return f"each layer of the model loses too much accuracy in {kind}: tune it without quantizing"
    if weights_only:
        advice = "give calibration data" if kind is Quantize.INT8 else "tune it without quantizing"
        return f"the model has no matrix product with constant weights to quantize: {advice}"
    return "the model has no layer that ONNX Runtime quantizes: tune it without quantizing"


def _own_db(accuracy: Accuracy) -> dict[int, float]:
    """Return the ratios of the quantized layers that have an error, by index."""
    own = {place: accuracy.own[place].db for place in range(len(accuracy.layers))}
    return {place: db for place, db in own.items() if db is not None and accuracy.layers[place].is_quantized}


def _lossy_layers(floats: FloatModel, kind: Quantize, accuracy: Accuracy, kept: Collection[str]) -> set[str]:
    """Return the names of more nodes to keep in floats, because a layer loses too much by itself."""
    found: set[str] = set()
    for place, db in _own_db(accuracy).items():
        if db < MIN_LAYER_DB[kind]:
            layer = accuracy.layers[place]
            more = {*layer.nodes} - {*kept}
            # A layer that is already kept loses accuracy because it reads values that other nodes have
            # quantized.
            found |= more or (_neighbours(floats, layer) - {*kept})
    return found


def _worst_layers(kind: Quantize, accuracy: Accuracy, kept: Collection[str]) -> set[str]:
    """Return the names of more nodes to keep in floats, because an output loses too much."""
    outputs = [power.db for power in accuracy.outputs.values()]
    if all(db is None or db >= MIN_OUTPUT_DB[kind] for db in outputs):
        return set()
    worst = _own_db(accuracy)
    left = [place for place in worst if not {*accuracy.layers[place].nodes} <= {*kept}]
    left.sort(key=lambda place: worst[place])
    chosen = left[: max(1, round(KEPT_SHARE * len(left)))]
    return {name for place in chosen for name in accuracy.layers[place].nodes}


def _neighbours(floats: FloatModel, layer: Layer) -> set[str]:
    """Return the names of the nodes that compute or read the inputs of a layer."""
    read = {name for own in layer.nodes for name in floats.nodes[own].input if name}
    return {node.name for node in floats.nodes.values() if read.intersection([*node.input, *node.output])}


def _report(
    floats: FloatModel,
    kind: Quantize,
    weights_only: bool,
    samples: Samples | None,
    compared: int,
    accuracy: Accuracy,
    kept: Collection[str],
) -> Quantization:
    layers = [
        LayerAccuracy(
            layer.node.name,
            layer.node.op_type,
            bool({*layer.nodes} & {*kept}),
            accuracy.own[place].db,
            accuracy.total[place].db,
        )
        for place, layer in enumerate(accuracy.layers)
    ]
    return Quantization(
        quantize=kind,
        weights_only=weights_only,
        samples=0 if samples is None else samples.count,
        compared=compared,
        kept=sum(layer.kept for layer in layers),
        outputs=tuple(OutputAccuracy(name, accuracy.outputs[name].db) for name in floats.outputs),
        layers=tuple(_shown(layers)),
    )


def _shown(layers: Sequence[LayerAccuracy]) -> Iterable[LayerAccuracy]:
    """Return the MAX_LAYERS layers that lose most, in the order of the model."""

    def loss(place: int) -> float:
        db = layers[place].own_db
        return float("inf") if db is None else db

    chosen = sorted(sorted(range(len(layers)), key=loss)[:MAX_LAYERS])
    return (layers[place] for place in chosen)
