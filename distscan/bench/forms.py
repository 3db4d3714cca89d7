"""``--forms``: what distscan scans on CPUs, each form beside a copy and NumPy, at one size.

The form of most cases is a sum or a maximum on one core. The last lines have more threads. On
several ranks, the sum of float64 alone is timed, by both strategies.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from textwrap import wrap
from typing import Any

import numpy as np

from ..core.operators import BUILTIN
from .case import Case
from .suite import Row

MIB = 128  # of the wider array, by default
SHOWN = ("copy", "numpy", "single-pass", "reduce-scan", "scan-add", "by-hand", "torch", "tbb")
_WIDTH = 100  # characters
_ROW, _COLUMNS = 1000, 1 << 11  # elements

_SUM = "np.cumsum(x, dtype=out.dtype, out=out)"
_MAX = "np.maximum.accumulate(x, out=out)"
_MIN = "np.minimum.accumulate(x, out=out)"
_SEGMENTS = (
    "np.cumsum(x, out=out); i = np.flatnonzero(heads); "
    "out -= np.repeat(out[i] - x[i], np.diff(i, append=x.size))"
)
_BY_ROWS = "out[0] = x[0]; [np.add(*rows) for rows in zip(out, x[1:], out[1:])]"

_F8, _I1 = ("sum", "float64"), ("max", "int8")
_FORMS: list[tuple[str, tuple[str, str], str, dict[str, Any]]] = [
    ("sum float64", _F8, _SUM, {}),
    ("sum int32", ("sum", "int32"), _SUM, {}),
    ("sum int64", ("sum", "int64"), _SUM, {}),
    ("sum complex128", ("sum", "complex128"), _SUM, {}),
    ("sum float32, in float64", ("sum", "float32"), "np.cumsum(x, dtype=np.float64, out=out)", {}),
    ("sum float32, NumPy in float32", ("sum", "float32"), _SUM, {}),
    ("sum int32 to int64", ("sum", "int32:int64"), _SUM, {}),
    ("sum int8 to int64", ("sum", "int8:int64"), _SUM, {}),
    ("max int8", _I1, _MAX, {}),
    ("max float32", ("max", "float32"), _MAX, {}),
    ("max float64", ("max", "float64"), _MAX, {}),
    ("min int8", ("min", "int8"), _MIN, {}),
    ("min float32", ("min", "float32"), _MIN, {}),
    ("min float64", ("min", "float64"), _MIN, {}),
    ("sum float16", ("sum", "float16"), _SUM, {}),
    ("rows of 1000 float64", _F8, "np.cumsum(x, axis=1, out=out)",
     {"options": {"axis": 1}, "shape": (-1, _ROW)}),
    ("columns of 2048 float64", _F8, "np.cumsum(x, axis=0, out=out)",
     {"options": {"axis": 0}, "shape": (-1, _COLUMNS)}),
    ("columns, NumPy row by row", _F8, _BY_ROWS,
     {"options": {"axis": 0}, "shape": (-1, _COLUMNS)}),
    ("segments of 64 float64", _F8, _SEGMENTS, {"options": {"segments": np.bool_}}),
    ("exclusive sum float64", _F8, "out[0] = 0; np.cumsum(x[:-1], out=out[1:])",
     {"options": {"exclusive": True}}),
    ("exclusive max int8", _I1, "out[0] = -128; np.maximum.accumulate(x[:-1], out=out[1:])",
     {"options": {"exclusive": True}}),
    ("reverse sum float64", _F8, "np.cumsum(x[::-1], out=out[::-1])",
     {"options": {"reverse": True}}),
    ("reverse max int8", _I1, "np.maximum.accumulate(x[::-1], out=out[::-1])",
     {"options": {"reverse": True}}),
    ("initial sum float64", _F8, "np.cumsum(x, out=out); out += 9", {"options": {"initial": 9}}),
    ("initial max int8", _I1, "np.maximum.accumulate(x, out=out); np.maximum(out, 9, out=out)",
     {"options": {"initial": 9}}),
    ("in place, sum float64", _F8, _SUM, {"in_place": True}),
    ("in place, max int8", _I1, _MAX, {"in_place": True}),
    ("new result, sum float64", _F8, "return np.cumsum(x)", {"new": True}),
]  # fmt: skip


def cases(mib: int, ranks: int, usable: int) -> list[Case]:
    """Return the cases for arrays of ``mib`` MiB, whose ranks may use ``usable`` threads each."""
    found = [_case(mib, ranks, form) for form in (_FORMS if ranks == 1 else _FORMS[:1])]
    counts = [1 << i for i in range(1, usable.bit_length())]
    return found + [
        replace(found[0], title=f"{found[0].title}, {count} threads", threads=count)
        for count in counts
    ]


def _case(mib: int, ranks: int, form: tuple[str, tuple[str, str], str, dict[str, Any]]) -> Case:
    title, (op, types), idiom, more = form
    x, out = (np.dtype(name) for name in (types.split(":") * 2)[:2])
    n = (mib << 20) // max(x.itemsize, out.itemsize)
    n -= n % abs(int(np.prod(more.get("shape", 1))))
    return Case(BUILTIN[op], x, out, n, ranks, title, idiom, threads=1, **more)


def lines(rows: Sequence[Row], idioms: Mapping[str, str]) -> list[str]:
    """Return the table: shares of the copy's speed, and times NumPy."""
    found = {(row.type, row.contender): row for row in rows}
    names = [name for name in dict.fromkeys(row.contender for row in rows) if name != "copy"]
    base = "numpy" if "numpy" in names else "by-hand"
    names.sort(key=lambda name: name != base)  # stable: the base comes first
    made = [
        "",
        f"share of the copy's speed, and times {base}; copy: GB/s of a rank, both ways",
        f"{'':30}{'copy':>6}" + "".join(f"{name:>{_width(name, base)}}" for name in names),
    ]
    for title in idioms:
        cells = [f"{_copied(found.get((title, 'copy'))):>6}"]
        for name in names:
            row = found.get((title, name))
            cells.append(f"{_cell(row, timed=name != base):>{_width(name, base)}}")
        made.append(f"{title:30}{''.join(cells)}".rstrip())
    made += _spreads(rows)
    made += [f"{row.contender}, {row.type}: {row.status}: {row.message}"
             for row in rows if row.status != "timed"]  # fmt: skip
    if base != "numpy":
        return made
    made += ["", "numpy:"]
    for idiom in dict.fromkeys(idioms.values()):
        titles = "; ".join(title for title, other in idioms.items() if other == idiom)
        made += wrap(f"{titles}: {idiom}", _WIDTH, subsequent_indent="    ")
    return made


def _cell(row: Row | None, *, timed: bool) -> str:
    if row is None:
        return ""
    if row.share is None:
        return row.status
    return f"{row.share:.2f}" + (f"{row.times:6.1f}x" if timed and row.times else "")


def _width(name: str, base: str) -> int:
    return 9 if name == base else 14


def _copied(copy: Row | None) -> str:
    if copy is None or copy.wall_us is None or copy.moved is None:
        return ""
    return f"{copy.moved / copy.wall_us.median / 1e3:.1f}"


def _spreads(rows: Sequence[Row]) -> list[str]:
    spreads = sorted(row.spread for row in rows if row.spread and row.contender != "copy")
    if not spreads:
        return []
    middle = spreads[len(spreads) // 2]
    return [f"quartiles of the shares apart: {middle:.0%} of the median as a rule, at most "
            f"{spreads[-1]:.0%}"]  # fmt: skip
