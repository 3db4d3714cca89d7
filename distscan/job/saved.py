"""Arrays as text in JSON, to the last bit: for the files of ``--state`` and ``--resume``."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core import dtypes
from ..core.errors import InputError
from ..core.steps import Edges
from . import files
from .carry import Carry
from .naming import naming_output


def write(path: Path, contents: dict[str, Any]) -> None:
    """Replace a file: it has the old contents or the new ones, also after a crash."""
    import json  # noqa: PLC0415 - few jobs save anything

    # A name that nobody can predict: no link is there. ``output.journals`` finds it.
    new = path.with_name(f"{path.name}.{os.urandom(4).hex()}.new")
    with naming_output(path):
        try:
            with new.open("x") as file:
                json.dump(contents, file)
                file.flush()
                os.fsync(file.fileno())
            new.replace(path)
        except BaseException:
            new.unlink(missing_ok=True)
            raise


def read(path: Path) -> dict[str, Any] | None:
    """Return the contents of a file; None if there is none. Raises ValueError for any other."""
    import json  # noqa: PLC0415

    if not os.path.lexists(path):
        return None
    try:
        with files.opened(path) as stream:
            if stream.peek(1)[:1] not in (b"{", b""):  # it may be a large file of another kind
                raise ValueError("it is no JSON")
            found = json.loads(stream.read())
    except InputError:
        raise
    except ValueError as error:
        raise ValueError(f"cannot read {path}: {error}") from error
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise ValueError(f"{path} was not written by this version of distscan")
    if not isinstance(found.get("terms"), dict):
        raise ValueError(f"{path} is damaged: it has no terms")
    return found


@contextmanager
def decoding(path: Path) -> Iterator[None]:
    """Turn what goes wrong with the contents of a file into a ValueError that names it."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"{path} is damaged: {type(error).__name__}: {error}") from error


FORMAT = 1


def check(path: Path, found: dict[str, Any], terms: dict[str, Any], remedy: str) -> None:
    """Raise ValueError, with ``remedy``, if a file was written under other ``terms``."""
    import json  # noqa: PLC0415

    for name, value in json.loads(json.dumps(terms)).items():
        before = found["terms"].get(name)
        if before != value:
            raise ValueError(f"{path} was written for another job: {name} was {before}, and is "
                             f"{value}; {remedy}")  # fmt: skip


def of_array(array: Any) -> list[Any] | None:
    """Return an array in a form that JSON has.

    >>> of_array(np.array([1, 2], "<i2"))
    ['int16', [2], 'AQACAA==']
    """
    if array is None:
        return None
    from base64 import b64encode  # noqa: PLC0415

    array = np.asarray(array)
    return [
        dtypes.to_json(array.dtype),
        list(array.shape),
        b64encode(array.tobytes()).decode(),
    ]


def to_array(text: list[Any] | None) -> NDArray[Any] | None:
    """Return the array that ``of_array`` has described.

    >>> to_array(["int16", [2], "AQACAA=="])
    array([1, 2], dtype=int16)
    """
    if text is None:
        return None
    from base64 import b64decode  # noqa: PLC0415

    descr, shape, data = text
    dtype = dtypes.of_json(descr)
    return np.frombuffer(b64decode(data, validate=True), dtype).reshape(shape).copy()


def of_carry(carry: Carry) -> dict[str, Any]:
    """Return the running value of a shard in a form that JSON has."""
    edges = None if carry.edges is None else [of_array(edge) for edge in carry.edges]
    return {
        "value": of_array(carry.value),
        "edges": edges,
        "head": bool(carry.head),
        "empty": bool(carry.empty),
    }


def to_carry(saved: dict[str, Any], carry: Carry) -> None:
    """Give ``carry`` the running value that ``of_carry`` has described.

    Raises ValueError if it is of another type: of exact sums, the window and the kernels decide.
    """
    edges, value = saved["edges"], to_array(saved["value"])
    if value is not None and value.dtype != carry.dtype:
        raise ValueError("the journal is of a job with other kernels; without --resume, it begins "
                         "anew")  # fmt: skip
    if edges is not None:
        enters, leaves = (to_array(edge) for edge in edges)
        edges = Edges(enters[()], leaves[()])  # type: ignore[index]
    carry.start(value, edges)
    carry.head, carry.empty = saved["head"], saved["empty"]
