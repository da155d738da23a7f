"""Make one subgraph of an attention, so that its scores never reach main memory."""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.ir import Call, GenericConst
from tvm.relax.dpl import DFPattern, is_op, wildcard
from tvm.relax.transform import PatternCheckContext

from compiler.constants.fold import static_shape
from core.profile import FLOAT32
from search.sketches.tensor_core import SIDE, TENSOR_SINCE
from search.sketches.variables import MAX_INNERMOST

# The lengths of the partial results of a softmax's sums, which must divide the keys.
LANES = range(8, MAX_INNERMOST + 1)
# With fewer keys, the scores of all queries stay in the caches, and the three subgraphs are as fast.
MIN_KEYS = 512
# A block of a GPU's kernel without an online softmax keeps the scores of its queries in shared memory.
MAX_KEYS_ON_GPU = 1024
# A step of a decoder has a query for each head. Its products read each key once.
MIN_QUERIES = 16


def fuse_attention(module: tvm.IRModule, capability: int) -> tvm.IRModule:
    """Group scores, softmax, weighted values and the permutation of heads in functions of their own.
    `capability` is ten times a GPU's compute capability, 0 for CPUs.

        lv = matmul(query, key)
        lv1 = multiply(lv, scale)
        lv2 = softmax(lv1)
        lv3 = matmul(lv2, value)
        gv = permute_dims(lv3, axes=[0, 2, 1, 3])
    ->
        gv = attention(query, key, value)

    Sketches compute it a block of queries at a time (search.sketches.attention_blocks), on a GPU also in one
    kernel (search.rules.gpu). Few keys gain only on GPUs, which save kernels. An online softmax reads any
    number of keys in blocks; its products of float16 and bfloat16 need tensor cores.
    """
    result, named = _pattern(of_halves=bool(capability))

    def is_possible(keys: int, query: relax.Expr) -> bool:
        if not capability:
            return keys >= MIN_KEYS and any(keys % lanes == 0 for lanes in LANES)
        dtype = str(query.ty.dtype)
        since = 0 if dtype == FLOAT32 else TENSOR_SINCE.get((dtype, FLOAT32), capability + 1)
        return keys <= MAX_KEYS_ON_GPU or (capability >= since and int(query.ty.shape[-1]) >= SIDE)

    def is_wanted(context: PatternCheckContext) -> bool:
        scores = static_shape(context.annotated_expr["scores"])
        softmax = context.annotated_expr["softmax"]
        return (
            scores is not None
            and is_possible(scores[-1], context.annotated_expr["scores"].args[0])
            and scores[-2] >= MIN_QUERIES
            and int(softmax.attrs.axis) in (-1, len(scores) - 1)
            and str(softmax.ty.dtype) == "float32"
        )

    def fuse(bind_constants: bool) -> tvm.ir.transform.Pass:
        def is_fused(context: PatternCheckContext) -> bool:
            return is_wanted(context) and bind_constants != _has_constant_arrays(context)

        patterns = [("attention", result, named, is_fused)]
        return relax.transform.FuseOpsByPattern(patterns, bind_constants, annotate_codegen=False)

    # Scales are part of a function. FuseTIR needs constant arrays, such as masks, as its arguments.
    return tvm.transform.Sequential([fuse(bind_constants=True), fuse(bind_constants=False)])(module)


def _has_constant_arrays(context: PatternCheckContext) -> bool:
    calls = [call for call in context.matched_bindings.values() if isinstance(call, Call)]
    constants = [one for call in calls for one in call.args if isinstance(one, GenericConst)]
    return any(constant.value.shape for constant in constants)


def _pattern(of_halves: bool) -> tuple[DFPattern, dict[str, DFPattern]]:
    """Return the pattern, and its scores and softmax by these names. With `of_halves`, results may be
    converted: products of halves are summed in float32, and softmaxes of halves are computed in float32.
    """

    def converted(value: DFPattern) -> DFPattern:
        return value | is_op("relax.astype")(value) if of_halves else value

    # Heads that share keys have an axis of their own (compiler.importing.grouped_attention).
    shared = is_op("relax.expand_dims")(wildcard()) | wildcard() if of_halves else wildcard()
    scores = is_op("relax.matmul")(wildcard(), shared)
    rounded = converted(scores)
    scaled = rounded
    for operator in ("relax.multiply", "relax.divide"):
        scaled = scaled | is_op(operator)(rounded, wildcard())
    masked = scaled | is_op("relax.add")(scaled, wildcard()) | is_op("relax.add")(wildcard(), scaled)
    softmax = is_op("relax.nn.softmax")(converted(masked))
    shared_values = is_op("relax.expand_dims")(wildcard()) | wildcard() if of_halves else wildcard()
    values = is_op("relax.matmul")(converted(softmax), shared_values)
    return is_op("relax.permute_dims")(converted(values)), {"scores": scores, "softmax": softmax}
