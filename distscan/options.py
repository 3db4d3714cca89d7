"""The options of a scan: those that give elements their values, and those that say how it runs.

Each is parsed once, into one form for all ways of writing it. ``ScanOptions`` are compared whole,
where a job goes on with what another one has left: a new field is compared without more code.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields
from functools import lru_cache
from typing import Any, Literal, NamedTuple, cast, get_args

import numpy as np

from . import binding
from .core import dtypes, operators
from .core.fingerprint import fingerprint
from .core.form import axis_number, shape_of
from .core.operators import BUILTIN, Operator
from .core.scalars import integer
from .core.segments import term_of
from .core.steps import PlanStrategy, Strategy
from .cpu.threads import parse_threads
from .fsum.request import is_fsum, limits_of
from .mpi.communicators import op_name

Op = str | np.ufunc | Operator
Nulls = Literal["refuse", "skip", "zero"]

#: The names of options in messages about ranks that differ, where theirs would say too little.
_NAMES = {"dtype": "the dtype of the result", "segments": "the dtype of segments"}
#: Of the input alone: a running value has the same meaning behind another input.
_OF_INPUT = {"raw", "shape", "nulls"}
#: These may differ from rank to rank.
_OF_RANK = {"threads", "memory", "force"}


class ScanOptions(NamedTuple):
    """All that gives the elements of a scan their values, beside the elements themselves.

    Attributes
    ----------
    op
        The operator, or "fsum", whose operator depends on the elements.
    axis, exclusive, reverse, dtype, window, initial
        As in ``scan``.
    segments
        The type of flags or keys; None without segments.
    raw, shape
        The type and the shape of input files that have no header.
    nulls
        What elements of tables count for that have no value.
    """

    op: Any = "sum"  # Operator | str
    axis: int | None = None
    exclusive: bool = False
    reverse: bool = False
    dtype: np.dtype[Any] | None = None
    window: tuple[int, int] | None = None
    segments: np.dtype[Any] | None = None
    raw: np.dtype[Any] | None = None
    shape: tuple[int, ...] | None = None
    nulls: Nulls = "refuse"
    initial: Any = None

    @classmethod
    def parse(cls, *, op: Op = "sum", **asked: Any) -> "ScanOptions":
        """Return the options that a caller asks for; None stands for the default.

        Raises TypeError, also for an unknown option, and ValueError.

        >>> ScanOptions.parse(op=np.add, initial=3, dtype="f4").terms()["initial"]
        3
        """
        window = asked.get("window")
        known: Any = operators.NAMED.get(op) if isinstance(op, str | np.ufunc) else None
        if known is None or window is not None:
            name = op_name(op)
            known = "fsum" if is_fsum(name, window) else operators.resolve(name)
        unknown = asked.keys() - _PARSERS.keys()
        if unknown:
            raise TypeError(f"a scan has no option {min(unknown)!r}")
        parsed = {name: _PARSERS[name](each) for name, each in asked.items() if each is not None}
        return cls(known, **parsed)

    def compared(self) -> dict[str, Any]:
        """Return what must be the same on every rank, by the names that messages have.

        What a rank derives from its arrays, such as a dtype that is None, has been put in before.
        """
        values = self._asdict() | {"segments": term_of(self.segments)}
        return {_NAMES.get(name, name): value for name, value in values.items()}

    def terms(self, *, any_input: bool = False) -> dict[str, Any]:
        """Return what must be the same in two jobs, by name, in a form that JSON has.

        ``any_input`` leaves out what is of the input alone.
        """
        names = {"op": "the operator", "segments": "the type of segments"}
        values = self.to_json()
        if any_input:
            values = {name: value for name, value in values.items() if name not in _OF_INPUT}
            values["segments"] = _plain(term_of(self.segments))
        return {names.get(name, name): value for name, value in values.items()}

    def to_json(self) -> dict[str, Any]:
        """Return all options in a form that JSON has; ``parse`` takes it, if ``op`` has a name."""
        return {name: _plain(value) for name, value in zip(self._fields, self, strict=True)}


def _nulls(name: Any) -> Nulls:
    if name not in get_args(Nulls):
        raise ValueError(f"unknown nulls {name!r}; choose from {', '.join(get_args(Nulls))}")
    return cast(Nulls, name)


#: What makes the value of each option out of a caller's, which is not None.
_PARSERS: dict[str, Callable[[Any], Any]] = {
    "axis": lambda axis: axis if type(axis) is int else axis_number(axis),
    "exclusive": bool,
    "reverse": bool,
    "dtype": lambda dtype: dtype if isinstance(dtype, np.dtype) else dtypes.parse(dtype),
    "window": limits_of,
    "raw": dtypes.parse,
    "shape": shape_of,
    "nulls": _nulls,
    "initial": lambda initial: initial,
}


class RunOptions(NamedTuple):
    """How a job runs: another way gives the same elements, but for the roundings of floats.

    Attributes
    ----------
    backend, strategy, threads, memory, force, check, like, resume, trust_input
        As in ``scan_file``.
    """

    backend: binding.Name = "auto"
    strategy: PlanStrategy = "auto"
    threads: int | None = None
    memory: int | None = None
    force: bool = False
    check: bool = False
    like: bool = False
    resume: bool = False
    trust_input: bool = False

    @classmethod
    def parse(
        cls,
        *,
        backend: Any = "auto",
        strategy: Any = "auto",
        threads: Any = None,
        memory: Any = None,
        strategies: Any = Strategy,
        **flags: Any,
    ) -> "RunOptions":
        """Return the options that a caller asks for; raise TypeError and ValueError.

        ``strategies`` is the type of the strategies that there are.
        """
        for what, name, kind in (
            ("backend", backend, binding.Name),
            ("strategy", strategy, strategies),
        ):
            if name not in get_args(kind):
                choices = ", ".join(get_args(kind))
                raise ValueError(f"unknown {what} {name!r}; choose from {choices}")
        threads = None if threads is None else parse_threads(threads)
        memory = None if memory is None else integer(memory, "memory", least=1)
        checked_flags = {name: bool(flag) for name, flag in flags.items()}
        return cls(backend, strategy, threads, memory, **checked_flags)

    @property
    def digests(self) -> bool:
        """Whether the job notes what it reads, for a job that goes on with it."""
        return self.resume and not self.trust_input

    def terms(self) -> dict[str, Any]:
        """Return what must be the same on every rank, by name."""
        values = zip(self._fields, self, strict=True)
        return {name: value for name, value in values if name not in _OF_RANK}

    def to_json(self) -> dict[str, Any]:
        """Return all options in a form that JSON has."""
        return {name: _plain(value) for name, value in zip(self._fields, self, strict=True)}


class ScanRequest(NamedTuple):
    """One call of ``scan`` on one rank: the arrays that are passed, and the options, parsed."""

    x: Any
    out: Any
    segments: Any
    options: ScanOptions
    run_options: RunOptions

    @classmethod
    def parse(
        cls, x: Any, out: Any, segments: Any, initial: Any, asked: dict[str, Any]
    ) -> "ScanRequest":
        """Return the request of a caller, who asks for other options by name.

        Most calls have options that another call had: these are parsed once. Raises TypeError and
        ValueError.
        """
        known: Any = None
        try:  # noqa: SIM105 - `suppress` takes a microsecond
            known = _parsed(tuple(asked), *asked.values())
        except TypeError:  # of an option that no dict takes as a key, too
            pass
        options, run_options = known or parse(**asked)
        if initial is not None:
            # ``_replace`` takes a microsecond. ``initial`` is the last field.
            options = ScanOptions(*options[:-1], initial)  # type: ignore[call-arg]
        return cls(x, out, segments, options, run_options)


def parse(**asked: Any) -> tuple[ScanOptions, RunOptions]:
    """Return the options of a job, both kinds; ``initial`` may be text.

    Raises TypeError, also for an option that is of no kind, and ValueError.
    """
    run = {name: asked.pop(name) for name in RunOptions._fields if name in asked}
    if isinstance(asked.get("initial"), str):
        asked["initial"] = number(asked["initial"])
    return ScanOptions.parse(**asked), RunOptions.parse(**run)


@lru_cache(maxsize=32, typed=True)  # by position: keywords take 0.6 us longer
def _parsed(names: tuple[str, ...], *values: Any) -> tuple[ScanOptions, RunOptions]:
    return parse(**dict(zip(names, values, strict=True)))


def number(text: str) -> Any:
    """Return a text as an integer, float or complex number.

    >>> number("3"), number("1e3"), number("2+1j")
    (3, 1000.0, (2+1j))
    """
    for kind in (int, float, complex):
        with suppress(ValueError):
            return kind(text)
    raise ValueError(f"initial {text!r} is no number; numbers are such as 3, 1e3 and 2+1j")


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
