"""What users ask a client for, in the form in which it is sent."""

import os
import sys
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from .. import exact_check
from ..core import arrays, dtypes, operators
from ..core.extents import Extents, axis_number
from ..core.form import first_value
from ..core.operators import BUILTIN
from ..core.segments import check_shape, check_type
from ..mpi.communicators import op_name
from .client_arrays import Asked

_Path = str | os.PathLike[str]


def scan(
    x: Any,
    op: Any,
    *,
    axis: Any,
    exclusive: Any,
    initial: Any,
    reverse: Any,
    dtype: DTypeLike | None,
    out: Any,
    segments: Any,
    strategy: str,
    window: Any,
) -> Asked:
    """Check the arguments of ``scan`` as ``distscan.scan`` does, and return what they ask for."""
    if x is None:
        raise TypeError("x is None; a scan takes an array or a sequence")
    array = _on_host("x", x)
    target = None if out is None else _on_host("out", out)
    flags = None if segments is None else _on_host("segments", segments)
    number, name = axis_number(axis), _name(op, window)
    parsed = None if dtype is None else dtypes.parse(dtype)
    if target is not None:
        if not isinstance(out, np.ndarray):
            raise TypeError(f"out must be an array, not {type(out).__name__}")
        arrays.check_writable(out, target)
    if flags is not None:
        check_shape(flags, array)
    extents, kind = Extents.of(array.shape, number), None if target is None else target.dtype
    limits = None
    if name == "fsum":
        exact = {"dtype": parsed, "initial": initial, "window": window, "strategy": strategy}
        limits = exact_check.Asked.of(array.dtype, out=kind, ranks=1, **exact).limits
    else:
        acc = dtypes.resolve(operators.resolve(name), array.dtype, parsed, kind, wide=True).acc
        first_value(operators.resolve(name), acc, initial, exclusive=bool(exclusive))
    if flags is not None:
        check_type(flags.dtype, extents)
    if target is not None and target.shape != extents.result_shape:
        raise ValueError(f"out has shape {target.shape}; the result has {extents.result_shape}")
    given = {
        "op": name,
        "axis": number,
        "exclusive": "true" if exclusive else None,
        "initial": None if initial is None else _text(initial),
        "reverse": "true" if reverse else None,
        "dtype": None if parsed is None else str(parsed),
        "out": None if kind is None else str(kind),
        "strategy": strategy,
        "window": None if limits is None else ",".join(map(str, limits)),
    }
    return Asked(
        array, flags, out, {key: value for key, value in given.items() if value is not None}
    )


def job(
    input: _Path | Sequence[_Path],
    output: _Path | None,
    op: Any,
    key: str | None,
    options: dict[str, Any],
) -> dict[str, Any]:
    """Return the request for a file job: its JSON, and the header with its key."""
    several = [input] if isinstance(input, str | os.PathLike) else list(input)
    if output is None:
        first = Path(several[0])
        output = first.with_name(f"{first.name.removesuffix('.npy')}.scan.npy")
    request = options | {
        "inputs": [os.path.abspath(path) for path in several],
        "output": os.path.abspath(output),
        "op": _name(op, options.get("window")),
    }
    if request.get("window") is not None:
        request["window"] = exact_check.limits_of(request["window"])
    for name in ("segments", "state", "trace"):
        if request.get(name) is not None:
            request[name] = os.path.abspath(request[name])
    for name in ("dtype", "raw"):
        if request.get(name) is not None:
            request[name] = str(dtypes.parse(request[name]))
    if request.get("initial") is not None:
        request["initial"] = _text(request["initial"])
    head = {"idempotency-key": uuid.uuid4().hex if key is None else key}
    return {"json": request, "headers": head}


def shape(given: int | Sequence[int]) -> tuple[int, ...]:
    """Return a shape as NumPy has it."""
    return (given,) if isinstance(given, int) else tuple(given)


def _on_host(name: str, given: Any) -> NDArray[Any]:
    """Return the NumPy array over the memory of an argument."""
    array = arrays.as_native(given, name)
    if not isinstance(array, np.ndarray):
        raise TypeError(f"{name} is in the memory of a GPU; a service takes arrays of the host")
    return array


def _name(op: Any, window: Any) -> str:
    """Return the name of an operator that has one: text, a ufunc of NumPy, or an MPI op."""
    if "mpi4py.MPI" in sys.modules:  # else it is no MPI op, and a client does not start MPI
        op = op_name(op)
    if exact_check.is_fsum(op, window):
        return "fsum"
    resolved = operators.resolve(op)
    if BUILTIN.get(resolved.name) is not resolved:
        raise TypeError(f"a service takes operators that have a name, not {resolved.name}")
    return resolved.name


def _text(initial: Any) -> str:
    """Return a number as text, to its last bit."""
    if isinstance(initial, str):
        return initial
    value = np.asarray(initial)
    if value.ndim > 0:
        raise ValueError(f"initial must be one value, not an array of shape {value.shape}")
    number = value.item()
    if isinstance(number, np.generic):  # long double: Python has no such number
        short = complex(number) if value.dtype.kind == "c" else float(number)
        if short != number:
            raise TypeError(f"a service takes an initial of 8 bytes, not {value.dtype}")
        number = short
    return str(int(number) if isinstance(number, bool) else number).strip("()")
