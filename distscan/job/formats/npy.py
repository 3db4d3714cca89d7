"""The format ``.npy``, an ``interface.Format``."""

import math
import os
import re
import threading
import warnings
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.lib import format

from ...core.errors import InputError, OutputError
from . import files
from .files import File
from .interface import NUMBERS, Layout, Url, naming_input, option, unlinked

#: One thread at a time lets NumPy parse a header: before 3.11.8 and 3.12.2, Python may raise
#: SystemError if two do.
_PARSING = threading.Lock()
_LONGEST = 1 << 17  # bytes of a header: Python 3.10 crashes if it parses longer ones of some kinds
_ODD_ESCAPE = re.compile(rb"(?<!\\)(?:\\\\)*\\[\x80-\xff]")


def inspect(path: Path, kinds: str = NUMBERS, member: str = "") -> File:
    """Read the header of a ``.npy`` file, version 1 to 3, and check that its data is complete.

    ``kinds`` are those of NumPy's types that it may hold. Raises
    ``InputError`` if the file is missing, pickled, truncated, or not a ``.npy`` file.
    """
    with files.opened(path) as stream, naming_input(path):
        stamp = files.stamp_of(stream)
        shape, fortran, dtype = header_at(stream, path)
        file = File(path, dtype, shape, stream.tell(), stamp, fortran)
    files.check(file, kinds)
    check_size(file, stamp.size)
    return file


def header_at(stream: BinaryIO, path: Path | Url) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Return the shape, whether axis 0 varies fastest of several, and the type.

    Goes to the first element. Raises ``InputError`` if there is no header.
    """
    try:
        shape, fortran, dtype = read_header(stream)
    except OSError:
        raise
    except Exception as error:  # NumPy's parser raises many types for a wrong header
        reason = files.other_format(stream) or (
            f"{str(error).splitlines()[0].rstrip('.')}; write it by numpy.save; a file "
            f"without a header needs {option('raw', '--dtype T', 'T')}"
        )
        raise InputError(f"{path} is not a .npy file: {reason}") from None
    return shape, bool(fortran) and len(shape) > 1, dtype


def check_size(file: files.Header, size: int) -> None:
    """Raise ``InputError`` if there are fewer bytes than the header says."""
    end = file.start + math.prod(file.shape) * file.dtype.itemsize
    if size < end:
        raise InputError(f"{file.path} is truncated: {size} of {end} bytes; write it again")


def read_header(stream: BinaryIO) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Return the shape, whether the order is Fortran's, and the type; go to the first element.

    Raises any exception if this is no header.
    """
    with _PARSING, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # NumPy warns of headers that Python 2 wrote
        return _parse(stream)


def _parse(stream: BinaryIO) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Let NumPy parse a header.

    NumPy has a public function for versions 1 and 2. Version 3 is version 2 with UTF-8 instead of
    Latin-1: what Latin-1 lacks becomes escapes of a Python string, which the header consists of.
    """
    version = format.read_magic(stream)
    if version == (1, 0):
        return format.read_array_header_1_0(stream, max_header_size=_LONGEST)
    if version not in ((2, 0), (3, 0)):
        raise ValueError(f"version {version[0]}.{version[1]} is unknown; 1.0, 2.0 and 3.0 exist")
    length = int.from_bytes(stream.read(4), "little")
    if length > _LONGEST:
        raise ValueError(f"its header has {length} bytes, more than {_LONGEST}")
    text = stream.read(length)
    if len(text) < length:
        raise ValueError("its header is cut off")
    if version == (3, 0):
        if _ODD_ESCAPE.search(text):
            raise ValueError("its header has a backslash before a letter beyond ASCII")
        text = text.decode("utf-8").encode("ascii", "backslashreplace")
    header = len(text).to_bytes(4, "little") + text
    return format.read_array_header_2_0(BytesIO(header), max_header_size=len(text))


def create(path: Path, layout: Layout) -> File:
    """Write the header, and give the file its whole size."""
    file, header = _file(path, layout)
    with open(path, "wb", opener=unlinked) as stream:
        stream.write(header)
        stream.truncate(file.end)
        os.fsync(stream.fileno())  # other hosts will write into the file's first page
    return file


def reopen(path: Path, layout: Layout) -> File | None:
    """Return the file that ``create`` has made, if this is one of the same header and size."""
    file, header = _file(path, layout)
    with open(path, "rb", opener=unlinked) as stream:
        size = os.fstat(stream.fileno()).st_size
        return file if size == file.end and stream.read(len(header)) == header else None


def _file(path: Path, layout: Layout) -> tuple[File, bytes]:
    """Return the file of an array, and its header."""
    dtype, shape, fortran, *_ = layout
    header = header_of(dtype, shape, fortran=fortran)
    return File(path, dtype, shape, len(header), fortran=fortran), header


def header_of(dtype: np.dtype[Any], shape: tuple[int, ...], *, fortran: bool = False) -> bytes:
    """Return the header of a file of such elements; raise ``OutputError`` if there is none."""
    try:
        descr = format.dtype_to_descr(dtype)
        holds = dtype.kind in NUMBERS or (dtype.names and format.descr_to_dtype(descr) == dtype)
    except ValueError:  # fields overlap, or are in another order than their names
        holds = False
    if not holds:
        raise OutputError(f"a .npy file cannot hold {dtype}")
    header = _encode_header(descr, shape, fortran=fortran)
    if len(header) > _LONGEST:
        raise OutputError(f"a .npy file cannot hold {str(dtype)[:100]}...: its names are too long")
    return header


def _encode_header(descr: Any, shape: tuple[int, ...], *, fortran: bool) -> bytes:
    """Return a header of the lowest version that can hold it, as NumPy does."""
    terms = {"descr": descr, "fortran_order": fortran, "shape": shape}
    for write in (format.write_array_header_1_0, format.write_array_header_2_0):
        stream = BytesIO()
        with suppress(ValueError):  # it is too long, or has letters that Latin-1 lacks
            write(stream, terms)
            return stream.getvalue()
    text = repr(terms).encode("utf-8")  # NumPy has no public function for version 3
    text += b" " * (-(format.MAGIC_LEN + 4 + len(text) + 1) % format.ARRAY_ALIGN) + b"\n"
    return format.magic(3, 0) + len(text).to_bytes(4, "little") + text
