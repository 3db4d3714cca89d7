"""The checks of the arguments of a plan and of its calls."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from .build import CompiledScan
from .core import arrays, dtypes


class Expected(NamedTuple):
    """The arrays that the calls of a plan expect."""

    plan: CompiledScan
    shape: tuple[int, ...]  # of x
    size: int
    array: type  # numpy.ndarray or cupy.ndarray
    gpu: int | None
    flags: np.dtype[Any] | None  # the type of segments; None: calls pass none

    @property
    def out_shape(self) -> tuple[int, ...]:
        """The shape of the result."""
        return self.plan.form.extents.result_shape

    def check(self, x: Any, out: Any, segments: Any) -> tuple[Any, Any, Any, Any]:
        """Return flat views of ``x``, ``out`` and ``segments``, and the array that a call returns.

        Raises TypeError and ValueError.
        """
        types = self.plan.types
        shard = self._checked("x", x, self.shape, types.x)
        if out is None:
            target = self.plan.steps.empty()
            out = target.reshape(self.out_shape)
        else:
            target = self._checked("out", out, self.out_shape, types.out)
            if self.gpu is None and not target.flags.writeable:
                raise ValueError("out is read-only")
            if arrays.overlap(shard, target):
                raise ValueError("out overlaps x; it may be x itself, or apart from it")
        return shard, target, self._segments(segments, target), out

    def _segments(self, segments: Any, target: Any) -> Any:
        if self.flags is None:
            if segments is not None:
                raise TypeError("the plan was made without segments=")
            return None
        if segments is None:
            raise TypeError(f"the plan is for segments of type {self.flags}; none are given")
        flags = self._checked("segments", segments, (self.size,), self.flags)
        if arrays.overlap(flags, target, in_place=flags.dtype == np.bool_):
            raise ValueError("out overlaps segments")
        return flags

    def _checked(self, name: str, array: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        """Return a flat view of an array; raise if its type, shape or device is not the plan's."""
        if type(array) is not self.array:
            if not isinstance(array, self.array):
                wanted = f"{self.array.__module__.split('.')[0]}.{self.array.__name__}"
                raise TypeError(f"{name} is a {type(array).__name__}; the plan is for a {wanted}")
            array = arrays.as_native(array)
        if array.shape != shape:
            whose = "the result has" if name == "out" else "the plan is for"
            raise ValueError(f"{name} has shape {array.shape}; {whose} {shape}")
        if array.dtype != dtype:
            raise TypeError(f"{name} is {array.dtype}; the plan is for {dtype}")
        if not array.flags.c_contiguous:
            raise ValueError(f"{name} is not contiguous")
        if self.gpu is not None and array.data.device_id != self.gpu:
            raise ValueError(f"{name} is on GPU {arrays.gpu(array)}; the plan is for {self.gpu}")
        return array if array.ndim == 1 else array.reshape(-1)


def segments_type(segments: DTypeLike | bool | None) -> np.dtype[Any] | None:
    """Return the type of the flags or keys that each call passes; None if it passes none."""
    if segments is None or segments is False:
        return None
    return np.dtype(np.bool_) if segments is True else dtypes.parse(segments)
