"""What clients ask for, checked before anything is done: options, types, and paths."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from .. import build
from ..core import operators
from ..exact_check import is_fsum, limits_of
from ..job.job import Job
from . import work
from .arrays import Task
from .errors import ForbiddenError, TooLargeError
from .maps import Place

_FLAGS = ("exclusive", "reverse", "force", "check", "resume", "trust_input")
_TEXTS = ("dtype", "raw", "backend", "strategy")
_NUMBERS = ("axis", "threads", "memory")
_PLACES = ("segments", "state", "trace")
_OPTIONS = ("op", "initial", "shape", "window", *_TEXTS, *_NUMBERS, *_FLAGS)  # of a file job


INPUTS = 10_000  # files of a job at most
LONGEST = 4096  # characters of a text, such as a path
_LARGEST = (1 << 63) - 1
_AXES = 64  # of an array of NumPy


class Paths:
    """The folders in which clients may name files. Links that lead out of them are refused."""

    def __init__(self, roots: Sequence[Path]) -> None:
        self.roots = [root.resolve(strict=True) for root in roots]

    def checked(self, text: object) -> Path:
        """Return the path of a file, without links; the file need not exist."""
        if not isinstance(text, str) or "\0" in text:
            raise TypeError(f"a path is text, not {text!r}")
        if len(text) > LONGEST:
            raise ForbiddenError(f"{text} has more than {LONGEST} characters")
        path = Path(text)
        if not path.is_absolute():
            raise ValueError(f"{text} is relative; a service takes whole paths")
        try:
            path = path.resolve()
        except (OSError, RuntimeError) as error:
            raise ForbiddenError(f"{text} cannot be resolved: {error}") from error
        if not any(path.is_relative_to(root) for root in self.roots):
            raise ForbiddenError(f"{text} is in none of the folders that this service may use")
        return path


def job_of(request: Mapping[str, Any], paths: Paths) -> dict[str, Any]:
    """Check the request of a file job; return its job as JSON, with paths that are resolved.

    This takes as long as the disk takes to look the paths up.
    """
    if not isinstance(request, dict):
        raise TypeError("a job is an object of JSON")
    if unknown := sorted(request.keys() - {"inputs", "output", *_PLACES, *_OPTIONS}):
        raise ValueError(f"unknown options: {', '.join(unknown)}")
    inputs = request.get("inputs")
    if not isinstance(inputs, list) or not inputs:
        raise TypeError("inputs is a list of paths")
    if len(inputs) > INPUTS:
        raise TooLargeError(f"a job has at most {INPUTS} inputs, not {len(inputs)}")
    asked = {name: value for name, value in request.items() if value is not None}
    given: dict[str, Any] = {name: asked[name] for name in _OPTIONS if name in asked}
    check(given)
    for name in _PLACES:
        if name in asked:
            given[name] = paths.checked(asked[name])
    files = tuple(paths.checked(path) for path in inputs)
    job = work.to_json(Job.parse(files, paths.checked(request.get("output")), **given))
    work.from_json(job)  # what the ranks read from the store later
    return job


def check(given: dict[str, Any]) -> None:
    """Check the types of options, and names; all else is checked by the job."""
    for name, value in given.items():
        _check_type(name, value)
    op = given.get("op", "sum")
    if not isinstance(op, str):  # a name alone: a client brings no code
        raise TypeError(f"unknown operator {op!r}: its name is text")
    window = given.get("window")
    if not is_fsum(op, window):
        operators.resolve(op)
    elif window is not None:
        limits_of(window)
    strategy, known = given.get("strategy", "auto"), get_args(build.Strategy)
    if strategy not in known:
        raise ValueError(f"unknown strategy {strategy!r}; choose from {', '.join(known)}")
    initial = given.get("initial", 0)
    if not isinstance(initial, int | float | str):
        raise TypeError("initial is a number, or its text")
    if isinstance(initial, float) and not math.isfinite(initial):  # JSON has no such number
        raise ValueError(f"write initial as text: {str(initial)!r}")
    _check_shape(given.get("shape", [1]))


def _check_type(name: str, value: object) -> None:
    """Check the type of an option, and its size: some are computed with, all are stored."""
    if name in _FLAGS and not isinstance(value, bool):
        raise TypeError(f"{name} is true or false, not {value!r}")
    if name in (*_TEXTS, "out") and not isinstance(value, str):
        raise TypeError(f"{name} is text, not {value!r}")
    if isinstance(value, str) and len(value) > LONGEST:
        raise ValueError(f"{name} has more than {LONGEST} characters")
    if name in _NUMBERS:
        if not isinstance(value, int) or isinstance(value, bool):
            raise TypeError(f"{name} is a whole number, not {value!r}")
        if abs(value) > _LARGEST:
            raise ValueError(f"{name} is a whole number of 63 bits at most")


def _check_shape(shape: object) -> None:
    if not isinstance(shape, list) or not all(type(n) is int and n >= 0 for n in shape):
        raise TypeError(f"shape is a list of whole numbers, not {shape!r}")
    if len(shape) > _AXES or math.prod(n or 1 for n in shape) > _LARGEST:
        raise ValueError(f"shape has at most {_AXES} axes, and a product of 63 bits at most")


def scan_of(asked: Mapping[str, str]) -> tuple[dict[str, Any], bool]:
    """Check the options of an array's scan, as they stand in a URL; return them, and ``segments``.

    >>> scan_of({"op": "max", "axis": "1", "reverse": "true"})
    ({'op': 'max', 'axis': 1, 'reverse': True}, False)
    """
    if unknown := sorted(asked.keys() - {"segments", *_OF_ARRAYS}):
        raise ValueError(f"unknown options: {', '.join(unknown)}")
    given: dict[str, Any] = {name: asked[name] for name in _OF_ARRAYS if name in asked}
    for name, text in given.items():
        if name in _FLAGS:
            given[name] = _flag(name, text)
    if "axis" in given:
        given["axis"] = number(given, "axis", 0)
    if "window" in given:
        given["window"] = _window(given["window"])
    check(given)
    return given, _flag("segments", asked.get("segments", "false"))


def _window(text: str) -> list[int]:
    """Read a window, as it stands in a URL.

    >>> _window("-10,11")
    [-10, 11]
    """
    try:
        return [int(limit) for limit in text.split(",")]
    except ValueError:
        raise TypeError(f"window is two whole numbers such as -10,11, not {text!r}") from None


def _flag(name: str, text: str) -> bool:
    if text not in ("true", "false"):
        raise TypeError(f"{name} is true or false, not {text!r}")
    return text == "true"


def size_of(asked: object) -> int:
    """Return the number of bytes that a client asks for."""
    size = asked.get("bytes") if isinstance(asked, dict) else None
    if type(size) is not int or size < 1:
        raise TypeError("a buffer is asked for as {'bytes': N}, at least 1")
    return size


def task_of(asked: object, options: dict[str, Any]) -> Task:
    """Check what a client says of its arrays in buffers; they are not looked for yet."""
    if not isinstance(asked, dict) or asked.keys() - {"x", "out", "segments"}:
        raise TypeError("the arrays in buffers are x, out, and segments")
    found = {name: _place(asked[name]) for name in asked if asked[name] is not None}
    if not found.keys() >= {"x", "out"}:
        raise TypeError("the arrays in buffers are x, out, and segments")
    return Task(found["x"], found["out"], found.get("segments"), options)


def _place(asked: object) -> Place:
    if isinstance(asked, dict) and asked.keys() == {*Place._fields}:
        shape, offset = asked["shape"], asked["offset"]
        numbers = [offset, *shape] if isinstance(shape, list) else [None]
        texts = asked["path"], asked["dtype"]
        if all(type(n) is int and 0 <= n <= _LARGEST for n in numbers) and all(
            isinstance(text, str) for text in texts
        ):
            return Place(texts[0], offset, texts[1], tuple(shape))
    raise TypeError("an array in a buffer is {'path': ..., 'offset': 0, 'dtype': ..., 'shape': []}")


_OF_FORM = ("op", "axis", "exclusive", "initial", "reverse", "window")
_OF_ARRAYS = (*_OF_FORM, "dtype", "out", "strategy")


def number(asked: Mapping[str, str], name: str, default: int) -> int:
    """Return a whole number of a URL."""
    try:
        return int(asked.get(name, default))
    except ValueError:
        raise TypeError(f"{name} is a whole number, not {asked[name]!r}") from None


def seconds(asked: Mapping[str, str], name: str) -> float:
    """Return a number of seconds of a URL; 0 if there is none."""
    try:
        found = float(asked.get(name, "0"))
    except ValueError:
        found = -1.0
    if not 0 <= found < float("inf"):
        raise TypeError(f"{name} is a number of seconds, not {asked[name]!r}")
    return found
