"""Fetch whole tiles by the tensor memory accelerator of compute capability 9.0 (tensor_maps.cuh).

A schedule marks the block that copies a tile to shared memory with the shape of the tile's matrix.
`fetch_by_maps` makes the copy a call. TVM then lowers the function and splits off the host code. `pass_maps`
makes the host code encode the tensor maps and pass them to the kernel.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import Call, PointerType, TensorLoad, Var
from tvm.s_tir import MatchBufferRegion, SBlock
from tvm.sym import Analyzer
from tvm.tirx import Bind, Buffer, BufferStore, DeclBuffer, Evaluate, IntImm, PrimFunc, SeqStmt, TensorMapType

from compiler.codegen.rewrite import rewrite_prim_funcs, with_body
from compiler.tir_nodes import find_all, op_name
from core.trace import TENSOR_MAP
from search.sketches.warpgroups import MAP_BYTES

_FUNCTIONS = Path(__file__).with_name("tensor_maps.cuh").read_text()
_START = "tile_fetches.start"
# The most groups of fetches that are in flight at a time.
_BARRIERS = 4
# Constants of CUDA's driver: tiles swizzled by 128 bytes, and whole lines of them fetched to the L2 cache.
_SWIZZLED, _BY_LINES = 3, 2
# How TVM calls functions of this convention: it launches them.
_KERNEL_CONVENTION = 2

_KERNEL = re.compile(r'extern "C" __global__ [^;{]*\{')
_SHARED = re.compile(r"extern __shared__ __align__\(\d+\) (uchar \w+\[\];)")
_COMMITS = re.compile(r"tvm_builtin_ptx_cp_async_commit_group\w*\(\);")
_WAITS = re.compile(r"tvm_builtin_ptx_cp_async_wait_group\w*_(\d+)\(\);")


class NoTile(ValueError):
    """A marked block doesn't copy a tile of such a matrix. The message says what is different."""


def fetch_by_maps(module: tvm.IRModule) -> tvm.IRModule:
    """Replace the body of each marked block by a call that fetches its tile. Raises NoTile.

        for column, row, element: A_shared[column, row, element] = A[i0 * 128 + row, k0 * 64 + element]
    ->
        tile_fetches.start(A_shared, A, 1, 2048, 512, 128, 1, 64, 0, i0 * 128, k0)
    """

    def start(block: SBlock) -> SBlock:
        return _Tile.of(block).fetched(block) if TENSOR_MAP in block.annotations else block

    def rewrite(function: PrimFunc) -> PrimFunc:
        marked = [block for block in find_all(function.body, SBlock) if TENSOR_MAP in block.annotations]
        for block in marked:
            _Tile.of(block)  # TVM would make another error of one that is raised below
        if not marked:
            return function
        return with_body(function, tvm_ffi.structural_map(function.body, (SBlock, start)))

    return rewrite_prim_funcs(module, rewrite)


@dataclass(frozen=True)
class _Tile:
    """A tile [columns, rows, unit] of a matrix [images, height, width], the shape `matrix`, in `source`.
    `at` is its place: the image, the first row, and the first column of `unit` elements.
    """

    matrix: tuple[int, int, int]
    source: Buffer
    rows: int
    columns: int
    unit: int
    at: tuple[Any, Any, Any]

    @classmethod
    def of(cls, block: SBlock) -> _Tile:
        inner = [one for one in find_all(block.body, SBlock) if isinstance(one.body, BufferStore)]
        if len(inner) != 1 or len(block.writes) != 1:
            raise NoTile(f"the block {block.name_hint} computes more than one value")
        images, height, width = (int(extent) for extent in block.annotations[TENSOR_MAP])
        region = block.writes[0].region
        image, column, row, element = (one.min for one in region)
        extents = [int(one.extent) for one in region]
        analyzer = Analyzer()
        for axis in (*block.iter_vars, *inner[0].iter_vars):
            analyzer.bind(axis.var, axis.dom)
        unit = MAP_BYTES // _item_bytes(block.writes[0].source)
        if (extents[0], extents[3]) != (1, unit) or not analyzer.can_prove_equal(element, 0):
            raise NoTile(f"the block {block.name_hint} doesn't copy whole columns of {unit} elements")
        source = _copied_matrix(inner[0], analyzer, (images, height, width), unit)
        return cls((images, height, width), source, extents[2], extents[1], unit, (image, row, column))

    def fetched(self, block: SBlock) -> SBlock:
        """Return the block with a call for its copy."""
        (write,) = block.writes
        tile = tirx.decl_buffer(
            (self.columns, self.rows, self.unit),
            write.source.ty.dtype,
            "tile",
            strides=[tirx.Var(name, "int32") for name in ("column", "row")] + [1],
            elem_offset=tirx.Var("offset", "int32"),
            scope=write.source.scope(),
            data_alignment=64,
            offset_factor=self.unit,
        )
        sizes = [IntImm("int32", size) for size in (*self.matrix, self.rows, self.columns, self.unit)]
        data = tirx.buffer_data(self.source)
        call = tirx.call_extern("void", _START, tile.access_ptr("w"), data, *sizes, *self.at)
        axes, name, matched = block.iter_vars, block.name_hint, [MatchBufferRegion(tile, write)]
        return SBlock(axes, block.reads, block.writes, name, Evaluate(call), match_buffers=matched)


def _copied_matrix(block: SBlock, analyzer: Analyzer, matrix: tuple[int, int, int], unit: int) -> Buffer:
    """Return the buffer from which a block copies elements of a matrix [images, rows, columns] to a tile, and
    zeros where the matrix ends. Raises NoTile if it does anything else.
    """
    images, height, width = matrix
    image, column, row, element = block.body.indices
    along = column * unit + element
    load = block.body.value
    is_inside = tirx.all(row < height, along < width)
    condition: Any = tirx.const(True, "bool")
    is_padded = True
    if isinstance(load, Call) and op_name(load) == "if_then_else":
        condition, load, other = load.args
        is_padded = analyzer.can_prove_equal(other, 0)
    with analyzer.constraint_scope(is_inside):
        is_padded = is_padded and analyzer.can_prove(condition)
    with analyzer.constraint_scope(condition):
        is_padded = is_padded and analyzer.can_prove(is_inside)
    if not is_padded or not isinstance(load, TensorLoad):
        raise NoTile(f"the block {block.name_hint} computes what it copies")
    buffer = load.source
    offset: Any = 0
    for index, extent in zip(load.indices, buffer.shape, strict=True):
        offset = offset * extent + index
    with analyzer.constraint_scope(is_inside):
        is_matrix = analyzer.can_prove_equal(offset, (image * height + row) * width + along)
    if not is_matrix or math.prod(map(int, buffer.shape)) != images * height * width:
        raise NoTile(f"the block {block.name_hint} doesn't copy a matrix of {matrix}")
    return buffer


def pass_maps(module: tvm.IRModule) -> tvm.IRModule:
    """Give kernels the tensor maps of their fetches, and encode these in the host code.

        tile_fetches.start(tile, A, 1, 2048, 512, 128, 1, 64, ...)
        T.call_ffi_kernel("kernel", A, B, C, ...)
    ->
        tile_fetches.start(tile, T.address_of(map), 128, 1, 64, ...)
        map = T.tvm_stack_alloca("tensormap", 1)
        T.tensormap_encode_tiled(map, A, 512, 2048, 1, ...)
        T.call_ffi_kernel("kernel", A, B, C, map, ...)
    """
    maps: dict[str, list[_Map]] = {}

    def of_kernel(function: PrimFunc) -> PrimFunc:
        is_kernel = int(function.attrs.get("calling_conv", 0)) == _KERNEL_CONVENTION
        if not is_kernel or not any(_is_start(call) for call in find_all(function.body, Call)):
            return function
        # The buffers through which the kernel sees its parameters.
        pointers = {one.buffer: one.data for one in find_all(function.body, DeclBuffer)}
        variables: dict[_Map, Var] = {}

        def start(call: Call) -> Call:
            if not _is_start(call):
                return call
            name, tile, data, *sizes = call.args
            parameter = pointers[data.args[0]] if isinstance(data, Call) else data
            position = list(function.params).index(parameter)
            images, height, width, rows, _, unit = (int(size) for size in sizes[:6])
            one = _Map(position, images, height, width, rows, unit)
            variable = variables.setdefault(one, _variable(len(variables)))
            arguments = [name, tile, tirx.address_of(variable), *sizes[3:]]
            return Call(call.op, arguments, call.attrs, call.ty_args, ret_ty=call.ty)

        body = tvm_ffi.structural_map(function.body, (Call, start))
        maps[str(function.attrs["global_symbol"])] = list(variables)
        parameters = [*function.params, *variables.values()]
        return PrimFunc(parameters, body, function.ret_type, attrs=function.attrs)

    def launch(statement: Evaluate) -> Any:
        call = statement.value
        if not isinstance(call, Call) or op_name(call) != "call_ffi_kernel":
            return statement
        kernel, *arguments = call.args
        sizes = len(call.attrs.launch_params)
        buffers, extents = arguments[:-sizes], arguments[-sizes:]
        steps: list[Any] = []
        variables: list[Var] = []
        for one in maps.get(str(kernel.value), []):
            variables.append(_variable(len(variables)))
            steps += one.encode(variables[-1], buffers[one.parameter])
        arguments = [kernel, *buffers, *variables, *extents]
        changed = Call(call.op, arguments, call.attrs, call.ty_args, ret_ty=call.ty)
        return SeqStmt([*steps, Evaluate(changed)]) if steps else statement

    kernels = rewrite_prim_funcs(module, of_kernel)
    if not maps:
        return module
    return rewrite_prim_funcs(
        kernels, lambda one: with_body(one, tvm_ffi.structural_map(one.body, (Evaluate, launch)))
    )


@dataclass(frozen=True)
class _Map:
    """A tensor map of a kernel's parameter: a matrix [images, height, width] in tiles of `rows` rows
    and `unit` columns.
    """

    parameter: int
    images: int
    height: int
    width: int
    rows: int
    unit: int

    def encode(self, variable: Var, data: Any) -> list[Any]:
        """Return the statements of the host that encode it. Dimensions begin with the innermost one."""
        dtype = str(data.ty.element_type.dtype)
        item = MAP_BYTES // self.unit
        extents = self.width, self.height, self.images
        strides = self.width * item, self.height * self.width * item
        sizes = (*extents, *strides, self.unit, self.rows, 1, 1, 1, 1)
        encoded = tirx.tensormap_encode_tiled(
            variable,
            data,
            *(IntImm("int64", size) for size in sizes),
            descriptor_dtype=dtype,
            rank=len(extents),
            swizzle=_SWIZZLED,
            l2_promotion=_BY_LINES,
        )
        return [Bind(variable, tirx.tvm_stack_alloca("tensormap", 1)), Evaluate(encoded)]


def _item_bytes(buffer: Buffer) -> int:
    return int(tvm.DataType(str(buffer.ty.dtype)).bits) // 8


def _is_start(call: Call) -> bool:
    return op_name(call) == "call_extern" and call.args[0].value == _START


def _variable(number: int) -> Var:
    return Var(f"tensor_map_{number}", PointerType(TensorMapType()))


def define_fetches(source: str) -> tuple[str, str]:
    """Return the definitions that CUDA C needs for fetches by tensor maps, and the kernels with them.

        extern __shared__ __align__(64) uchar shared[];
        commit_group(); wait_group_1();
    ->
        extern __shared__ __align__(1024) uchar shared[];
        __shared__ unsigned long long tile_barriers[4];
        tensor_cores::TileFetches<4> tile_fetches(tile_barriers);
        tile_fetches.commit(); tile_fetches.wait<1>();
    """
    if _START not in source:
        return "", source
    starts = [found.start() for found in _KERNEL.finditer(source)]
    parts = [source[at:end] for at, end in zip([0, *starts], [*starts, len(source)], strict=True)]
    kernels = "".join(_with_fetches(part) if _START in part else part for part in parts)
    return _FUNCTIONS, kernels.replace("CUtensorMap", "tensor_cores::TensorMap")


def _with_fetches(kernel: str) -> str:
    fetches = (
        r"extern __shared__ __align__(1024) \1\n"
        rf"  __shared__ unsigned long long tile_barriers[{_BARRIERS}];\n"
        rf"  tensor_cores::TileFetches<{_BARRIERS}> tile_fetches(tile_barriers);"
    )
    # The hardware that fetches tiles writes them where tensor cores read: no fence is needed between the two.
    kernel = kernel.replace("tensor_cores::synchronize();", "__syncthreads();")
    waits = _WAITS.sub(r"tile_fetches.wait<\1>();", _SHARED.sub(fetches, kernel))
    return _COMMITS.sub("tile_fetches.commit();", waits)
