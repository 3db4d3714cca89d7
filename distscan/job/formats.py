"""The file formats, by the ends of files' names."""

from pathlib import Path

from . import npy
from .interface import Format

_FORMATS: dict[str, Format] = {".npy": npy}


def of(path: Path) -> Format:
    """Return the format of a file; that of any other name is ``.npy``."""
    return _FORMATS.get(path.suffix, npy)
