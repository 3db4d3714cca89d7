"""``bench --against``: what falls, what does not, and files that are none. At any ranks."""

import copy
import json
import re
from pathlib import Path

import pytest

from distscan.bench import __main__ as command
from distscan.bench.__main__ import Key
from distscan.bench.report import Report
from distscan.bench.suite import Row

KEPT = Path(__file__).resolve().parents[2] / "docs" / "measured" / "baselines"
PLAN = Key("float32", "single-pass", 1 << 20)


def report(*rows, backend="cpu", ranks=1, op="sum"):
    results = [Row("copy", "float32", 1 << 20, share=1.0)]
    results += [Row(key.contender, key.type, key.n, **known) for key, known in rows]
    return Report("python -m distscan.bench --sizes 20", "2026-11-22", "a chip", backend, ranks, 1,
                  "MPI", {}, {}, op, 11, 1 << 20, None, results)  # fmt: skip


@pytest.fixture
def baseline(tmp_path):
    """Write a report, and read it as a baseline for a run of ``planned``."""

    def make(*rows, planned=(PLAN,), **known):
        path = tmp_path / "baseline.json"
        path.write_text(json.dumps(report(*rows, **known).plain()))
        return command.read_baseline(path, command.setting_of("cpu", 1, "sum"), planned)

    return make


@pytest.mark.one_rank
@pytest.mark.parametrize(
    ("new", "limit", "fell"),
    [(0.5, 5, False), (0.9, 5, False), (0.48, 5, False), (0.47, 5, True), (0.41, 20, False),
     (0.39, 20, True), (0.5, 0, False), (0.49, 0, True)],
)  # fmt: skip
def test_worse_falls_and_better_does_not(new, limit, fell, baseline):
    known = baseline((PLAN, {"share": 0.5}))
    lines, found = command.compare(known, report((PLAN, {"share": new})), limit)
    assert found == fell
    (line,) = [line for line in lines if line.startswith("single-pass")]
    assert line.split()[:5] == ["single-pass", "float32", "2^20", "0.50", f"{new:.2f}"]
    assert line.endswith("fell") == fell
    assert lines[-1] == f"{int(fell)} of 1 shares of distscan fell by more than {limit} %"


@pytest.mark.one_rank
def test_peers_may_fall(baseline):
    peer = PLAN._replace(contender="numpy")
    rows = (PLAN, {"share": 0.5}), (peer, {"share": 0.5})
    lines, fell = command.compare(baseline(*rows), report(rows[0], (peer, {"share": 0.1})), limit=5)
    assert not fell
    assert any(line.startswith("numpy") and "-80%" in line for line in lines)


@pytest.mark.one_rank
@pytest.mark.parametrize("status", ["wrong", "error"])
def test_what_fails_now_falls(status, baseline):
    lines, fell = command.compare(
        baseline((PLAN, {"share": 0.5})), report((PLAN, {"status": status})), limit=20
    )
    assert fell
    assert any(status in line and line.endswith("fell") for line in lines)


@pytest.mark.one_rank
def test_rows_of_one_side_are_named(baseline):
    """Another size, type or contender, and what was not timed."""
    more = [PLAN._replace(n=1 << 24), PLAN._replace(n=1 << 26), PLAN._replace(type="int8:int64"),
            PLAN._replace(contender="torch")]  # fmt: skip
    known = baseline((PLAN, {"share": 0.5}), *((key, {"share": 0.5}) for key in more[:2]),
                     (more[3], {"status": "error"}))  # fmt: skip
    skipped = {"status": "skipped"}
    run = report((PLAN, {"share": 0.5}), (more[0], skipped), (more[2], {"share": 0.5}),
                 (more[3], {"share": 0.5}))  # fmt: skip
    lines, fell = command.compare(known, run, limit=5)
    assert not fell
    assert "only in the baseline: single-pass float32 2^24, 2^26" in lines
    assert "only in this run: single-pass int8:int64 2^20" in lines
    assert "only in this run: torch float32 2^20" in lines


@pytest.mark.one_rank
def test_nothing_compared_is_no_success(baseline):
    lines, failed = command.compare(
        baseline((PLAN, {"share": 0.5})), report((PLAN, {"status": "skipped"})), limit=5
    )
    assert failed
    assert lines[-1].startswith("0 of 0")


@pytest.mark.one_rank
@pytest.mark.parametrize(
    ("known", "said"),
    [({"backend": "cuda"}, "has backend cuda, this run cpu"),
     ({"ranks": 4}, "has ranks 4, this run 1"),
     ({"op": "max"}, "has op max, this run sum"),
     ({"planned": [PLAN._replace(n=8)]}, "has nothing that this run measures; it was made by: py")],
)  # fmt: skip
def test_another_run_is_refused(known, said, baseline):
    with pytest.raises(ValueError, match=said):
        baseline((PLAN, {"share": 0.5}), **known)


@pytest.mark.one_rank
@pytest.mark.parametrize("path", sorted(KEPT.glob("*.json")), ids=lambda path: path.stem)
def test_the_baselines_that_are_kept(path):
    """Each can be read, and its command is the one that the docs name."""
    found = json.loads(path.read_text())
    given = command.setting_of(found["backend"], found["ranks"], found["op"])
    planned = [Key(row["type"], row["contender"], row["n"]) for row in found["results"]]
    known = command.read_baseline(path, given, planned)
    assert {key.contender for key in known.shares} & set(command.OURS)
    docs = " ".join((KEPT.parent.parent / "measured.rst").read_text().split())
    assert known.command.split(" --json")[0] in docs


# ---- the command line ------------------------------------------------------------------------

SMALL = ("--backend", "cpu", "--contenders", "distscan.scan", "--sizes", "14", "--types", "int32")


@pytest.fixture
def run(comm, capfd):
    """Run the command line; return rank 0's (status, stdout, stderr) on every rank."""

    def call(*arguments):
        comm.Barrier()
        capfd.readouterr()
        status = command.main([*SMALL, *map(str, arguments)])
        assert set(comm.allgather(status)) == {status}
        out, err = capfd.readouterr()
        return comm.bcast((status, out, err))

    return call


def test_a_run_against_an_earlier_one(run, comm, folder):
    path, faster = folder / "bench.json", folder / "faster.json"
    status, _, err = run("--json", path)
    assert status == 0, err
    if comm.rank == 0:
        found = json.loads(path.read_text())
        for scale, name in ((100, faster), (0.01, path)):
            changed = copy.deepcopy(found)
            for row in changed["results"]:
                row["share"] *= scale
            name.write_text(json.dumps(changed))
    comm.Barrier()
    status, out, err = run("--against", path)
    assert (status, err.count("error")) == (0, 0)
    assert "0 of 1 shares of distscan fell by more than 20 %" in out
    status, out, _ = run("--against", faster)
    assert status == 1
    assert re.search(r"^distscan.scan +int32 +2\^14 .* fell$", out, re.MULTILINE)
    status, out, err = run("--against", faster, "--limit", "100", "--json", "-")
    assert status == 0
    assert json.loads(out)["results"]
    assert "0 of 1 shares" in err


def test_files_that_are_none(run, comm, folder):
    wrong = {"a.json": "", "b.json": "[]", "c.json": "{}", "d.json": '{"results": [1]}',
             "e.json": '{"results": [], "chip": "x", "command": "y"}'}  # fmt: skip
    if comm.rank == 0:
        for name, text in wrong.items():
            (folder / name).write_text(text)
    comm.Barrier()
    for name in [*wrong, "absent.json", "."]:
        status, out, err = run("--against", folder / name)
        assert (status, out) == (2, ""), name
        lines = [line for line in err.splitlines() if "warning" not in line]
        assert len(lines) == 1, lines
        assert re.match("distscan.bench: error: (rank 0: )?--against: ", lines[0])


@pytest.mark.parametrize(
    "arguments",
    [["--limit", "5"], ["--against", "x", "--limit", "101"], ["--against", "x", "--limit", "nan"],
     ["--against", "x", "--block-scans"]],
)  # fmt: skip
def test_refused_arguments(arguments, run):
    status, out, _ = run(*arguments)
    assert (status, out) == (2, "")
