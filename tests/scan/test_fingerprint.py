"""The digest of an operator tells those of one name apart, and is the same in each process."""

import functools
import os
import subprocess
import sys
from collections import namedtuple
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

import distscan
from distscan.core.fingerprint import fingerprint
from distscan.options import ScanOptions
from support import same_name

pytestmark = pytest.mark.one_rank


def described(op):
    return ScanOptions.parse(op=op).terms()["the operator"]


def test_operators_of_one_name():
    every = [same_name.FIRST, *same_name.OTHERS.values()]
    for one, other in combinations(every, 2):
        assert described(one) != described(other)
    assert all(described(op).startswith("mine, ") for op in every)
    assert described(same_name.VERSION).startswith("mine, version 2, ")


def test_names_of_one_operator():
    assert described(np.add) == described("sum") == "sum"
    assert described(np.gcd) == described(np.gcd)
    assert ScanOptions.parse(op=np.str_("fsum")).terms()["the operator"] == "fsum"


Pair = namedtuple("Pair", "a b")
TABLE = {"c": [1, {"x", "y", "z"}], "d": np.arange(5)}


class Adds:
    def __init__(self, more):
        self.more, self.me = more, self

    def __call__(self, a, b):
        return a + b + self.more


def looks_up(a, b):
    def inner(x):
        return x + TABLE["c"][0]

    return inner(a) + b


VALUES = [
    looks_up,
    functools.partial(looks_up, b=3),
    functools.partial(looks_up, b=4),
    Adds(1),
    Adds(2),
    Adds(1).__call__,
    np.vectorize(looks_up),
    np.vectorize(lambda a, b: a),
    functools.lru_cache(looks_up),
    np.logaddexp2,
    np.union1d,
    [1, 1.0, True, "1", b"1", None, 1j],
    {"b": 1, "a": {3, "4"}},
    Pair(1, "x"),
    np.float32(0.1),
    np.array([1, "a", None], object),
    np.zeros(3, ">i4"),
    np.zeros(3, "<i4"),
    np.dtype([("a", "f4")]),
    Path("a"),
    np.random.default_rng(3),
    (lambda: (yield)),
    os,
]


def prints():
    return [fingerprint({"it": value}) for value in VALUES]


def test_values():
    assert len(set(prints())) == len(VALUES)
    assert prints() == prints()


def test_another_process():
    """Python's own hashes differ there, and so do all addresses."""
    code = "import scan.test_fingerprint as t; print(*t.prints())"
    environment = os.environ | {"PYTHONHASHSEED": "7", "PYTHONPATH": str(Path(__file__).parents[1])}
    run = subprocess.run([sys.executable, "-c", code], env=environment, text=True, timeout=60,
                         capture_output=True, check=True)  # fmt: skip
    assert run.stdout.split() == prints()


def test_what_cannot_be_digested():
    """It counts by its kind: ``version`` tells such operators apart."""
    cells = [iter([1]), iter([1, 2])]
    one, other = (distscan.Operator("o", lambda a, b, c=cell: a, identity=0) for cell in cells)
    assert described(one) != described(other)  # pickle takes these apart
    file = Path(__file__)
    with file.open() as first, file.open("rb", 0) as second:
        assert fingerprint({"it": first}) == fingerprint({"it": first})
        assert fingerprint({"it": first}) != fingerprint({"it": second})


@pytest.mark.parametrize("version", [1, b"1"])
def test_versions_are_text(version):
    with pytest.raises(TypeError, match="version= must be text"):
        distscan.Operator("o", np.add, version=version)
