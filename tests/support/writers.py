"""What happens to a job's result on its way to the file: elements are spoilt, or writes fail."""

import ctypes
import errno
import os
from contextlib import contextmanager

from distscan.job.formats import storage


def spoil(monkeypatch, change):
    """Every write passes through ``change(elements, index)``, which returns what is written.

    The elements are a copy; ``index`` is that of the first one in the file. Threads that write
    call it, perhaps several at once.
    """
    _replace(monkeypatch, lambda writer: _Spoilt(writer, change))


def full_after(turn):
    """A change of ``spoil``: a disk that is full before write number ``turn``."""
    room = iter(range(turn))

    def change(elements, index):
        if next(room, None) is None:
            raise OSError(errno.ENOSPC, "no more")
        return elements

    return change


def refuse(monkeypatch, step, number):
    """The system refuses each "write", or the "fsync" after the last, with the error ``number``."""
    if step == "fsync":
        _replace(monkeypatch, lambda writer: _Unsynced(writer, monkeypatch, raises(number)))
        return
    madvise = storage._madvise

    def populate(address, *arguments):
        if address is None:  # asks whether pages can be allocated at all
            return madvise(address, *arguments)
        ctypes.set_errno(number)
        return -1

    monkeypatch.setattr(os, "pwrite", raises(number))
    monkeypatch.setattr(storage, "_madvise", populate)


def raises(number):
    """A function that raises the error of a number, whatever its arguments."""

    def fail(*_, **__):
        raise OSError(number, os.strerror(number))

    return fail


def _replace(monkeypatch, wrap):
    """Jobs write by ``wrap(writer)``."""
    writing = storage.writing

    @contextmanager
    def wrapped(file, *, mapped):
        with writing(file, mapped=mapped) as writer:
            yield wrap(writer)

    monkeypatch.setattr(storage, "writing", wrapped)


class _Wrapped:
    def __init__(self, writer):
        self._writer = writer

    def __call__(self, elements, index):
        self._writer(elements, index)

    def __getattr__(self, name):
        return getattr(self._writer, name)


class _Spoilt(_Wrapped):
    def __init__(self, writer, change):
        super().__init__(writer)
        self._change = change

    def __call__(self, elements, index):
        self._writer(self._change(elements.copy(), index), index)


class _Unsynced(_Wrapped):
    def __init__(self, writer, monkeypatch, fail):
        super().__init__(writer)
        self._monkeypatch, self._fail = monkeypatch, fail

    def sync(self):
        with self._monkeypatch.context() as patch:
            patch.setattr(os, "fsync", self._fail)
            self._writer.sync()
