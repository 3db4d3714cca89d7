"""Every form of a scan, and the same scan by a plan."""

import itertools

import numpy as np
import pytest

import distscan

FORMS = [
    {"exclusive": exclusive, "initial": initial, "reverse": reverse}
    for exclusive, initial, reverse in itertools.product((False, True), (None, 3), (False, True))
]
forms = pytest.mark.parametrize("form", FORMS)


def planned(x, op, out=None, *, comm=None, **options):
    """The same scan by a plan."""
    given = x.shape, x.dtype, op
    backend = "cpu" if isinstance(x, np.ndarray) else "cuda"
    return distscan.Plan(comm, *given, backend=backend, **options)(x, out)
