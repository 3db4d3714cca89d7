"""Both halves of a call on one shard, with nothing of other ranks between them."""

from dataclasses import replace
from unittest.mock import patch

from distscan.core import segments
from distscan.core.extents import Extents
from distscan.core.form import PLAIN


def of_size(n, form=PLAIN, **extents):
    """The form of shards of ``n`` elements along the scan."""
    if extents:
        return replace(form, extents=Extents(n=n, **extents))
    return replace(form, extents=replace(form.extents, n=n))


def begin(steps, x, out, heads=None, **options):
    """Begin a scan of segments that start at ``heads``: as a kernel reads them, in scan order."""
    with (
        patch.object(segments, "heads", lambda marks, buffer, reverse: marks),
        patch.object(segments, "needs_no_buffer", lambda marks, reverse: True),
    ):
        return steps.begin(x, out, heads, **options)


def whole(steps, x, out, offset=None, heads=None):
    """Scan behind an offset; return the call, whose total may be asked for."""
    call = begin(steps, x, out, heads)
    steps.finish(call, offset)
    return call
