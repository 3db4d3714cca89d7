"""The maps h -> a h + b, whose scans solve linear recurrences (Blelloch, 1990)."""

from typing import Any

import numpy as np

from .operators import Operator


def _then(earlier: Any, later: Any) -> Any:
    """Compose the maps h -> a h + b: first ``earlier``, then ``later``."""
    return later[0] * earlier[0], later[0] * earlier[1] + later[1]


def _then_in_segments(earlier: Any, later: Any) -> Any:
    """Compose maps that also say whether a segment begins: the state before it is 0."""
    begins = later[2]
    before = [np.where(begins, each.dtype.type(0), each) for each in earlier[:2]]
    return *_then(before, later), earlier[2] | begins


MAPS = Operator(
    "linear_recurrence", _then, "{b.x0 * a.x0, b.x0 * a.x1 + b.x1}", identity=(1, 0), arity=2
)
#: Of columns: segments begin where x2 is True. The state before a segment is 0.
MAPS_IN_SEGMENTS = Operator(
    "linear_recurrence in segments",
    _then_in_segments,
    """const T before = b.x2 ? T{} : a;
    return T{b.x0 * before.x0, b.x0 * before.x1 + b.x1, before.x2 || b.x2};""",
    identity=(1, 0, False),
    arity=3,
)
