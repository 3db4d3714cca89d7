"""A file format that is not like the others: integers as lines of text. It fills the interface."""

import os
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from distscan.core.errors import InputError, OutputError

_WIDTH = 24  # bytes of a line


@dataclass
class Text:
    """A source and a target: a line with the number of elements, and a line for each."""

    path: Path
    n: int
    dtype = np.dtype("i8")
    fortran = False
    tile = ()

    @property
    def shape(self):
        return (self.n,)

    @property
    def name(self):
        return str(self.path)

    def needs_window(self, *, flattened):
        return False

    def terms(self):
        return {f"the length of {self.path}": self.n}

    @contextmanager
    def reading(self, *, flattened=False, window=0):
        with self.path.open("rb") as file:

            def fill(elements, low):
                lines = os.pread(file.fileno(), elements.size * _WIDTH, (low + 1) * _WIDTH)
                elements[...] = [int(line) for line in lines.split(b"\n")[:-1]]

            yield fill

    def check_shared(self):
        if not self.path.exists():
            raise OutputError(f"{self.path} is not shared")

    @contextmanager
    def writing(self):
        with self.path.open("r+b") as file:
            yield _Put(file.fileno())

    def finish(self, show): ...


@dataclass
class _Put:
    opened: int
    parallel = False

    def __call__(self, elements, index):
        os.pwrite(self.opened, b"".join(map(_line, elements)), (index + 1) * _WIDTH)

    def allocate(self, low, high, threads): ...

    def sync(self):
        os.fsync(self.opened)


def _line(number):
    return b"%*d\n" % (_WIDTH - 1, number)


def inspect(path, kinds="i", member=""):
    """Read the number of elements."""
    try:
        return Text(path, int(path.read_bytes()[:_WIDTH]))
    except (OSError, ValueError) as error:
        raise InputError(f"{path} is no text: {error}") from error


def create(path, layout):
    """Write the number of elements."""
    dtype, shape, *_ = layout
    if dtype != Text.dtype or len(shape) != 1:
        raise OutputError(f"text cannot hold {dtype} of shape {shape}")
    path.write_bytes(_line(shape[0]))
    return Text(path, *shape)


def reopen(path, layout):
    """Return the target of the same number of elements."""
    same = path.read_bytes()[:_WIDTH] == _line(*layout.shape)
    return Text(path, *layout.shape) if same else None
