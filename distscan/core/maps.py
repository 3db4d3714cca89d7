"""The maps h -> a h + b, whose scans solve linear recurrences (Blelloch, 1990)."""

from typing import Any

import numpy as np

from .operators import Operator


def _then(earlier: Any, later: Any) -> Any:
    """Compose the maps h -> a h + b: first ``earlier``, then ``later``."""
    return later[0] * earlier[0], later[0] * earlier[1] + later[1]


def _then_in_segments(earlier: Any, later: Any) -> Any:
    """Compose maps that also say whether a segment begins: nothing before it counts."""
    begins = later[2]
    composed = zip(later[:2], _then(earlier, later), strict=True)
    return *(np.where(begins, own, both) for own, both in composed), earlier[2] | begins


MAPS = Operator(
    "linear_recurrence", _then, "{b.x0 * a.x0, b.x0 * a.x1 + b.x1}", identity=(1, 0), arity=2
)
#: Of columns: segments begin where x2 is True. Nothing comes before them.
MAPS_IN_SEGMENTS = Operator(
    "linear_recurrence in segments",
    _then_in_segments,
    "b.x2 ? b : T{b.x0 * a.x0, b.x0 * a.x1 + b.x1, a.x2}",
    identity=(1, 0, False),
    arity=3,
)
