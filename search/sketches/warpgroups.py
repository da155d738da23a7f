"""Matrix products of warpgroups: 128 threads multiply 64 rows at a time, by `wgmma` of compute capability
9.0. Devices of other capabilities don't have the instruction, newer ones included.
"""

from __future__ import annotations

from core.device import WARPGROUPS_ON, Device
from search.dag import Dag, Node, extent_of
from search.sketches.tensor_core import MatrixProduct, axes_of, match_product

# The threads of a warpgroup, the rows of its tile, and the reduction of one instruction.
GROUP_THREADS, GROUP_ROWS, STEP = 128, 64, 16
# Tiles in shared memory consist of columns of this many elements, 16 bytes.
UNIT = 8
OPERANDS = ("float16", "bfloat16")
# Smaller parts would mostly be padding.
MIN_EXTENTS = {"i": 64, "j": 64, "k": 64}
# With fewer results on each multiprocessor, smaller tiles use more of them.
MIN_RESULTS = GROUP_ROWS * 64


def match_warpgroups(dag: Dag, node: Node, device: Device) -> MatrixProduct | None:
    """Return the node as a matrix product; None if warpgroups can't compute it, or if it is too small."""
    if device.gpu is None or device.gpu.capability != WARPGROUPS_ON:
        return None
    found = match_product(dag, node, device.gpu)
    if found is None or found.operand not in OPERANDS or found.sums != "float32":
        return None
    extents = {part: extent_of(node, axes_of(found.parts, part)) for part in "sijk"}
    too_small = any(extents[part] < least for part, least in MIN_EXTENTS.items())
    results = extents["s"] * extents["i"] * extents["j"]
    return None if too_small or results < MIN_RESULTS * device.cores else found
