"""The examples in the docstrings run."""

import doctest
import importlib
import pkgutil

import numpy as np
import pytest

import distscan

MODULES = ["distscan", *(m.name for m in pkgutil.walk_packages(distscan.__path__, "distscan."))]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name, comm):
    if comm.size > 1:
        pytest.skip("the examples show what one rank sees")
    if name.startswith("distscan.cuda."):
        pytest.importorskip("cupy")
    module = importlib.import_module(name)
    with np.printoptions(legacy=False):
        assert doctest.testmod(module, optionflags=doctest.ELLIPSIS).failed == 0


def test_there_are_examples():
    finder = doctest.DocTestFinder(exclude_empty=True)
    found = [t for name in ("distscan", "distscan.aliases", "distscan.scan") for t in
             finder.find(importlib.import_module(name)) if t.examples]  # fmt: skip
    assert len(found) >= 6
    assert {"distscan.core.form", "distscan.cuda.policy", "distscan.mpi.exscan"} < {*MODULES}
