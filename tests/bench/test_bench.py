"""The benchmark: its commands, with little data; it times no wrong result; its shares are right."""

import json
import re
from dataclasses import replace
from functools import partial
from itertools import count
from time import sleep
from xml.etree import ElementTree

import numpy as np
import pytest

from distscan.bench import __main__ as command
from distscan.bench import contenders, cub, timing, uses
from distscan.bench.__main__ import Key
from distscan.bench.case import Case, form_cases, sized_cases
from distscan.bench.contenders import CONTENDERS, CaseTrial, Contender, copy_pieces
from distscan.bench.report import Report
from distscan.bench.timing import Entry, Host, Row, Samples, Stats
from distscan.core.operators import BUILTIN
from distscan.mpi.communicators import MPI
from support.cases import few_ranks, sample

NAMED = {contender.name: contender for contender in CONTENDERS}


# ---- the commands ------------------------------------------------------------------------------

SMALL = ("--backend", "cpu", "--contenders", "distscan.scan", "--sizes", "10", "--types", "int32")


@pytest.fixture
def run(comm, capfd):
    """Run the command line; return rank 0's (status, stdout, stderr) on every rank."""

    def call(*arguments):
        comm.Barrier()
        capfd.readouterr()
        status = command.main([*map(str, arguments)])
        assert set(comm.allgather(status)) == {status}
        out, err = capfd.readouterr()
        return comm.bcast((status, out, err))

    return call


def test_sizes_and_types(run, comm, folder):
    """Every contender that is here is right, and is timed."""
    path = folder / "x.json"
    status, out, err = run("--backend", "cpu", "--sizes", "8:10:2", "--types",
                           "float32,float64,int8:int64", "--json", path)  # fmt: skip
    assert status == 0, err
    assert "wall clock of one call, us" in out
    report = json.loads(path.read_text())
    assert (report["ranks"], report["backend"], report["repeat"]) == (comm.size, "cpu", 11)
    assert report["command"].startswith("python -m distscan bench --backend cpu")
    assert {"distscan", "python", "numpy", "mpi4py"} <= set(report["versions"])
    rows = report["results"]
    assert {(row["type"], row["n"]) for row in rows} == {
        (name, n) for name in ("float32", "float64", "int8:int64") for n in (1 << 8, 1 << 10)
    }
    assert {"copy", "distscan.scan"} <= {row["contender"] for row in rows}
    for row in rows:
        if row["contender"] in ("torch", "heat") and row["status"] == "error":
            assert "implemented" in row["message"], row
            continue
        assert row["status"] == "timed", row
        time = row["wall_us"]
        assert 0 < time["q1"] <= time["median"] <= time["q3"]
        assert time["samples"] == 11
        assert row["device_us"] is None  # a CPU has no clock of its own


@pytest.mark.parametrize(
    ("form", "title"),
    [
        ("--exclusive --op max", "exclusive max"),
        ("--segments flags", "sum by flags"),
        ("--segments keys --exclusive", "exclusive sum by keys"),
        pytest.param("--rows 100", "sum in rows of 100", marks=pytest.mark.one_rank),
    ],
)
def test_forms_by_size(form, title, run, folder):
    """All contenders that are here are right; a row is scanned whole, however small a size is."""
    path = folder / "x.json"
    types = ("--sizes", "5,10", "--types", "int8:int64")
    status, _, err = run("--backend", "cpu", *types, *form.split(), "--json", path)
    assert status == 0, err
    report = json.loads(path.read_text())
    assert report["op"] == title
    rows = {row["contender"]: row for row in report["results"] if row["n"] > 100}
    assert {"copy", "reduce-scan"} <= rows.keys()
    assert {row["status"] for row in rows.values()} == {"timed"}, rows
    assert {row["n"] for row in report["results"]} <= {32, 100, 1000, 1024}


@few_ranks
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("option", "title"), [("--forms", "forms"), ("--uses", "uses")])
def test_forms_and_uses(option, title, run, comm, folder, monkeypatch):
    """Each has its line; then against this run itself, and against a run of sizes."""
    monkeypatch.setattr(timing, "_MOST_CPU_CACHE", 1 << 20)  # so that few buffers are made
    sizes = ("1",) if option == "--forms" else ("--sizes", "8")
    path = folder / "x.json"
    status, out, err = run("--backend", "cpu", option, *sizes, "--json", path)
    assert status == 0, err
    report = json.loads(path.read_text())
    assert (report["op"], report["ranks"]) == (title, comm.size)
    assert all(
        row["status"] == "timed" or "no library" in row["message"] for row in report["results"]
    )
    for name in {row["type"] for row in report["results"]}:
        assert any(line.startswith(name + " ") for line in out.splitlines()), name
    status, out, err = run("--backend", "cpu", option, *sizes, "--against", path, "--limit", 100)
    assert status == 0, err
    status, _, err = run(*SMALL, "--against", path)
    assert status == 2
    assert f"has op {title}, this run sum" in err


def test_a_run_against_an_earlier_one(run, comm, folder):
    path, faster = folder / "bench.json", folder / "faster.json"
    status, _, err = run(*SMALL, "--json", path)
    assert status == 0, err
    if comm.rank == 0:
        text = path.read_text()
        for scale, name in ((100, faster), (0.01, path)):
            changed = json.loads(text)
            for row in changed["results"]:
                row["share"] *= scale
            name.write_text(json.dumps(changed))
    comm.Barrier()
    status, out, err = run(*SMALL, "--against", path)
    assert (status, err.count("error")) == (0, 0)
    assert "0 of 1 shares of distscan fell by more than 20 %" in out
    status, out, _ = run(*SMALL, "--against", faster)
    assert status == 1
    assert re.search(r"^distscan.scan +int32 +2\^10 .* fell$", out, re.MULTILINE)
    status, out, err = run(*SMALL, "--against", faster, "--limit", "100", "--json", "-")
    assert status == 0
    copies, scan = json.loads(out)["results"]
    assert (copies["contender"], scan["contender"]) == ("copy", "distscan.scan")
    assert copies["share"] == 1
    assert "0 of 1 shares" in err


def test_files_that_are_none(run, comm, folder):
    wrong = {"a.json": "", "b.json": "[]", "c.json": "{}", "d.json": '{"results": [1]}',
             "e.json": '{"results": [], "chip": "x", "command": "y"}'}  # fmt: skip
    if comm.rank == 0:
        for name, text in wrong.items():
            (folder / name).write_text(text)
    comm.Barrier()
    for name in [*wrong, "absent.json", "."]:
        status, out, err = run(*SMALL, "--against", folder / name)
        assert (status, out) == (2, ""), name
        lines = [line for line in err.splitlines() if "warning" not in line]
        assert len(lines) == 1, lines
        assert re.match("distscan: error: (rank 0: )?--against: ", lines[0])


def test_plot(run, folder):
    pytest.importorskip("matplotlib")
    path = folder / "x.svg"
    status, _, err = run(*SMALL, "--plot", path)
    assert status == 0, err
    assert ElementTree.parse(path).getroot().tag == "{http://www.w3.org/2000/svg}svg"


def test_maxima_of_float16(run):
    status, out, err = run(
        "--backend", "cpu", *["--op", "max", "--types", "float16", "--sizes", "6"]
    )
    assert status == 0, err
    assert "float16" in out


@pytest.mark.parametrize(
    "arguments",
    [
        *("--sizes 3:2", "--sizes 1:2:3:4", "--sizes x", "--sizes 3,", "--sizes 3,37"),
        *("--types float33", "--types float16", "--types int64:int8", "--types bool"),
        *("--op xor", "--contenders me", "--contenders cub", "--repeat 5", "file.npy"),
        *("--block-scans", "--block-scans --plot x.svg", "--limit 5", "--against x --limit 101"),
        *("--against x --limit nan", "--against x --block-scans", "--forms 0", "--forms x"),
        *("--forms --sizes 10", "--forms --op max", "--forms --types int8"),
        *("--forms --plot x.svg", "--forms --block-scans", "--levels --sizes 10"),
        *("--uses --forms", "--uses --op max", "--uses --types int8", "--uses --plot x.svg"),
        *("--uses --block-scans", "--uses --levels", "--uses --contenders copy"),
        *("--uses --limit 5", "--uses --exclusive", "--forms --rows 9", "--rows 0"),
        *("--segments x", "--segments keys --rows 9", "--block-scans --segments keys"),
    ],
)
def test_refused_arguments(arguments, run):
    status, out, err = run("--backend", "cpu", *arguments.split())
    assert (status, out) == (2, "")
    lines = [line for line in err.splitlines() if "warning" not in line]
    assert len(lines) == 1
    assert lines[0].startswith("distscan: error: ")


def test_help_and_list(run):
    status, out, _ = run("--help")
    assert status == 0
    assert "--sizes" in out
    status, out, _ = run("--list", "--backend", "cpu")
    assert status == 0
    assert {"copy", "numpy", "distscan.scan"} <= {line.split()[0] for line in out.splitlines()[1:]}


# ---- results that are wrong --------------------------------------------------------------------


@pytest.fixture
def machine():
    """A CPU with so small a cache that few buffers are made."""
    host = Host("a chip")
    host.cache = 1 << 12
    return host


@pytest.fixture
def case(comm):
    def make(x="f4", out=None, n=1 << 10, op="sum"):
        return Case(BUILTIN[op], np.dtype(x), np.dtype(out or x), n, comm.size)

    return make


def numpy_only(task, spoil=lambda x, out, comm: None):
    """A right scan over ranks by NumPy and an allgather, and then something done to it."""

    def call(x, out):
        np.cumsum(x, dtype=out.dtype, out=out)
        totals = task.comm.allgather(out[-1])
        out += sum(totals[: task.comm.rank], out.dtype.type(0))
        spoil(x, out, task.comm)

    return [partial(call, *pair) for pair in task.pairs]


RIGHT = Contender("right", numpy_only, lambda: "1")


def measure(comm, machine, contenders, case, repeat=11):
    return timing.measure(comm, machine, CaseTrial(case, contenders), repeat)


def _one_more(x, out, comm):
    out[-1] += 1


def _local(x, out, comm):
    np.cumsum(x, dtype=out.dtype, out=out)
    out[0] += 1


def _nothing(x, out, comm):
    out.view(np.uint8)[...] = 0xA5


def _eats_input(x, out, comm):
    x[7] += 1


def _on_one_rank(x, out, comm):
    out[5] = 99 if comm.rank == comm.size - 1 else out[5]


@pytest.mark.parametrize("n", [1001, 1 << 14])
@pytest.mark.parametrize("spoil", [_one_more, _local, _nothing, _eats_input, _on_one_rank])
def test_a_wrong_result_is_never_timed(spoil, n, comm, machine, case, monkeypatch):
    monkeypatch.setattr("distscan.bench.case._PIECE", 1000)  # checks of one piece, and of several
    wrong = Contender("wrong", partial(numpy_only, spoil=spoil), lambda: "1")
    for dtype in ("f4", "i8"):
        rows = measure(comm, machine, [NAMED["copy"], wrong, RIGHT], case(dtype, n=n))
        assert [row.status for row in rows] == ["timed", "wrong", "timed"], rows
        assert rows[1].message
        assert spoil is not _on_one_rank or "element 5 is 99" in rows[1].message
        assert rows[1].wall_us is None


@pytest.mark.parametrize(("extra", "status"), [(0, "timed"), (1, "wrong")])
def test_new_arrays_are_checked(extra, status, comm, machine, case):
    """The result of a contender that returns new arrays is what it returns, not ``out``."""

    def prepare(task):
        def call(scan, out):
            scan()
            result = out.copy()
            result[-1] += extra
            out[...] = 0
            return result

        scans = numpy_only(task)
        return [partial(call, scan, out) for scan, (_, out) in zip(scans, task.pairs, strict=True)]

    (row,) = measure(comm, machine, [Contender("new", prepare, lambda: "1", returns=True)], case())
    assert row.status == status, row


@pytest.mark.parametrize("when", [-1, 0, 1, 20])
def test_an_error_on_one_rank_skips_on_all(when, comm, machine, case):
    """While it is rehearsed (before the exchange), prepared, checked or timed."""

    def rehearse(task):
        if when == -1 and comm.rank == 0:
            raise OSError("no more")

    def prepare(task):
        calls = numpy_only(task)
        number = 0

        def call():
            nonlocal number
            number += 1
            calls[0]()
            if number >= when and comm.rank == comm.size - 1:
                raise OSError("no more")

        if when == 0 and comm.rank == comm.size - 1:
            raise OSError("no more")
        return [call]

    faulty = Contender("faulty", prepare, lambda: "1", rehearse=rehearse)
    rows = measure(comm, machine, [faulty, RIGHT], case(), 30)
    assert [row.status for row in rows] == ["error", "timed"]
    assert "no more" in rows[0].message
    assert rows[0].wall_us is None


def test_missing_on_one_rank_is_missing(comm):
    def version():
        if comm.rank == comm.size - 1:
            raise ImportError("not installed")
        return "1"

    able, versions, missing = contenders.find_present(
        comm, [RIGHT, replace(RIGHT, name="x", version=version)]
    )
    assert able == [RIGHT]
    assert versions == {"right": "1"}
    assert missing == {"x": "not installed"}
    with pytest.raises(ImportError, match="not installed"):
        contenders.version("no_such_library")()


def test_what_does_not_fit_is_skipped(comm, machine, case):
    rows = measure(comm, machine, [RIGHT], case("f8", n=1 << 45))
    assert rows[0].status == "skipped"
    assert "GiB" in rows[0].message


FLOATS = np.dtype("f4"), np.dtype("f8")
SIZED = [
    case
    for form in (
        {"exclusive": True},
        {"segments": np.dtype(bool)},
        {"segments": np.dtype(bool), "exclusive": True},
        {"segments": np.dtype(np.int32)},
        {"row": 100},
        {"row": 100, "exclusive": True},
    )
    for case in sized_cases(BUILTIN["sum"], [FLOATS], [12], 1, **form)
]


@pytest.mark.one_rank
@pytest.mark.parametrize("case", form_cases(1, 1, 2) + SIZED, ids=lambda case: case.type)
def test_a_wrong_form_is_never_timed(case, comm, machine):
    """Of one element, somewhere."""
    right = NAMED["single-pass"]

    def prepare(task):
        def spoilt(call, out):
            result = call()
            (result if case.new else out).reshape(-1)[case.n // 2] += 1
            return result

        calls = right.prepare(task)
        return [lambda call=call, out=out: spoilt(call, out)
                for call, (_, out) in zip(calls, task.pairs, strict=True)]  # fmt: skip

    wrong = Contender("wrong", prepare, right.version, ops=right.ops, takes=right.takes)
    (row,) = measure(comm, machine, [wrong], case)
    assert (row.status, "element" in row.message) == ("wrong", True), row


# ---- uses ----------------------------------------------------------------------------------------

EACH = pytest.mark.parametrize("use", uses.all_uses("cpu", 8), ids=lambda use: use.title)


def time(comm, machine, use):
    return timing.measure(comm, machine, uses.UseTrial(use, ()), 11)


def spoil_use(result):
    """Change one value of a result."""
    if isinstance(result, tuple) and not isinstance(result[0], np.ndarray):
        return result[0], result[1] + 1
    first = result[0] if isinstance(result, tuple) else result
    first.reshape(-1)[first.size // 2] += 2
    return result


def instead(use, change):
    """The use with another way in distscan's place: ``change(call, place)``."""

    def draw(place):
        data = use.draw(place)
        return data._replace(call=change(data.call, place))

    return replace(use, draw=draw)


@EACH
def test_a_wrong_use_is_never_timed(use, comm, machine):
    """On one rank."""

    def change(call, place):
        wrong = comm.rank == comm.size - 1
        return lambda *arrays: spoil_use(call(*arrays)) if wrong else call(*arrays)

    (row,) = [row for row in time(comm, machine, instead(use, change))
              if row.contender == "distscan"]  # fmt: skip
    assert (row.status, row.wall_us, row.share) == ("wrong", None, None)
    assert "not" in row.message


@EACH
def test_a_use_of_one_rank_alone_is_wrong(use, comm, machine):
    def change(call, place):
        return use.draw(place._replace(comm=MPI.COMM_SELF)).call

    row = time(comm, machine, instead(use, change))[-1]
    assert row.status == ("timed" if comm.size == 1 else "wrong")


# ---- clocks ------------------------------------------------------------------------------------


@pytest.mark.parametrize("cpu_time", [False, True])
def test_cpu_time_leaves_out_waits(cpu_time, comm):
    samples = Samples([], [])
    timing.sample(comm, Host("a chip", cpu_time=cpu_time), [partial(sleep, 0.2)], 0, samples)
    assert (samples.wall[0] < 100_000) is cpu_time


def test_a_report_says_its_clock(run):
    status, out, _ = run(*SMALL, "--cpu-time")
    assert status == 0
    assert "the wall clock is the processors' time" in out
    assert "processors' time" not in run(*SMALL)[1]


# ---- the arithmetic of times and shares --------------------------------------------------------


def entry_of(name, samples, copies=None):
    """A contender with its samples, and a copy before and after each."""
    return Entry(Row(name, "float32", 8), [], samples, copies)


def test_times_are_those_of_the_slowest_rank(comm):
    samples = [float(comm.rank == i % comm.size) for i in range(11)]  # each rank is slow in turn
    entry = entry_of("x", Samples([], samples))
    timing.set_times(comm, [entry])
    assert (entry.row.device_us, entry.row.wall_us) == (None, Stats(1, 1, 1, 11))


def test_shares(comm):
    """A quarter of the copy's speed; by the device's clock on one rank, else by the wall's."""
    device, wall = [10.0] * 3, [20.0, 40.0, 60.0]
    copies = Samples([10.0] * 6, [20.0, 20.0, 40.0, 40.0, 50.0, 70.0])  # the machine gets slow
    for ranks in (1, 2):
        live = [
            entry_of("copy", Samples(device, wall), copies),
            entry_of("x", Samples([40.0] * 3, [80.0, 160.0, 240.0]), copies),
            entry_of("numpy" if ranks == 1 else "by-hand",
                  Samples([80.0] * 3, [160.0, 320.0, 480.0]), copies),
        ]  # fmt: skip
        for entry in live:
            entry.row.device_us = timing.stats(entry.samples.device)
        contenders.set_shares(comm, live, ranks)
        assert [entry.row.share for entry in live] == [1, 0.25, 0.125]
        assert [entry.row.times for entry in live] == [8, 2, 1]
        assert [entry.row.spread for entry in live] == [0, 0, 0]
    for entry in live:
        entry.row.device_us = None
    contenders.set_shares(comm, live, 1)
    assert [entry.row.share for entry in live] == [1, 0.25, 0.125]


def test_device_and_wall_differ(comm):
    copies = Samples([10.0] * 6, [10.0] * 6)
    for ranks, share in ((1, 0.5), (2, 0.1)):
        live = [entry_of("x", Samples([20.0] * 3, [100.0] * 3), copies)]
        live[0].row.device_us = Stats(20, 20, 20, 3)
        contenders.set_shares(comm, live, ranks)
        assert live[0].row.share == share
        assert live[0].row.times is None


def test_a_sample_stands_between_copies(comm, machine, case, monkeypatch):
    """A machine that is 8 times as slow half of the time changes no share."""
    turn = count()

    def sample(comm, machine, calls, which, into):
        slow = 8.0 if next(turn) // 100 % 2 else 1.0
        into.wall.append((10 if calls[0].func is copy_pieces else 20) * slow)

    monkeypatch.setattr(timing, "sample", sample)
    pair = [NAMED["copy"], NAMED["distscan.scan"]]
    copy, scan = measure(comm, machine, pair, case(), 200)
    assert scan.wall_us.q3 == 8 * scan.wall_us.q1
    assert (copy.share, scan.share) == (1, 0.5)


def test_traffic(case):
    """Bytes per element, for n bytes in and n out: copy 2n, scan-add 4n, reduce-scan 3n."""
    plain, mixed = case(), case("i1", "i8")
    moved = {
        name: (each.moved(plain), each.moved(mixed)) for name, each in NAMED.items() if each.moved
    }
    assert moved["copy"][0] == moved["single-pass"][0] == 8
    assert moved["reduce-scan"] == (12, 10)
    assert moved["scan-add"] == (16, 25)
    assert mixed.bytes == 9 * mixed.n


# ---- a run against an earlier one ----------------------------------------------------------------

PLAN = Key("float32", "single-pass", 1 << 20)


def report(*rows, backend="cpu", ranks=1, op="sum"):
    results = [Row("copy", "float32", 1 << 20, share=1.0)]
    results += [Row(key.contender, key.type, key.n, **fields) for key, fields in rows]
    return Report("python -m distscan.bench --sizes 20", "2026-11-22", "a chip", backend, ranks, 1,
                  "MPI", {}, {}, op, 11, 1 << 20, None, results)  # fmt: skip


@pytest.fixture
def baseline(tmp_path):
    """Write a report, and read it as a baseline for a run of ``planned``."""

    def make(*rows, planned=(PLAN,), **fields):
        path = tmp_path / "baseline.json"
        path.write_text(json.dumps(report(*rows, **fields).plain()))
        return command.read_baseline(path, command.setting_of("cpu", 1, "sum"), planned)

    return make


@pytest.mark.one_rank
@pytest.mark.parametrize(
    ("new", "limit", "fell"),
    [(0.5, 5, False), (0.9, 5, False), (0.48, 5, False), (0.47, 5, True), (0.41, 20, False),
     (0.39, 20, True), (0.5, 0, False), (0.49, 0, True)],
)  # fmt: skip
def test_worse_falls_and_better_does_not(new, limit, fell, baseline):
    earlier = baseline((PLAN, {"share": 0.5}))
    lines, failed = command.compare(earlier, report((PLAN, {"share": new})), limit)
    assert failed == fell
    (line,) = [line for line in lines if line.startswith("single-pass")]
    assert line.split()[:5] == ["single-pass", "float32", "2^20", "0.50", f"{new:.2f}"]
    assert line.endswith("fell") == fell
    assert lines[-1] == f"{int(fell)} of 1 shares of distscan fell by more than {limit} %"


@pytest.mark.one_rank
@pytest.mark.parametrize(
    ("ours", "peer", "line", "fell"),
    [
        ({"share": 0.5}, {"share": 0.1}, "numpy .* -80%$", False),  # a peer may fall
        ({"status": "wrong"}, {"share": 0.5}, "single-pass .* wrong .* fell$", True),
        ({"status": "error"}, {"share": 0.5}, "single-pass .* error .* fell$", True),
        ({"status": "skipped"}, {"share": 0.5}, "0 of 0 shares", True),  # nothing is compared
    ],
)
def test_rows_that_fall(ours, peer, line, fell, baseline):
    other = PLAN._replace(contender="numpy")
    earlier = baseline((PLAN, {"share": 0.5}), (other, {"share": 0.5}))
    lines, failed = command.compare(earlier, report((PLAN, ours), (other, peer)), limit=5)
    assert failed == fell
    assert any(re.match(line, text) for text in lines), lines


@pytest.mark.one_rank
def test_rows_of_one_side_are_named(baseline):
    """Another size, type or contender, and what was not timed."""
    more = [PLAN._replace(n=1 << 24), PLAN._replace(n=1 << 26), PLAN._replace(type="int8:int64"),
            PLAN._replace(contender="torch")]  # fmt: skip
    earlier = baseline((PLAN, {"share": 0.5}), *((key, {"share": 0.5}) for key in more[:2]),
                     (more[3], {"status": "error"}))  # fmt: skip
    skipped = {"status": "skipped"}
    run = report((PLAN, {"share": 0.5}), (more[0], skipped), (more[2], {"share": 0.5}),
                 (more[3], {"share": 0.5}))  # fmt: skip
    lines, fell = command.compare(earlier, run, limit=5)
    assert not fell
    assert "only in the baseline: single-pass float32 2^24, 2^26" in lines
    assert "only in this run: single-pass int8:int64 2^20" in lines
    assert "only in this run: torch float32 2^20" in lines


@pytest.mark.one_rank
@pytest.mark.parametrize(
    ("fields", "fault"),
    [({"backend": "cuda"}, "has backend cuda, this run cpu"),
     ({"ranks": 4}, "has ranks 4, this run 1"),
     ({"op": "max"}, "has op max, this run sum"),
     ({"planned": [PLAN._replace(n=8)]}, "has nothing that this run measures; it was made by: py")],
)  # fmt: skip
def test_another_run_is_refused(fields, fault, baseline):
    with pytest.raises(ValueError, match=fault):
        baseline((PLAN, {"share": 0.5}), **fields)


# ---- CUB, as the benchmark compiles it, where there is an nvcc; needs no GPU --------------------


@pytest.fixture
def nvcc():
    try:
        return cub.cccl()
    except ImportError as error:
        pytest.skip(str(error))


# A part of cub.cu, the types and the operator, and the functions in it.
PARTS = [
    ("SCAN", ("f4", "f4", "sum"), ["scan"]),
    ("SCAN", ("i1", "i8", "max"), ["scan"]),
    ("SCAN", ("i1", "i8", "sum", {"segments": "i4"}), ["scan"]),
    ("SCAN", ("f8", "f8", "max", {"segments": "i4", "exclusive": True}), ["scan"]),
    ("SCAN", ("f2", "f4", "sum", {"segments": "?"}), ["scan"]),
    ("SCAN", ("i4", "i4", "sum", {"exclusive": True}), ["scan"]),
    ("RUN_TO_RUN", ("f8", "f8", "sum"), ["keep_pool", "scan_run_to_run"]),
    ("BY_HAND", ("i4", "i4", "sum"), ["reduce", "scan_after"]),
    ("FLAGGED", ("f4", "f4", "sum"), ["flagged"]),
]


@pytest.mark.one_rank
@pytest.mark.compile
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("part", "types", "entries"), sample(PARTS, 3))
def test_cub_compiles(part, types, entries, nvcc, case):
    if part == "RUN_TO_RUN" and nvcc < (3, 5, 0):
        pytest.skip("this CUB has no deterministic scan")
    x, out, op, *options = types
    form = replace(case(x, out, op=op), options=options[0] if options else {})
    library = cub.compile_part(part, form, "90")
    for entry in entries:
        assert getattr(library, entry).__name__ == entry
    with pytest.raises(AttributeError):
        _ = library.nothing
