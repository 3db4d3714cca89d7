"""The files of ``--state`` and ``--resume``: JSON behind a digest, arrays in it to the last bit."""

import os
import re
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

FORMAT = 2
_HEAD = '{{"format": {}, "digest": "{}", "contents": '
_DIGEST = 32  # bytes
_HEAD_SIZE = len(_HEAD.format(FORMAT, "0" * 2 * _DIGEST))


def seal(contents: dict[str, Any]) -> str:
    """Return the text of a file: ``contents`` as JSON, behind a digest of all of them."""
    import json  # noqa: PLC0415 - few jobs save anything

    text = json.dumps(contents)
    return f"{_HEAD.format(FORMAT, _digest(text.encode()))}{text}}}"


def _digest(text: bytes) -> str:
    from hashlib import blake2b  # noqa: PLC0415 - it takes 3 ms

    return blake2b(text, digest_size=_DIGEST).hexdigest()


def write(path: Path, contents: dict[str, Any]) -> None:
    """Replace a file: it has the old contents or the new ones, also after a crash."""
    # A name that nobody can predict: no link is there. ``output.journals`` finds it.
    new = path.with_name(f"{path.name}.{os.urandom(4).hex()}.new")
    with naming_output(path):
        try:
            with new.open("x") as file:
                file.write(seal(contents))
                file.flush()
                os.fsync(file.fileno())
            new.replace(path)
        except BaseException:
            new.unlink(missing_ok=True)
            raise


def read(path: Path, remedy: str) -> dict[str, Any] | None:
    """Return the contents of a file; None if there is none.

    Raises ValueError, with ``remedy``, if the file is not as ``seal`` has made it. Its contents are
    parsed after its digest is compared.
    """
    import json  # noqa: PLC0415

    if not os.path.lexists(path):
        return None
    with decoding(path, remedy), files.opened(path) as stream:
        head = stream.read(_HEAD_SIZE)  # the file may be a large one of another kind
        version = re.match(rb'{"format": (\d+)', head)
        if version is None or int(version[1]) != FORMAT:
            raise ValueError("it was not written by this version of distscan")
        text = stream.read()
        if head.decode() != _HEAD.format(FORMAT, _digest(text[:-1])) or text[-1:] != b"}":
            raise ValueError("its digest is of other contents")
        contents = json.loads(text[:-1])
        if not isinstance(contents["terms"], dict):
            raise ValueError("it has no terms")
        found: dict[str, Any] = contents
        return found


@contextmanager
def decoding(path: Path, remedy: str) -> Iterator[None]:
    """Turn all that goes wrong with the contents of a file into a ValueError that names it."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # of JSON, of types, of memory: a file may hold anything
        reason = str(error) if type(error) is ValueError else f"{type(error).__name__}: {error}"
        raise ValueError(f"{path} cannot be used: {reason}; {remedy}") from error


def check(path: Path, found: dict[str, Any], terms: dict[str, Any], remedy: str) -> None:
    """Raise ValueError, with ``remedy``, if a file was written under other ``terms``."""
    import json  # noqa: PLC0415

    before, now = found["terms"], json.loads(json.dumps(terms))
    for name in [*now, *before]:
        if before.get(name) != now.get(name):
            raise ValueError(f"{path} was written for another job: {name} was {before.get(name)}, "
                             f"and is {now.get(name)}; {remedy}")  # fmt: skip


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
    """Give ``carry`` the running value that ``of_carry`` has described; raise if it is no such."""
    edges, value = saved["edges"], to_array(saved["value"])
    if value is not None and value.dtype != carry.dtype:
        raise ValueError(f"its running value is {value.dtype}, and not {carry.dtype}")
    if edges is not None:
        enters, leaves = (to_array(edge) for edge in edges)
        edges = Edges(enters[()], leaves[()])  # type: ignore[index]
    carry.start(value, edges)
    carry.head, carry.empty = bool(saved["head"]), bool(saved["empty"])
