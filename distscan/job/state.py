"""``--state``: the running value at the end of a job, for the job that scans what comes next.

The value is the total of all elements so far, without ``--initial``, which is combined with it
again in each job. It is used as the total of a rank before the first one.
"""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..core import dtypes
from ..core.digest import digest
from ..core.steps import Edges
from . import saved
from .chunks import Block


class State(NamedTuple):
    """A running value, and the last key: nothing before the first job."""

    value: NDArray[Any] | None = None  # 0-d or [inner]
    key: Any = None  # with segments: the last key, or a flag in its place

    def digest(self) -> str:
        """Return a short text that tells states apart."""
        value = None if self.value is None else self.value.tolist()
        return f"{digest(repr((value, self.key)).encode()):016x}"

    def of(self, block: Block) -> tuple[NDArray[Any] | None, Edges | None]:
        """Return the value and the edges before a block, as ``Carry.start`` takes them."""
        value = self.value
        if value is not None and value.ndim > 0:
            value = value[block.column : block.column + block.width]
            if block.width == 1:  # a column is scanned as an array of one axis
                value = value.reshape(())
        return value, None if self.key is None else Edges(self.key, self.key)


def load(path: Path, terms: dict[str, Any], dtype: np.dtype[Any], shape: tuple[int, ...]) -> State:
    """Return the state in a file, whose value has a type and a shape; an empty one without a file.

    Raises ValueError if it is the state of another scan, or damaged.
    """
    remedy = "name another file, or remove it to begin anew"
    found = saved.read(path, remedy)
    if found is None:
        return State()
    saved.check(path, found, terms, remedy)
    with saved.decoding(path, remedy):
        value, key = saved.to_array(found["value"]), saved.to_array(found["key"])
        if value is not None:
            if (value.dtype.kind, value.shape) != (dtype.kind, shape):
                raise ValueError(f"its value is {value.dtype} of shape {value.shape}")
            value = dtypes.cast(value, dtype)  # CPUs and GPUs accumulate float32 differently
        return State(value, None if key is None else key[()])


def text(terms: dict[str, Any], state: State) -> str:
    """Return the contents of a file with a state."""
    value = None if state.value is None else np.asarray(state.value)
    contents = {"value": saved.of_array(value), "key": saved.of_array(state.key)}
    return saved.seal({"terms": terms} | contents)
