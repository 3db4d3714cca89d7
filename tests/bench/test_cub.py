"""CUB as the benchmark compiles it, where there is an nvcc. Needs no GPU."""

import numpy as np
import pytest

from distscan.bench import cub
from distscan.bench.case import Case
from distscan.core.operators import BUILTIN
from support.seed import drawn

pytestmark = pytest.mark.one_rank


@pytest.fixture
def nvcc():
    try:
        return cub.cccl()
    except ImportError as error:
        pytest.skip(str(error))


def case(x="f4", out=None, op="sum"):
    return Case(BUILTIN[op], np.dtype(x), np.dtype(out or x), 1 << 10, 1)


# What is compiled, for which case, and the functions in it.
PARTS = [
    ("SCAN", case(), ["scan"]),
    ("SCAN", case("i1", "i8", "max"), ["scan"]),
    ("RUN_TO_RUN", case("f8"), ["keep_pool", "scan_run_to_run"]),
    ("BY_HAND", case("i4"), ["reduce", "scan_behind"]),
    ("BY_KEY", case(), ["sum_by_key"]),
    ("FLAGGED", case(), ["flagged"]),
]


@pytest.mark.compile
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("part", "given", "entries"), drawn(PARTS, 3))
def test_compiles(part, given, entries, nvcc):
    if part == "RUN_TO_RUN" and nvcc < (3, 5, 0):
        pytest.skip("this CUB has no deterministic scan")
    library = cub.compiled(part, given, "90")
    for entry in entries:
        assert getattr(library, entry).__name__ == entry
    with pytest.raises(AttributeError):
        _ = library.nothing
