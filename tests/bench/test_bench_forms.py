"""``bench --forms``: every form of a scan on CPUs, beside a copy and NumPy. At any ranks."""

import json
import os
import sys

import numpy as np
import pytest

from distscan import binding
from distscan.bench import __main__ as command
from distscan.bench import report, suite
from distscan.bench.case import Data, form_cases
from distscan.bench.contenders import CONTENDERS, lesser_levels
from distscan.bench.suite import Row
from distscan.bench.timing import Host
from distscan.cpu import library
from support.cuts import few_ranks

NAMED = {contender.name: contender for contender in CONTENDERS}
CASES = form_cases(1, 1, 2)


@pytest.fixture
def machine():
    """A CPU with so small a cache that there is one pair of buffers."""
    host = Host("a chip")
    host.cache = 1 << 12
    return host


def test_titles_differ():
    assert len({case.type for case in CASES}) == len(CASES)
    assert [case.threads for case in CASES] == [1] * (len(CASES) - 1) + [2]


@pytest.mark.one_rank
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.type)
def test_each_form_is_right(case, comm, machine):
    """By distscan and by NumPy; the copy moves as many bytes as a perfect scan."""
    chosen = [NAMED[name] for name in ("copy", "numpy", "single-pass")]
    rows = suite.measure(comm, machine, [*chosen, *lesser_levels()], case, 11)
    for row in rows:
        assert row.status == "timed" or "no library" in row.message, row
    assert abs(rows[0].moved - case.bytes) < case.n
    assert rows[2].times > 0
    data = Data(machine, case, 0)
    assert abs(2 * data.copies[0][0].nbytes - case.bytes) < 2


@pytest.mark.one_rank
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.type)
def test_a_wrong_form_is_never_timed(case, comm, machine):
    """Of one element, somewhere."""
    right = NAMED["single-pass"]

    def prepare(task):
        def spoilt(call, out):
            made = call()
            (made if case.new else out).reshape(-1)[case.n // 2] += 1
            return made

        calls = right.prepare(task)
        return [lambda call=call, out=out: spoilt(call, out)
                for call, (_, out) in zip(calls, task.pairs, strict=True)]  # fmt: skip

    wrong = suite.Contender("wrong", prepare, right.version, ops=right.ops, takes=right.takes)
    (row,) = suite.measure(comm, machine, [wrong], case, 11)
    assert (row.status, "element" in row.message) == ("wrong", True), row


@pytest.mark.one_rank
def test_the_case_chooses_threads_and_the_contender_the_level(comm, machine, monkeypatch):
    seen = []

    def plan(*given, **options):
        seen.append((os.environ.get("DISTSCAN_CPU"), binding.threads(None)))
        return lambda x, out, heads: np.cumsum(x, out=out)

    monkeypatch.setattr("distscan.bench.contenders.distscan.Plan", plan)
    monkeypatch.setenv("DISTSCAN_THREADS", "7")
    levels = lesser_levels()
    for case in (CASES[0], CASES[-1]):
        suite.measure(comm, machine, [NAMED["single-pass"], *levels], case, 11)
    names = [None, *(name for name, level in library.machine_levels().items()
                     if level.name in {contender.name for contender in levels})]  # fmt: skip
    before = os.environ.get("DISTSCAN_CPU")
    assert seen == [(name or before, count) for count in (1, 2) for name in names]
    assert binding.threads(None) == 7


def test_on_several_ranks_both_strategies_scan(comm, machine):
    cases = form_cases(1, comm.size, 1)
    assert [case.type for case in cases] == [case.type for case in CASES[:-1]][: len(cases)]
    assert (len(cases) == 1) == (comm.size > 1)
    names = ["copy", "reduce-scan", "scan-add"] + ["by-hand"] * (comm.size > 1)
    rows = suite.measure(comm, machine, [NAMED[name] for name in names], cases[0], 11)
    assert [(row.contender, row.status) for row in rows] == [(name, "timed") for name in names]
    assert (rows[1].times is None) == (comm.size == 1)


class Torch:
    """NumPy behind torch's calls."""

    int64, from_dlpack, empty_like = np.int64, staticmethod(np.asarray), staticmethod(np.empty_like)

    def __init__(self):
        self.threads = []

    def set_num_threads(self, threads):
        self.threads.append(threads)

    def cumsum(self, x, axis, *, dtype, out):
        return np.cumsum(x, axis, dtype, out)

    def cummax(self, x, axis, *, out):
        assert out[1].dtype == np.int64
        return np.maximum.accumulate(x, axis, out=out[0])

    def cummin(self, x, axis, *, out):
        return np.minimum.accumulate(x, axis, out=out[0])


@pytest.mark.one_rank
def test_torch(comm, machine, monkeypatch):
    """It scans the forms that it has, by as many threads as the case says."""
    torch = Torch()
    monkeypatch.setitem(sys.modules, "torch", torch)
    taken = []
    for case in CASES:
        for row in suite.measure(comm, machine, [NAMED["torch"]], case, 11):
            assert row.status == "timed", row
            taken.append(case)
    assert torch.threads == [case.threads for case in taken]
    assert {"max int8", "rows of 1000 float64"} <= {case.type for case in taken}
    refused = ("exclusive", "reverse", "initial", "in place", "new", "segments")
    assert not any(case.type.startswith(refused) for case in taken)


def test_lines():
    idioms = {"sum float64": "np.cumsum(x)", "max int8": "max(x)", "min int8": "max(x)"}
    rows = [
        Row("copy", "sum float64", 8, moved=128, wall_us=suite.Stats(0.01, 0, 1, 11), share=1.0),
        Row("single-pass", "sum float64", 8, share=0.9, times=12.34, spread=0.02),
        Row("numpy", "sum float64", 8, share=0.1, times=1.0, spread=0.05),
        Row("single-pass", "max int8", 8, "wrong", "element 3 is 4, not 5"),
    ]
    table = "\n".join(
        " ".join(line.split()) for line in report.form_lines(rows, idioms)
    ).splitlines()
    assert "copy numpy single-pass" in table
    assert "sum float64 12.8 0.10 0.90 12.3x" in table
    assert "single-pass, max int8: wrong: element 3 is 4, not 5" in table
    assert "max int8; min int8: max(x)" in table
    assert any("at most 5%" in line for line in table)


# ---- the command line ------------------------------------------------------------------------


@pytest.fixture
def run(comm, capfd):
    """Run the command line; return rank 0's (status, stdout, stderr) on every rank."""

    def call(*arguments):
        comm.Barrier()
        capfd.readouterr()
        status = command.main(["--backend", "cpu", *map(str, arguments)])
        comm.Barrier()
        out, err = capfd.readouterr()
        return comm.bcast((status, out, err))

    return call


@few_ranks
@pytest.mark.timeout(300)
def test_forms_are_what_a_cpu_shows(run, comm, folder, monkeypatch):
    """Without arguments; then against this run itself."""
    monkeypatch.setattr(command, "MIB", 1)
    strategies = ("single-pass",) if comm.size == 1 else ("reduce-scan", "scan-add")
    path = folder / "forms.json"
    status, out, err = run("--json", path)
    assert status == 0, err
    assert "share of the copy's speed" in out
    assert "thread" in out.splitlines()[0]
    found = json.loads(path.read_text())
    assert found["op"] == "forms"
    assert {row["contender"] for row in found["results"]} >= {"copy", *strategies}
    assert set(found["idioms"]) == {row["type"] for row in found["results"]}
    status, out, err = run("--forms", 1, "--against", path, "--limit", 100)
    assert status == 0, err
    assert "only in" not in out
    status, _, err = run("--sizes", 10, "--against", path)
    assert status == 2
    assert "has op forms, this run sum" in err


@pytest.mark.parametrize(
    "given",
    [["--forms", "0"], ["--forms", "x"], ["--forms", "--sizes", "10"], ["--forms", "--op", "max"],
     ["--forms", "--types", "int8"], ["--forms", "--plot", "x.svg"], ["--forms", "--block-scans"],
     ["--levels", "--sizes", "10"]],
    ids="".join,
)  # fmt: skip
def test_refused_arguments(given, run):
    status, out, err = run(*given)
    assert (status, out) == (2, ""), err
