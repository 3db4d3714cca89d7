"""The steps of a scan, one at a time: both halves of a call on one shard; a known total."""

from unittest.mock import patch

from distscan.core import segments
from distscan.core.form import PLAIN, Extents


def of_size(n, form=PLAIN, **extents):
    """The form of shards of ``n`` elements along the scan."""
    if extents:
        return form._replace(extents=Extents(length=n, **extents))
    return form._replace(extents=form.extents._replace(length=n))


def begin(steps, x, out, heads=None, **options):
    """Begin a scan of segments that start at ``heads``: as a kernel reads them, in scan order."""
    with patch.object(segments, "are_read_in_place", lambda marks, form: True):
        return steps.begin(x, out, heads, **options)


def whole(steps, x, out, offset=None, heads=None):
    """Scan seeded with an offset, else with ``form.seed``; return the call."""
    call = begin(steps, x, out, heads)
    steps.finish(call, steps.form.seed if offset is None else offset)
    return call


class Known:
    """The total of a shard; None where it is empty."""

    head, edges, offset = False, None, None

    def __init__(self, total):
        self.empty, self._total = total is None, total

    def total(self, piece=None):
        return self._total if piece is None else self._total[piece]

    def put(self, piece, offset):
        if offset is not None:
            self._total[piece] = offset
            self.offset = self._total
