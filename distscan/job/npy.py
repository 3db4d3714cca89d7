"""The format ``.npy``: see ``interface.Format``."""

import os
import threading
import warnings
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format

from ..core.errors import InputError, OutputError
from . import files
from .files import File
from .interface import NUMBERS
from .naming import naming_input

#: Held by whoever lets NumPy read a header: before 3.11.8 and 3.12.2, Python may raise SystemError
#: if two threads parse at once.
PARSING = threading.Lock()


def inspect(path: Path, kinds: str = NUMBERS) -> File:
    """Read the header of a ``.npy`` file, version 1 to 3, and check that its data is complete.

    ``kinds`` are those of NumPy's types that it may hold. Raises
    ``InputError`` if the file is missing, pickled, truncated, or not a ``.npy`` file.
    """
    with files.opened(path) as stream, naming_input(path):
        stamp = files.stamp_of(stream)
        try:
            version = format.read_magic(stream)
            # Version 3 differs from 2 only in the encoding of field names; inputs have no fields.
            read = (
                format.read_array_header_1_0 if version == (1, 0) else format.read_array_header_2_0
            )
            with PARSING, warnings.catch_warnings():
                warnings.simplefilter("ignore")  # NumPy warns of headers that Python 2 wrote
                shape, fortran, dtype = read(stream)
        except OSError:
            raise
        except Exception as error:  # NumPy's parser raises many types for a wrong header
            reason = str(error).split("\n")[0].rstrip(".")
            raise InputError(f"{path} is not a .npy file: {reason}") from error
        fortran = bool(fortran) and len(shape) > 1
        file = File(path, dtype, shape, stream.tell(), stamp, fortran)
    files.check(file, kinds)
    if stamp.size < file.end:
        raise InputError(f"{path} is truncated: {stamp.size} of {file.end} bytes")
    return file


def create(path: Path, dtype: np.dtype[Any], shape: tuple[int, ...], *, fortran: bool) -> File:
    """Write the header, and give the file its whole size."""
    if dtype.kind not in NUMBERS and not dtype.names:
        raise OutputError(f"a .npy file cannot hold {dtype}")
    header = _header(dtype, shape, fortran=fortran)
    file = File(path, dtype, shape, len(header), fortran=fortran)
    with path.open("wb") as stream:
        stream.write(header)
        stream.truncate(file.end)
        os.fsync(stream.fileno())  # other hosts will write into the file's first page
    return file


def reopen(
    path: Path, dtype: np.dtype[Any], shape: tuple[int, ...], *, fortran: bool
) -> File | None:
    """Return the file that ``create`` has made, if this is one of the same header and size."""
    header = _header(dtype, shape, fortran=fortran)
    file = File(path, dtype, shape, len(header), fortran=fortran)
    with path.open("rb") as stream:
        size = os.fstat(stream.fileno()).st_size
        return file if size == file.end and stream.read(len(header)) == header else None


def _header(dtype: np.dtype[Any], shape: tuple[int, ...], *, fortran: bool) -> bytes:
    stream = BytesIO()
    text = {"descr": format.dtype_to_descr(dtype), "fortran_order": fortran, "shape": shape}
    format.write_array_header_1_0(stream, text)
    return stream.getvalue()
