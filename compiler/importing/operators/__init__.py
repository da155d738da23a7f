"""Converters of operators that TVM doesn't import or imports wrongly, by domain and name."""

from __future__ import annotations

from collections.abc import Mapping

from compiler.importing.onnx_graph import Converter
from compiler.importing.operators import (
    attention,
    control,
    detection,
    elementwise,
    floats,
    fused,
    halves,
    movement,
    normalization,
    quantized,
    recurrent,
    reductions,
    resampling,
    signals,
    windows,
)

_CONVERTERS: Mapping[tuple[str, str], Converter] = {
    **attention.CONVERTERS,
    **control.CONVERTERS,
    **detection.CONVERTERS,
    **elementwise.CONVERTERS,
    **floats.CONVERTERS,
    **fused.CONVERTERS,
    **movement.CONVERTERS,
    **normalization.CONVERTERS,
    **quantized.CONVERTERS,
    **recurrent.CONVERTERS,
    **reductions.CONVERTERS,
    **resampling.CONVERTERS,
    **signals.CONVERTERS,
    **windows.CONVERTERS,
}
CONVERTERS: Mapping[tuple[str, str], Converter] = {
    **_CONVERTERS,
    **{("", kind): halves.in_float32(_CONVERTERS.get(("", kind))) for kind in halves.KINDS},
}
