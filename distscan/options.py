"""The options of a scan: those that give elements their values, and those that say how it runs.

Each is parsed once, into one form for all ways of writing it. ``ScanOptions`` are compared whole,
where a job goes on with what another one has left: a new field is compared without more code.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import fields
from functools import lru_cache
from typing import Any, NamedTuple, get_args

import numpy as np

from . import binding
from .core import dtypes, operators
from .core.fingerprint import fingerprint
from .core.form import axis_number, shape_of
from .core.operators import BUILTIN, Operator
from .core.scalars import integer
from .core.steps import Strategy
from .cpu.threads import parse_threads
from .fsum.request import is_fsum, limits_of
from .mpi.communicators import op_name

Op = str | np.ufunc | Operator

#: Of the input alone: a running value has the same meaning behind another input.
_OF_INPUT = {"raw", "shape"}
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
    initial: Any = None

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
        """Return the options that a caller asks for; raise TypeError and ValueError.

        >>> ScanOptions.parse(op=np.add, initial=3, dtype="f4").terms()["initial"]
        3
        """
        known: Any = operators.NAMED.get(op) if isinstance(op, str | np.ufunc) else None
        if known is None or window is not None:
            name = op_name(op)
            known = "fsum" if is_fsum(name, window) else operators.resolve(name)
        return cls(
            known,
            axis if axis is None or type(axis) is int else axis_number(axis),
            bool(exclusive),
            bool(reverse),
            dtype if dtype is None or isinstance(dtype, np.dtype) else dtypes.parse(dtype),
            None if window is None else limits_of(window),
            None,
            None if raw is None else dtypes.parse(raw),
            None if shape is None else shape_of(shape),
            initial,
        )

    def terms(self, *, any_input: bool = False) -> dict[str, Any]:
        """Return what must be the same in two jobs, by name, in a form that JSON has.

        ``any_input`` leaves out what is of the input alone.
        """
        names = {"op": "the operator", "segments": "the type of segments"}
        values = self.to_json()
        if any_input:
            values = {name: value for name, value in values.items() if name not in _OF_INPUT}
            if self.segments is not None and self.segments.kind in "SU":
                values["segments"] = f"text, {self.segments.kind}"  # each file has its own width
        return {names.get(name, name): value for name, value in values.items()}

    def to_json(self) -> dict[str, Any]:
        """Return all options in a form that JSON has; ``parse`` takes it, if ``op`` has a name."""
        return {name: _plain(value) for name, value in zip(self._fields, self, strict=True)}


class RunOptions(NamedTuple):
    """How a job runs: another way gives the same elements, but for the roundings of floats.

    Attributes
    ----------
    backend, strategy, threads, memory, force, check, resume, trust_input
        As in ``scan_file``.
    """

    backend: binding.Name = "auto"
    strategy: Strategy = "auto"
    threads: int | None = None
    memory: int | None = None
    force: bool = False
    check: bool = False
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
        **flags: Any,
    ) -> "RunOptions":
        """Return the options that a caller asks for; raise TypeError and ValueError."""
        if backend not in get_args(binding.Name):
            names = ", ".join(get_args(binding.Name))
            raise ValueError(f"unknown backend {backend!r}; choose from {names}")
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
        cls,
        x: Any,
        out: Any,
        segments: Any,
        *,
        op: Any,
        axis: Any,
        exclusive: Any,
        initial: Any,
        reverse: Any,
        dtype: Any,
        window: Any,
        strategy: Any,
        threads: Any,
    ) -> "ScanRequest":
        """Return the request of a caller; raise TypeError and ValueError.

        Most calls have options that another call had: these are parsed once.
        """
        asked = op, axis, exclusive, reverse, dtype, window, strategy, threads
        known: Any = None
        try:  # noqa: SIM105 - `suppress` takes a microsecond
            known = _parsed(*asked)
        except TypeError:  # of an option that no dict takes as a key, too
            pass
        options, run_options = known or _parse(*asked)
        if initial is not None:
            options = options._replace(initial=initial)
        return cls(x, out, segments, options, run_options)


def _parse(  # noqa: PLR0917 - the cache is faster without keywords
    op: Any,
    axis: Any,
    exclusive: Any,
    reverse: Any,
    dtype: Any,
    window: Any,
    strategy: Any,
    threads: Any,
) -> tuple[ScanOptions, RunOptions]:
    form: Any = {"axis": axis, "exclusive": exclusive, "reverse": reverse}
    options = ScanOptions.parse(op=op, dtype=dtype, window=window, **form)
    return options, RunOptions.parse(strategy=strategy, threads=threads)


_parsed = lru_cache(maxsize=32, typed=True)(_parse)


def parse(**asked: Any) -> tuple[ScanOptions, RunOptions]:
    """Return the options of a job, both kinds; ``initial`` may be text.

    Raises TypeError, also for an option that is of no kind, and ValueError.
    """
    run = {name: asked.pop(name) for name in RunOptions._fields if name in asked}
    if isinstance(asked.get("initial"), str):
        asked["initial"] = number(asked["initial"])
    return ScanOptions.parse(**asked), RunOptions.parse(**run)


def number(text: str) -> Any:
    """Return a text as an integer, float or complex number.

    >>> number("3"), number("1e3"), number("2+1j")
    (3, 1000.0, (2+1j))
    """
    for kind in (int, float, complex):
        with suppress(ValueError):
            return kind(text)
    raise ValueError(f"initial {text!r} is no number")


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
