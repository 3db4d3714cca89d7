"""Arrays in buffers of a service, without the service."""

import os

from distscan.service.arrays import Buffer, Place


def put(path, x):
    """Put an array into a new buffer; return the buffer, which the caller closes, and its place."""
    buffer = Buffer(path, x.nbytes)
    os.pwrite(buffer.file, x.tobytes(), 0)
    return buffer, Place(str(path), 0, str(x.dtype), x.shape)
