"""The kernels' parameters: names, order and types, as the C++ in ``kernels/`` declares them.

Arguments are set in place, by name. The driver copies them at each launch.

    arguments = parameters_of("scan", np.dtype(np.float32))()
    arguments.x = array.data.ptr
    arguments.shard.n = 100
"""

import ctypes
from ctypes import Structure
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.arrays import FieldArrays
from ..core.dtypes import Types
from ..core.form import Form
from ..core.operators import Operator
from ..fsum.words import FixedSum

Pointer = ctypes.c_uint64
Int64 = ctypes.c_int64
UInt64 = ctypes.c_uint64
Int = ctypes.c_int32
UInt = ctypes.c_uint32
Bool = ctypes.c_bool


# ---- structures -------------------------------------------------------------------------------


class Totals(Structure):
    """``Totals`` of ``kernels/base/status_words.cuh``."""

    __slots__ = ()
    _fields_ = (("words", Pointer), ("stride", Int64))


class Shard(Structure):
    """``Shard`` of ``kernels/linear/shard.cuh``."""

    __slots__ = ()
    _fields_ = (("n", Int64), ("unaligned_head", Int64), ("tiles", Int64), ("evict_first", Bool))


class Workspace(Structure):
    """``Workspace`` of ``kernels/linear/shard.cuh``."""

    __slots__ = ()
    _fields_ = (("totals", Totals), ("total", Totals), ("draws", Pointer), ("epoch", UInt))


class Mail(Structure):
    """``Mail`` of ``kernels/linear/offset.cuh``."""

    __slots__ = ()
    _fields_ = (("from_host", Pointer), ("passed_on", Pointer), ("answer", Pointer))


class Peers(Structure):
    """``Peers`` of ``kernels/linear/exchange.cuh``."""

    __slots__ = ()
    _fields_ = (
        ("inboxes", Pointer),
        ("number", Pointer),
        ("fault", Pointer),
        ("limit", UInt64),
        ("rank", Int),
        ("ranks", Int),
        ("size", Int64),
    )


class RowLength(Structure):
    """``RowLength`` of ``kernels/linear/shard.cuh``."""

    __slots__ = ()
    _fields_ = (("length", Int64), ("reciprocal", UInt64), ("starts", UInt))


class Division(Structure):
    """``Division`` of ``kernels/linear/gather.cuh``."""

    __slots__ = ()
    _fields_ = (("length", Int64), ("reciprocal", UInt64))


class Matrix(Structure):
    """``Matrix`` of ``kernels/columns/matrix.cuh``."""

    __slots__ = ()
    _fields_ = (
        ("rows", Int64),
        ("n", Int64),
        ("inner", Int64),
        ("width", Int64),
        ("strips", Int64),
        ("tiles", Int64),
        ("reverse", Int64),
    )


class ColumnsWork(Structure):
    """``ColumnsWork`` of ``kernels/columns/columns_pipeline.cuh``."""

    __slots__ = ()
    _fields_ = (
        ("published", Totals),
        ("tile_counter", Pointer),
        ("blocks", Int64),
        ("at_once", Int64),
        ("epoch", Int64),
    )


class Unit(Structure):
    """``Unit`` of ``kernels/base/fixed.cuh``."""

    __slots__ = ()
    _fields_ = (
        ("lowest", Int),
        ("low", Int),
        ("high", Int),
        ("epoch", UInt),
        ("outside", Pointer),
    )


def flagged(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the type ``Flagged`` of ``kernels/linear/flagged.cuh``: a value with a head flag."""
    return np.dtype([("value", dtype), ("head", np.uint32)], align=True)


def keyed(dtype: np.dtype[Any], keys: np.dtype[Any]) -> np.dtype[Any]:
    """Return the type of a ``Flagged`` and the keys at the ends of a shard, as a kernel sends them.

    Both begin at a word of 4 bytes.
    """
    return np.dtype([("total", flagged(dtype)), ("ends", keys, 2)])


def total_type(acc: np.dtype[Any], form: Form) -> np.dtype[Any]:
    """Return the type of a shard's total as a kernel sends it; ``acc`` is that in registers."""
    if not form.segmented:
        return acc
    return flagged(acc) if form.keys is None else keyed(acc, form.keys)


# ---- kernels ----------------------------------------------------------------------------------


def parameters_of(
    entry: str, acc: np.dtype[Any], fields: tuple[int, int] = (1, 1)
) -> type[Structure]:
    """Return the parameters of ``kernels/<entry>.cu`` as a structure. Values have type ``acc``.

    ``fields`` are the numbers of arrays that an element is read from, and written to.

    >>> [name for name, _ in parameters_of("add", np.dtype(np.float32))._fields_]
    ['y', 'out', 'n', 'unaligned_head', 'offset', 'has_offset']
    """
    value = _value(acc)
    x, y = (Pointer if number == 1 else Pointer * number for number in fields)
    arrays: dict[str, Any] = {"x": x, "y": y}
    offset = {"offset": value, "has_offset": Bool}
    scan = arrays | {"shard": Shard, "work": Workspace} | offset | {"mail": Mail}
    maps = {"maps": ctypes.c_uint8 * (128 * fields[0])}
    stages = {"stage_bytes": Int, "box_rows": Int}
    start = {"offset": Pointer, "first": value, "has_first": Bool}
    unit = {"unit": Unit}  # of exact sums
    exchange = {"peers": Peers, "first": value, "has_first": Bool, "offset": Pointer}
    weights = {"x": Pointer, "n": Int64, "lead": Int64, "length": Int64}
    parameters: dict[str, dict[str, Any]] = {
        "scan": {**scan, "heads": Pointer, "row": RowLength, "first": value, **unit},
        "scan_short": scan | unit,
        "textbook": scan,
        "reduce": {"x": x, "n": Int64, "unaligned_head": Int64, "cached": Int64, "totals": Pointer,
                   "arrived": Pointer, "total": Totals, "epoch": UInt, "heads": Pointer, **unit},
        "call_off": {"peers": Peers},
        "gathered_offset": {"gathered": Pointer, "ranks": Int, "place": Int, "fault": Pointer,
                            "y": Pointer, "n": Int64, "first": value, "has_first": Bool,
                            "offset": Pointer, "epoch": UInt},
        "reduce_exchange": {**arrays, "n": Int64, "unaligned_head": Int64, "cached": Int64,
                            "totals": Pointer, "arrived": Pointer, **exchange, "epoch": UInt,
                            "heads": Pointer},
        "row_exchange": {"total": Pointer, "inner": Int64, **exchange, "called_off": Pointer},
        "gathered_row": {"gathered": Pointer, "pitch": Int64, "inner": Int64, "ranks": Int,
                         "place": Int, "fault": Pointer, "first": value, "has_first": Bool,
                         "offset": Pointer, "called_off": Pointer},
        "fill": {"y": Pointer, "n": Int64, "called_off": Pointer},
        "fused": {**arrays, "shard": Shard, "totals": Totals, **exchange},
        "add": {"y": Pointer, "out": Pointer, "n": Int64, "unaligned_head": Int64, **offset},
        "columns": {**maps, **arrays, "matrix": Matrix, "work": ColumnsWork, **stages, **start,
                    **unit},
        "columns_per_thread": {**arrays, "scans": Int64, "n": Int64, "inner": Int64,
                               "reverse": Bool, **start, **unit},
        "columns_reduce": {**maps, "x": x, "matrix": Matrix, **stages, "runs": Int64,
                           "parts": Pointer, "arrived": Pointer, "total": Pointer, **unit},
        "compact": {"x": Pointer, "mask": Pointer, "y": Pointer, "shard": Shard,
                    "work": Workspace},
        "gather": {"x": Pointer, "index": Pointer, "y": Pointer, "count": Int64, "row": Division},
        "tile_totals": {**weights, "ends": Pointer, "arrived": Pointer, "total": Totals,
                        "epoch": UInt},
        "find_cuts": {**weights, "ends": Pointer, "tiles": Int64, "targets": Pointer,
                      "cuts": Pointer, "count": Int64},
    }  # fmt: skip
    members = [*parameters[entry].items()]
    # Without __slots__ it would take any name, and lose what is set under a wrong one.
    return type(entry, (Structure,), {"__slots__": (), "_fields_": members})


def _value(dtype: np.dtype[Any]) -> Any:
    """Return a ctypes type with the size and the alignment of ``dtype`` in C++."""
    size = _alignment(dtype)
    unit = {1: ctypes.c_uint8, 2: ctypes.c_uint16, 4: ctypes.c_uint32, 8: ctypes.c_uint64}[size]
    return unit * (dtype.itemsize // size)


def _alignment(dtype: np.dtype[Any]) -> int:
    if dtype.names:
        return max(_alignment(dtype[name]) for name in dtype.names)
    return dtype.itemsize // 2 if dtype.kind == "c" else dtype.itemsize


def fields_of(types: Types) -> tuple[int, int]:
    """Return the numbers of arrays that an element is read from, and written to."""
    return len(types.x.names or " "), len(types.out.names or " ")


def point(arguments: Any, name: str, arrays: FieldArrays) -> None:
    """Set the pointers ``name``, as many as there are arrays."""
    if len(arrays) > 1:
        getattr(arguments, name)[:] = arrays.addresses
    else:
        setattr(arguments, name, arrays.addresses[0])


def set_unit(arguments: Any, op: Operator) -> None:
    """Set the unit in which exact sums are counted, and their window; others have none."""
    if isinstance(op, FixedSum):
        unit = arguments.unit  # sets the arguments
        unit.lowest, (unit.low, unit.high) = op.lowest, op.limits


def places(parameters: type[Structure]) -> list[tuple[int, int]]:
    """Return the offset and the size of each parameter, in bytes."""
    fields = [getattr(parameters, name) for name, *_ in parameters._fields_]
    return [(field.offset, field.size) for field in fields]


def view(arguments: Structure, name: str, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return the argument ``name`` as an array [1] of ``dtype``, in the memory of the arguments."""
    field = getattr(type(arguments), name)
    memory: NDArray[np.uint8] = np.frombuffer(memoryview(arguments).cast("B"), np.uint8)
    return memory[field.offset :][: field.size].view(dtype)
