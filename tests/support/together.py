"""What all ranks do or see alike."""

import os

import pytest


def everywhere(comm, kind, message, call):
    """The call raises the same exception on every rank; return its text."""
    with pytest.raises(kind, match=message) as caught:
        call()
    texts = comm.allgather((type(caught.value).__name__, str(caught.value)))
    assert len(set(texts)) == 1
    return texts[0][1]


def left(comm, folder):
    """What is in a folder that all ranks share."""
    comm.Barrier()
    names = sorted(os.listdir(folder))
    comm.Barrier()
    return names
