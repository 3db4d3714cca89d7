"""Every rank raises, or none does."""

import pytest


def everywhere(comm, kind, message, call):
    """The call raises the same exception on every rank; return its text."""
    with pytest.raises(kind, match=message) as caught:
        call()
    texts = comm.allgather((type(caught.value).__name__, str(caught.value)))
    assert len(set(texts)) == 1
    return texts[0][1]
