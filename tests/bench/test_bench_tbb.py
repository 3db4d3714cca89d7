"""oneTBB's scan in the benchmark: compiled where oneTBB is, and missing where it is not."""

import numpy as np
import pytest

from distscan.bench import contenders, suite
from distscan.bench.case import Case
from distscan.bench.contenders import CONTENDERS
from distscan.bench.timing import Host
from distscan.core.operators import BUILTIN

pytestmark = pytest.mark.one_rank
(TBB,) = (contender for contender in CONTENDERS if contender.name == "tbb")


@pytest.fixture(autouse=True)
def _compiled_anew():
    contenders._compiled_tbb.cache_clear()
    yield
    contenders._compiled_tbb.cache_clear()


@pytest.mark.parametrize("threads", [1, 2])
def test_scan(threads, comm):
    try:
        assert contenders.tbb_version()
    except ImportError as error:
        pytest.skip(str(error))
    host, floats = Host("a chip"), np.dtype("f8")
    host.cache = 1 << 12
    case = Case(BUILTIN["sum"], floats, floats, 1 << 18, 1, threads=threads)
    (row,) = suite.measure(comm, host, [TBB], case, 11)
    assert row.status == "timed", row


@pytest.mark.parametrize(
    ("text", "said"),
    [("#include <oneapi/tbb/no_such_header.h>\n", "not installed"), ("x\n", "error"), (None, "no")],
    ids=["header", "fault", "compiler"],
)
def test_what_cannot_be_compiled_is_missing(text, said, tmp_path, monkeypatch):
    source = tmp_path / "tbb.cpp"
    source.write_text(text or "")
    monkeypatch.setattr(contenders, "_TBB_SOURCE", source)
    if text is None:
        monkeypatch.setenv("CXX", str(tmp_path / "no_compiler"))
    with pytest.raises(ImportError, match=said):
        contenders.tbb_version()


@pytest.mark.parametrize(("op", "x", "takes"), [("sum", "f8", True), ("max", "f8", False),
                                                ("sum", "f4", False)])  # fmt: skip
def test_sums_of_float64_alone(op, x, takes):
    assert TBB.takes(Case(BUILTIN[op], np.dtype(x), np.dtype(x), 8, 1)) == takes
