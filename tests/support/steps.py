"""Both halves of a call on one shard, with nothing of other ranks between them."""

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
