"""Both halves of a call on one shard, with nothing of other ranks between them."""

from unittest.mock import patch

from distscan.core import segments


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
