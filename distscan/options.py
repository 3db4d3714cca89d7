"""The options of a scan: those that give elements their values, and those that say how it runs.

Each is parsed once, into one form for all ways of writing it. ``ScanOptions`` are compared whole,
where a job goes on with what another one has left: a new field is compared without more code.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from typing import Any, get_args

import numpy as np
from numpy.typing import DTypeLike

from . import binding
from .build import Op
from .core import dtypes, operators
from .core.fingerprint import fingerprint
from .core.form import axis_number, shape_of
from .core.operators import BUILTIN, Operator
from .core.scalars import integer
from .core.steps import Strategy
from .fsum.request import is_fsum, limits_of
from .mpi.communicators import op_name

#: Of an option of the input alone: a running value has the same meaning behind another input.
_INPUT = {"input": True}
_FLAGS = ("force", "check", "resume", "trust_input")
#: Of an option that may differ from rank to rank.
_OF_RANK = {"rank": True}


@dataclass(frozen=True)
class ScanOptions:
    """All that gives the elements of a scan their values, beside the elements themselves.

    Attributes
    ----------
    op
        The operator, or "fsum", whose operator depends on the elements.
    axis, exclusive, initial, reverse, dtype, window
        As in ``scan``.
    segments
        The type of flags or keys; None without segments.
    raw, shape
        The type and the shape of input files that have no header.
    """

    op: Operator | str = "sum"
    axis: int | None = None
    exclusive: bool = False
    initial: Any = None
    reverse: bool = False
    dtype: np.dtype[Any] | None = None
    window: tuple[int, int] | None = None
    segments: np.dtype[Any] | None = None
    raw: np.dtype[Any] | None = field(default=None, metadata=_INPUT)
    shape: tuple[int, ...] | None = field(default=None, metadata=_INPUT)

    @classmethod
    def parse(
        cls,
        *,
        op: Op = "sum",
        axis: Any = None,
        exclusive: Any = False,
        initial: Any = None,
        reverse: Any = False,
        dtype: Any = None,
        window: Any = None,
        raw: Any = None,
        shape: Sequence[int] | None = None,
    ) -> "ScanOptions":
        """Return the options that a caller asks for; ``initial`` may be text.

        Raises TypeError and ValueError.

        >>> ScanOptions.parse(op=np.add, initial="3", dtype="f4").terms()["initial"]
        3
        """
        named = op_name(op)
        return cls(
            op="fsum" if is_fsum(named, window) else operators.resolve(named),
            axis=axis_number(axis),
            exclusive=bool(exclusive),
            initial=number(initial) if isinstance(initial, str) else initial,
            reverse=bool(reverse),
            dtype=_dtype(dtype),
            window=None if window is None else limits_of(window),
            raw=_dtype(raw),
            shape=None if shape is None else shape_of(shape),
        )

    def terms(self, *, any_input: bool = False) -> dict[str, Any]:
        """Return what must be the same in two jobs, by name, in a form that JSON has.

        ``any_input`` leaves out what is of the input alone.
        """
        names = {"op": "the operator", "segments": "the type of segments"}
        found = self.to_json()
        for each in fields(self):
            if any_input and each.metadata == _INPUT:
                del found[each.name]
        if any_input and self.segments is not None and self.segments.kind in "SU":
            found["segments"] = f"text, {self.segments.kind}"  # each file has its own width
        return {names.get(name, name): value for name, value in found.items()}

    def to_json(self) -> dict[str, Any]:
        """Return all options in a form that JSON has; ``parse`` takes it, if ``op`` has a name."""
        return {each.name: _plain(getattr(self, each.name)) for each in fields(self)}


@dataclass(frozen=True)
class RunOptions:
    """How a job runs: another way gives the same elements, but for the roundings of floats.

    Attributes
    ----------
    backend, strategy, threads, memory, force, check, resume, trust_input
        As in ``scan_file``.
    """

    backend: binding.Name = "auto"
    strategy: Strategy = "auto"
    threads: int | None = field(default=None, metadata=_OF_RANK)
    memory: int | None = field(default=None, metadata=_OF_RANK)
    force: bool = field(default=False, metadata=_OF_RANK)
    check: bool = False
    resume: bool = False
    trust_input: bool = False

    def __post_init__(self) -> None:
        if self.backend not in get_args(binding.Name):
            names = ", ".join(get_args(binding.Name))
            raise ValueError(f"unknown backend {self.backend!r}; choose from {names}")

    @property
    def digests(self) -> bool:
        """Whether the job notes what it reads, for a job that goes on with it."""
        return self.resume and not self.trust_input

    def terms(self) -> dict[str, Any]:
        """Return what must be the same on every rank, by name."""
        return {each.name: getattr(self, each.name) for each in fields(self) if not each.metadata}

    def to_json(self) -> dict[str, Any]:
        """Return all options in a form that JSON has."""
        return {each.name: _plain(getattr(self, each.name)) for each in fields(self)}


def parse(**asked: Any) -> tuple[ScanOptions, RunOptions]:
    """Return the options of both kinds; raise TypeError for one that is of none."""
    run = {each.name: asked.pop(each.name) for each in fields(RunOptions) if each.name in asked}
    run |= {name: bool(run[name]) for name in _FLAGS if name in run}
    if run.get("memory") is not None:
        run["memory"] = integer(run["memory"], "memory", least=1)
    return ScanOptions.parse(**asked), RunOptions(**run)


def number(text: str) -> Any:
    """Return a text as an integer, float or complex number.

    >>> number("3"), number("1e3"), number("2+1j")
    (3, 1000.0, (2+1j))
    """
    for kind in (int, float, complex):
        with suppress(ValueError):
            return kind(text)
    raise ValueError(f"initial {text!r} is no number")


def _dtype(asked: DTypeLike | None) -> np.dtype[Any] | None:
    return None if asked is None else dtypes.parse(asked)


def _plain(value: Any) -> Any:
    """Return the value of an option in a form that JSON has, to its last bit.

    >>> _plain(0.1), _plain(True), _plain((3, 4)), _plain(np.dtype(">i4"))
    ('0.1', True, [3, 4], '>i4')
    """
    match value:
        case None | bool() | int() | str():
            return value
        case float() | complex():
            return repr(value.item() if isinstance(value, np.generic) else value).strip("()")
        case tuple() if all(isinstance(each, int) for each in value):
            return list(value)
        case np.dtype():
            return dtypes.to_json(value)
        case Operator():
            return _operator(value)
    array = np.asarray(value)
    if array.dtype.hasobject:
        raise TypeError(f"initial is {value!r}, which has no fixed number of bytes")
    return [dtypes.to_json(array.dtype), list(array.shape), array.tobytes().hex()]


def _operator(op: Operator) -> str:
    """Return a text that tells operators apart: the name of one that is built in; else a digest."""
    if BUILTIN.get(op.name) is op:
        return op.name
    content = fingerprint({each.name: getattr(op, each.name) for each in fields(op)})
    version = "" if op.version is None else f", version {op.version}"
    return f"{op.name}{version}, digest {content}"
