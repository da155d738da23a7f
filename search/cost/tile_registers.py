"""The cycles of the innermost code of a tiled node, from its registers and instructions.

One step of the innermost reduction level takes, in cycles (factors in search.cost.cost_parameters),
    max(A / issue, L / loads, I / dispatch, A * latency / min(A * n, issue * latency))
        + spills + 2 A / issue / K + loop / U
with
    A  accumulators: the innermost spatial factors, the vectorized one counted in instructions
    L  loads: vectors, or scalars of an operand that is the same for all lanes. Inlined values count as the
       loads that take as long, transposed operands as gathers. Operands that stay in registers, and those
       that neighbouring tiles of an unrolled body share, are loaded once
    I  instructions: accumulators, loads, and a loop's own. They count only where they don't read memory
    n  the tiles in flight at once: as many as the reorder window has room for, but each waits for its own
       sums of the previous iteration of the outer reduction level. Sums in memory wait longer
    K  steps until the accumulators are stored
    U  steps that are unrolled
    spills: the cost of accumulators beyond the registers
A vector of columns that is widened takes as long as half of a multiply-add. A step of a block of packed
weights has the dot products of the whole block, and those that add up its rows.
A step of AMX's tiles takes as long as its loads or its instructions, and a share of the sums' loads and
stores, which stay in tiles along the reduction.
x86's pmaddubsw and pmaddwd multiply in one instruction, and another adds the products to the sums. So a sum
waits for an addition only, but the products take a register, and so do pmaddubsw's ones. LLVM doesn't load a
row's vectors again to save registers.
A block of halves (search.sketches.half_products) is converted and added to sums of float32. Where these lack
registers, they are loaded and stored for every block.
The node takes as many steps as it has iterations, minus those that add known zeros (search.cost.sparsity).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from core.profile import AMX_VECTOR_BYTES
from search.cost.border_tiles import border_share, padding_of
from search.cost.cost_parameters import CostParameters
from search.cost.sparsity import remaining_share
from search.cost.tile_traffic import copied_at
from search.dag import BufferAccess, Dag, Term
from search.programs.code_size import GATHER_INSTRUCTIONS, unrolled_steps
from search.programs.compute_location import is_inline_value
from search.programs.nest import (
    Floats,
    Nest,
    elements_of,
    region,
    touched_elements,
    vector_instructions,
)
from search.programs.program import Population
from search.sketches.block_products import BlockProduct
from search.sketches.factors import Ints
from search.sketches.half_products import (
    BLOCK_TERMS,
    LONG_PRODUCTS,
    adds_in_blocks,
    multiplies_halves,
)
from search.sketches.intrinsics import Intrinsic, intrinsic_extents, intrinsic_of
from search.sketches.predicates import is_permutation, is_strided
from search.sketches.tile_products import SUMS, TILE_ROWS, TileProduct

# Structures with at least this many levels, such as SSRSRS, have two reduction levels with a spatial one
# between.
MERGING_DEPTH = 6
# A step's instructions that count iterations, move pointers and prefetch.
LOOP_INSTRUCTIONS = 5
# Instructions in the schedulers of a core, waiting for operands: 97 on Skylake, 64 and a queue on Zen 4.
SCHEDULER = 96
# A load of a vector that was just stored, on Zen 4 and similar cores.
FORWARD_CYCLES = 7
# The latency of an addition of integers.
ADD_CYCLES = 1.0
# The instructions after each block of halves: two that convert a vector of them, and two that add it to sums,
# which take two registers. The sums are loaded and stored in pairs.
CONVERTED, RELOADED, SUM_REGISTERS = 4, 2, 2
# A vector of columns that is widened, in multiply-adds: one instruction, where these have two.
WIDENED = 0.5


def register_terms(population: Population, nest: Nest, parameters: CostParameters) -> dict[str, Floats]:
    """Return the quantities of one step of the innermost reduction level, and the node's `cycles`."""
    body = _Body.of(population, nest, parameters)
    factors, issue = parameters.factors, body.issue
    loads, is_stored = _loads_of_all(population, nest, body, parameters)
    # The next step on sums in memory waits until they are stored.
    latency = body.latency + FORWARD_CYCLES * is_stored / body.steps
    chains = body.accumulators * _overlapping(body, factors.window)
    chained = body.accumulators * latency / np.minimum(chains, issue * latency)
    arithmetic = body.accumulators * body.products + body.converted
    instructions = arithmetic + loads + LOOP_INSTRUCTIONS / body.unrolled
    step = np.maximum.reduce(
        [arithmetic / issue, loads / parameters.loads, chained, instructions / parameters.dispatch]
    )
    missing = body.accumulators + body.operands - body.registers
    spills = body.spill_cycles * body.accumulators * np.clip(missing / factors.spill_all, 0.0, 1.0)
    # Accumulators are loaded and stored once for every run through the reduction.
    step = step + spills + 2 * body.accumulators / issue / body.kept + factors.loop_cycles / body.unrolled
    # A partial tile takes as long as a full one.
    steps = nest.inside[0].prod(axis=0, dtype=np.float64) / body.tile.prod(axis=0, dtype=np.float64)
    steps = steps / body.depth * remaining_share(nest, body.unrolled)
    product = intrinsic_of(nest.stage)
    if isinstance(product, TileProduct):
        # Sums are in tiles, so no vector registers are missing.
        spills = np.zeros_like(spills)
        products = body.tile.prod(axis=0, dtype=np.float64) / (product.tall * product.lanes)
        # The sums of one product stay in tiles while the loops go along the reduction.
        kept = np.where(products == 1, body.chain, 1)
        step = products * _product_cycles(product, kept, parameters)
    cycles = steps * step
    if isinstance(product, Intrinsic) and parameters.folds_loads:
        cycles = cycles + _hoisted_cycles(population, nest, body)
    return {
        "vector_width": body.width.astype(np.float64),
        "vector_waste": body.instructions * body.lanes / body.width,
        "accumulators": body.accumulators,
        "loads_per_fma": loads / body.accumulators,
        "spills": spills,
        "inner_reduction": body.kept,
        "cycles": cycles,
    }


def _hoisted_cycles(population: Population, nest: Nest, body: _Body) -> Floats:
    """Return [programs]: the cycles of storing the rows of x86's dot products that LLVM broadcasts ahead of a
    loop.

    If the loop around an unrolled body moves only the columns, the body reads the same rows in each of its
    iterations. LLVM loads and broadcasts them once before that loop. Where these vectors exceed the
    registers, it stores them on the stack, one per cycle.
    """
    dag, tile = population.sketch.dag, body.tile.prod(axis=0)
    loops, programs = nest.by_loop(), np.arange(len(population))
    elements = loops.inside.prod(axis=1)
    at = np.argmax(elements <= unrolled_steps(population, nest) * tile * body.depth, axis=0)
    iterations = elements[0] / elements[at, programs]
    free = body.registers - body.accumulators - body.operands
    cycles = np.zeros(len(population))
    for read in nest.node.reads:
        if nest.node.vector_axis in read.axes:
            continue
        shape = dag.buffer[read.buffer].shape
        vectors = elements_of(region(read, loops.inside, shape))[at, programs] / body.depth
        visits = loops.visits(read)[at, programs]
        cycles = cycles + np.where((visits < iterations) & (vectors > free), vectors * visits, 0.0)
    return cycles


def _product_cycles(product: TileProduct, kept: Floats, parameters: CostParameters) -> Floats:
    """Return the cycles of a step of AMX: its instructions, or the loads of their operands if these take
    longer, and its share of the loads and stores of the sums, which stay in tiles for `kept` steps. Every row
    of a tile is loaded or stored by itself.
    """
    tiles = len(product.row_tiles) * len(product.lane_tiles)
    one = AMX_VECTOR_BYTES * TILE_ROWS * SUMS / parameters.device.vector_bytes
    multiplied = tiles * one / parameters.issue_of(product.rate)
    loaded = product.tall + len(product.lane_tiles) * product.each / product.column_depth
    sums = product.tall * len(product.lane_tiles)
    return max(multiplied, loaded / parameters.loads) + (sums / parameters.loads + sums) / kept


@dataclass(frozen=True)
class _Body:
    """The innermost code of a tiled node.

    `tile` is [axes, programs], the other arrays [programs]. A row of `width` elements takes `instructions` of
    at most `lanes` lanes. A step needs the registers of its `operands` and `accumulators`. Where a row's
    vectors lack registers, the next row `reloads` them. `steps` follow one another on the same accumulators,
    `unrolled` of them without a loop. Then follow the steps of the other tiles `between` the reduction
    levels, and all of them `outer` times. After `kept` steps, the accumulators are stored; sums that `stay`
    in registers are stored after the last one. `is_flat` says that the loops around the innermost reduction
    are unrolled, too. An intrinsic does `depth` steps at once. A core issues `issue` multiply-adds of vectors
    per cycle. A load has at most `loaded` lanes. Each step has `products` multiply-adds for each accumulator,
    and takes as long as `converted` more. These are its share of the instructions after a block of halves, or
    columns that are widened. With packed weights, they are the rows of a block, which are added up for the
    zero points. Sums and operands share the `registers`. A step waits `latency` cycles for the previous one
    on the same sum, and takes `spill_cycles` more if this sum is in memory.
    """

    tile: Ints
    width: Ints
    lanes: int
    loaded: int
    instructions: Floats
    accumulators: Floats
    operands: Floats
    reloads: NDArray[np.bool_]
    steps: Floats
    between: Ints
    outer: Ints
    stay: NDArray[np.bool_]
    kept: Floats
    unrolled: Ints
    is_flat: NDArray[np.bool_]
    depth: int
    issue: float
    products: int
    converted: Floats
    registers: Floats
    latency: float
    spill_cycles: float

    @property
    def chain(self) -> Floats:
        """[programs]: how many steps in a row use the same accumulators."""
        return self.steps * np.where(self.between == 1, self.outer, 1)

    @classmethod
    def of(cls, population: Population, nest: Nest, parameters: CostParameters) -> _Body:
        written = population.sketch.dag.buffer[nest.node.write.buffer]
        device, dtype = parameters.device, written.dtype
        lanes = loaded = device.lanes(written.item_bytes)
        is_half = multiplies_halves(population.sketch.dag, nest.node) and not nest.stage.intrinsic
        in_blocks = is_half and adds_in_blocks(device.features)
        if in_blocks:
            lanes = loaded = device.lanes(2)
            dtype = "float16"
        elif is_half and LONG_PRODUCTS in device.features:
            loaded = device.lanes(2)
        axis = nest.node.vector_axis
        unrolled = unrolled_steps(population, nest)
        tile = nest.tile
        width = tile[axis] if axis is not None else np.ones_like(tile[0])
        instructions = vector_instructions(width, lanes).astype(np.float64)
        rows = tile.prod(axis=0) / width
        accumulators = rows * instructions
        level = nest.depth - 2
        intrinsic = intrinsic_of(nest.stage)
        adds_apart = isinstance(intrinsic, Intrinsic) and intrinsic.adds_apart
        taken = np.zeros_like(instructions)
        if isinstance(intrinsic, Intrinsic) and adds_apart:
            # The ones, and products beside a row that the next vector needs.
            taken = intrinsic.narrow + (instructions > 1).astype(np.float64)
        registers = parameters.registers - taken
        depth = intrinsic.instruction_depth if intrinsic else 1
        steps = nest.trips(level) / depth
        between, outer = _loops_between(nest)
        # Without loops between the reduction levels the accumulators stay in registers for both.
        is_flat = unrolled >= nest.trips(level) * between
        stay = (between == 1) | (is_flat & (accumulators * between < parameters.registers))
        # LLVM computes row by row, so a row's vectors stay in registers for the next row.
        vectors = np.where(rows > 1, instructions, 1.0)
        reloads = (not adds_apart) & parameters.folds_loads & (accumulators + vectors + 1 > registers)
        operands = np.where(reloads, 1.0, vectors) + 1
        converted = np.zeros_like(accumulators)
        if in_blocks:
            needed = (1 + SUM_REGISTERS) * accumulators + operands
            each = CONVERTED + np.where(needed > registers, RELOADED, 0)
            converted = accumulators * each / _block_terms(nest.trips(level))
        products = 1
        if isinstance(intrinsic, BlockProduct):
            products = intrinsic.products
            converted = products * rows
        elif isinstance(intrinsic, Intrinsic) and intrinsic.is_widened:
            converted = WIDENED * instructions
        issue = parameters.issue_of(intrinsic.rate if intrinsic else dtype)
        spill_cycles = parameters.factors.spill_cycles
        if adds_apart:
            # A step on a sum in memory takes as long as one of float32.
            spill_cycles = max(spill_cycles + 1 / parameters.issue_of("float32") - 1 / issue, 0.0)
        return cls(
            tile=tile,
            width=width,
            lanes=lanes,
            loaded=loaded,
            instructions=instructions,
            accumulators=accumulators,
            operands=operands,
            reloads=reloads,
            steps=steps,
            between=between,
            outer=outer,
            stay=stay,
            kept=steps * np.where(stay, outer, 1),
            unrolled=np.minimum(unrolled, nest.trips(level)),
            is_flat=is_flat,
            depth=depth,
            issue=issue,
            products=products,
            converted=converted,
            registers=registers,
            latency=ADD_CYCLES if adds_apart else parameters.latency_cycles,
            spill_cycles=spill_cycles,
        )


def _block_terms(steps: Ints) -> Ints:
    """Return [programs]: the products of a block, the largest divisor of the steps that is allowed."""
    sizes = np.arange(1, BLOCK_TERMS + 1)[:, None]
    return np.asarray(np.where(steps % sizes == 0, sizes, 1).max(axis=0))


def _loops_between(nest: Nest) -> tuple[Ints, Ints]:
    """Return the iterations of the loops between the reduction levels, and of the outer reduction level."""
    if nest.depth < MERGING_DEPTH:
        ones = np.ones_like(nest.tile[0])
        return ones, ones
    return nest.trips(nest.depth - 3), nest.trips(nest.depth - 4)


def _overlapping(body: _Body, window: float) -> Floats:
    """Return [programs]: the tiles whose sums are in flight at once.

    Tiles between the reduction levels overlap if the reorder buffer has room for their instructions, and the
    schedulers for the multiply-adds that wait for their sums. Each waits for its own sums of the previous
    iteration of the outer reduction level.
    """
    waiting = body.steps * body.accumulators
    instructions = waiting + body.steps * body.instructions
    tiles = np.minimum(window / instructions, SCHEDULER / waiting)
    return np.asarray(
        np.clip(tiles, 1.0, body.between) * np.maximum(tiles / (body.between * body.outer), 1.0)
    )


@dataclass(frozen=True)
class _Operand:
    """An operand of a step, each [programs].

    `sharing` steps share a load of its `vectors`, which stay in `held` registers of an unrolled body. They
    are `distant` if these steps are in other tiles than the next ones.
    """

    vectors: Floats
    sharing: Floats
    held: Floats
    distant: NDArray[np.bool_]

    @classmethod
    def of(cls, nest: Nest, body: _Body, read: BufferAccess, vectors: Floats, dag: Dag) -> _Operand:
        repeats = _repeats(nest, read)
        # A short reduction is unrolled: its operands stay in registers while the loop around it goes on.
        kept = vectors * body.chain <= body.registers - body.accumulators - 1
        in_loop = np.where(kept, repeats, 1.0)
        one = body.instructions if nest.node.vector_axis in read.axes else np.ones_like(vectors)
        if nest.depth < MERGING_DEPTH or not all(index.affine for index in read.indices):
            return cls(vectors, in_loop, one, np.zeros_like(body.is_flat))
        around = nest.depth - 3
        inside = nest.inside[[around, nest.depth - 1]]
        touched, alone = touched_elements(read, inside, dag.buffer[read.buffer].shape)
        shared = np.maximum(body.between * nest.trips(around + 1) * alone / touched, repeats)
        distant = shared > repeats
        held = np.where(distant, vectors * touched / alone, vectors * body.steps)
        return cls(
            vectors=vectors,
            sharing=np.where(body.is_flat, shared, in_loop),
            held=np.where(body.is_flat & (shared > 1), held, one),
            distant=distant,
        )


def _loads_of_all(
    population: Population, nest: Nest, body: _Body, parameters: CostParameters
) -> tuple[Floats, NDArray[np.bool_]]:
    """Return [programs]: the load instructions of one step, and whether the next step on the same sums loads
    them from memory."""
    dag = population.sketch.dag
    operands = [
        _Operand.of(nest, body, read, _vectors_of(population, nest, body, read, parameters), dag)
        for read in nest.node.reads
    ]
    missing, is_spilled = _missing(operands, body)
    loads = np.zeros(len(population))
    for read, operand, reloaded in zip(nest.node.reads, operands, missing, strict=True):
        slots = np.ones_like(loads)
        if read.buffer in dag.producer:
            rows = body.accumulators / body.instructions
            sums = rows * np.where(body.is_flat, nest.trips(nest.depth - 3), 1) * body.unrolled
            share = border_share(dag, nest, read, body.is_flat, sums)
            conditions = _conditions(nest, body, read) * share
            gathers = _loads_of_gather(nest, body, read, operand.vectors)
            slots = _slots_of_load(population, read.buffer, conditions, gathers, parameters)
            if _is_padded_along_vectors(dag, nest, read):
                # Lanes at a border are loaded one by one.
                lanes = GATHER_INSTRUCTIONS * np.minimum(body.width, body.loaded)
                slots = slots * np.where(is_inline_value(population, read.buffer), 1 + share * lanes, 1.0)
        loads = loads + operand.vectors * (slots / operand.sharing + reloaded)
    is_stored = ~body.stay & (body.outer > 1)
    return loads, is_spilled | is_stored


def _missing(operands: Sequence[_Operand], body: _Body) -> tuple[Sequence[Floats], NDArray[np.bool_]]:
    """Return [programs]: for each operand, the fraction of the steps that load it again because an unrolled
    body lacks registers, and whether sums are in memory instead.

    LLVM gives up operands first that wait for distant tiles. In bodies of one step, an operand is used more
    often than a sum, so sums are in memory.
    """
    sums = body.accumulators * np.where(body.stay, body.between, 1)
    lacking = np.maximum(sums + sum(operand.held for operand in operands) - body.registers, 0.0)
    lacking = np.where(body.is_flat, lacking, 0.0)
    is_spilled = body.stay & (body.between > 1) & (body.steps == 1) & (lacking > 0)
    lacking = np.where(is_spilled, 0.0, lacking)
    missing = [np.zeros_like(lacking) for _ in operands]
    for is_distant in (True, False):
        for number, operand in enumerate(operands):
            takes = (operand.distant == is_distant) & (operand.sharing > 1)
            taken = np.where(takes, np.minimum(lacking, operand.held), 0.0)
            lacking = lacking - taken
            missing[number] = missing[number] + taken / operand.held
    return [
        np.minimum(part, 1 - 1 / operand.sharing) for part, operand in zip(missing, operands, strict=True)
    ], is_spilled


def _vectors_of(
    population: Population, nest: Nest, body: _Body, read: BufferAccess, parameters: CostParameters
) -> Floats:
    """Return [programs]: the load instructions of an operand in a step that shares none."""
    node, dag = nest.node, population.sketch.dag
    # Intrinsics read only vectors, because their operands are copied into the right order.
    is_intrinsic = bool(nest.stage.intrinsic)
    vectors = _loads_of(read, body.tile, node.vector_axis, body.loaded, is_arranged=is_intrinsic)
    copied = copied_at(population, nest, read)
    if copied is not None and is_permutation(dag, node, read):
        arranged = copied <= nest.depth
        in_order = _loads_of(read, body.tile, node.vector_axis, body.loaded, is_arranged=True)
        vectors = np.where(arranged, in_order, vectors)
    if node.vector_axis in read.axes:
        vectors = np.where(body.reloads, np.maximum(vectors, body.accumulators), vectors)
    vectors = vectors / _joined(population, nest, body, read, parameters)
    return np.asarray(vectors * _steps_of_block(dag, nest, read))


def _steps_of_block(dag: Dag, nest: Nest, read: BufferAccess) -> int:
    """Return the vectors of an operand that a product of a block reads for each vector of sums; 1 for other
    nodes."""
    if not isinstance(intrinsic_of(nest.stage), BlockProduct):
        return 1
    step, half, *_ = extents = intrinsic_extents(dag, nest.stage)
    return math.prod(extents[axis] for axis in (step, half) if axis in read.axes)


def _joined(
    population: Population, nest: Nest, body: _Body, read: BufferAccess, parameters: CostParameters
) -> Ints:
    """Return [programs]: the scalars that one load reads for as many steps (compiler.codegen.lane_loads)."""
    node = nest.node
    rows = body.tile.prod(axis=0) // body.width
    ones = np.ones_like(rows)
    if parameters.folds_loads or not node.reduction or node.vector_axis in read.axes:
        return ones
    innermost = node.reduction[-1]
    if Term(innermost, 1) not in read.indices[-1].terms:
        return ones
    lanes = parameters.device.lanes(population.sketch.dag.buffer[read.buffer].item_bytes) // body.depth
    steps = nest.extents[nest.depth - 2, innermost] // body.depth
    fits = body.accumulators + body.instructions + rows <= body.registers
    is_loop = body.unrolled < steps  # a loop that is unrolled has no lanes to load
    is_inline = is_inline_value(population, read.buffer)
    return np.where(fits & is_loop & ~is_inline & (steps % lanes == 0), lanes, ones)


def _conditions(nest: Nest, body: _Body, read: BufferAccess) -> Floats:
    """Return [programs]: how often a condition on the row (such as padding) is evaluated for each load.

    It is 1 if a step reads several rows. The condition of a single row is hoisted out of the innermost
    reduction loops that it doesn't depend on.
    """
    outer = sorted({axis for index in read.indices[:-1] for axis in index.axes})
    along = [axis for axis in nest.node.reduction if axis not in outer]
    is_one = body.tile[outer].prod(axis=0) == 1
    return np.where(is_one, 1.0 / nest.extents[nest.depth - 2, along].prod(axis=0), 1.0)


def _is_padded_along_vectors(dag: Dag, nest: Nest, read: BufferAccess) -> bool:
    """Return whether an operand is padded in the dimension along which vectors are loaded."""
    padding = padding_of(dag, dag.producer[read.buffer])
    return padding is not None and any(
        any(around) and nest.node.vector_axis in index.axes
        for index, around in zip(read.indices, padding, strict=True)
    )


def _loads_of_gather(nest: Nest, body: _Body, read: BufferAccess, vectors: Floats) -> Floats:
    """Return [programs]: the loads that replace each of a step's `vectors` if its lanes must be gathered."""
    if nest.node.vector_axis not in read.axes:
        return np.ones_like(vectors)
    return np.maximum(GATHER_INSTRUCTIONS * body.tile[sorted(read.axes)].prod(axis=0) / vectors, 1.0)


def _slots_of_load(
    population: Population, buffer: str, conditions: Floats, gathers: Floats, parameters: CostParameters
) -> Floats:
    """Return [programs]: the loads that take as long as one load of a buffer; 1 unless its producer is
    inlined.

    `conditions` is how often the producer's condition is evaluated for each load, `gathers` the number of
    loads if the producer must gather its own operand.
    """
    sketch = population.sketch
    producer = sketch.dag.producer.get(buffer)
    if producer is None:
        return np.ones(len(population))
    branches = parameters.factors.inline_cycles * producer.has_branch * conditions
    issue = parameters.issue(sketch.dag.buffer[buffer])
    work = producer.flops + sketch.dag.widenings(producer)
    slots = (work / issue + branches) * parameters.loads
    one = np.ones_like(gathers)
    for read in producer.reads:
        loads = gathers if is_strided(read, producer.vector_axis) else one
        slots = slots + loads * _slots_of_load(population, read.buffer, conditions, one, parameters)
    return np.where(is_inline_value(population, buffer), slots, 1.0)


def _loads_of(
    read: BufferAccess, tile: Ints, axis: int | None, lanes: int, is_arranged: bool = False
) -> Floats:
    """Return the load instructions of one access per step: vectors, scalars for all lanes, or a gather."""
    used = read.axes
    rows = tile[[a for a in used if a != axis]].prod(axis=0, dtype=np.float64)
    if axis not in used or axis is None:
        return rows
    *outer, last = read.indices
    divisors = [term.divisor for index in read.indices for term in index.terms if term.axis == axis]
    if min(divisors) > 1:
        # A group of lanes reads the same value; a vector that spans several groups is gathered.
        groups = -(-np.minimum(tile[axis], lanes) // min(divisors))
        return rows * np.where(groups == 1, 1.0, GATHER_INSTRUCTIONS * tile[axis])
    contiguous = Term(axis, 1) in last.terms and not any(axis in index.axes for index in outer)
    in_vectors = contiguous or is_arranged
    return rows * (vector_instructions(tile[axis], lanes) if in_vectors else GATHER_INSTRUCTIONS * tile[axis])


def _repeats(nest: Nest, read: BufferAccess) -> Ints:
    """Return [programs]: the iterations of the loop right outside the innermost reduction if all of them read
    the same elements, else 1."""
    order = np.arange(1, len(nest.node.axes) + 1)[:, None]
    last = np.argmax(np.where(nest.extents[-3] > 1, order, 0), axis=0)
    moves = np.array([axis in read.axes for axis in range(len(nest.node.axes))])[last]
    return np.where(moves, 1, nest.extents[-3][last, np.arange(len(last))])
