"""The benchmark's command line: arguments, tables, JSON, plot. On the CPU, at any ranks."""

import json
from xml.etree import ElementTree

import pytest

from distscan.bench import __main__ as command
from distscan.bench import block_scans, report
from distscan.bench.contenders import CONTENDERS
from distscan.bench.suite import Row
from distscan.bench.timing import Stats

SMALL = ("--backend", "cpu", "--contenders", "distscan.scan", "--sizes", "10")


@pytest.fixture
def run(comm, capfd):
    """Run the command line; return rank 0's (status, stdout, stderr) on every rank."""

    def call(*arguments):
        comm.Barrier()
        capfd.readouterr()
        status = command.main(arguments)
        comm.Barrier()
        out, err = capfd.readouterr()
        return comm.bcast((status, out, err))

    return call


@pytest.mark.parametrize("more", [(), ("--plot", "x.svg")])
def test_block_scans_need_a_gpu(run, more):
    status, out, err = run("--block-scans", "--backend", "cpu", *more)
    assert (status, out) == (2, "")
    assert "--block-scans" in err
    assert err.count("error") == 1


def test_tables_of_block_scans():
    """Every line is there; what went wrong is said below."""

    def row(name, power, **known):
        return Row(name, "float32", 1 << power, **known)

    time = {"device_us": Stats(12.34, 12, 13, 11), "share": 0.5}
    blocks = [row(f"{name} {n}", block_scans.POWER, **time)
              for name in block_scans.BLOCK_SCANS for n in block_scans.THREADS]  # fmt: skip
    wrong = row("single-pass", block_scans.POWER, status="wrong", message="element 3")
    beside = [row("copy", block_scans.POWER, **time), wrong]
    chains = [row(name, power, **time)
              for name in (*block_scans.CHAINS, "copy", "single-pass")
              for power in block_scans.POWERS]  # fmt: skip
    tables = block_scans.Tables([*beside, *blocks], chains)
    lines = [line.split() for line in tables.lines()]
    assert ["brent-kung", "256", "15", "16", "502", "12.3", "0.50"] in lines
    assert ["look-back", *3 * ["12.3", "0.50"]] in lines
    assert lines[-1] == ["single-pass:", "wrong:", "element", "3"]
    found = json.loads(json.dumps(tables.plain()))
    assert found["counts"]["blelloch"]["64"] == {"steps": 13, "barriers": 13, "work": 183}
    assert len(found["block_scans"]) == 22


def test_json(run, comm, folder):
    keys = [
        "command", "date", "chip", "backend", "ranks", "nodes", "mpi", "versions", "missing", "op",
        "repeat", "cache_bytes", "peak", "results",
    ]  # fmt: skip
    status, out, err = run(*SMALL, "--types", "int8:int64", "--json", "-")
    assert status == 0, err
    found = json.loads(out)
    assert list(found) == keys
    assert (found["ranks"], found["backend"], found["repeat"]) == (comm.size, "cpu", 11)
    assert found["command"].startswith("python -m distscan.bench --backend cpu")
    assert {"distscan", "python", "numpy", "mpi4py"} <= set(found["versions"])
    copy, scan = found["results"]
    assert (copy["contender"], scan["contender"]) == ("copy", "distscan.scan")
    assert (scan["type"], scan["n"], scan["status"]) == ("int8:int64", 1024, "timed")
    assert set(scan["wall_us"]) == {"median", "q1", "q3", "samples"}
    status, out, err = run(*SMALL, "--types", "float32", "--json", str(folder / "x.json"))
    assert status == 0, err
    assert list(json.loads((folder / "x.json").read_text())) == keys
    assert "wall clock of one call, us" in out


def test_text():
    """Every size has its column, every contender its line; 100 characters are enough."""
    rows = []
    for power in range(10, 23):
        rows += [
            Row(
                "copy",
                "f",
                1 << power,
                wall_us=Stats(12345.6, 1, 2, 11),
                moved=8 << power,
                share=1.0,
            ),
            Row("scan-add", "f", 1 << power, "wrong", "element 3 is 4, not 5"),
            Row("heat", "f", 1 << power, "timed", "", 32, Stats(1, 1, 1, 9), Stats(2, 1, 9, 11)),
        ]
    rows.append(Row("copy", "f", 1 << 30, "skipped", "takes 9 GiB"))
    done = report.Report(
        "command", "2026-11-22", "chip", "cuda", 1, 1, "MPI", {"x": "1"},
        {"torch": "not installed"}, "sum", 11, 1 << 20, 4e12, rows,
    )  # fmt: skip
    lines = report.text(done).splitlines()
    assert "torch: not installed" in lines
    assert max(map(len, lines)) <= 100
    assert all(f"2^{power}" in report.text(done) for power in (*range(10, 23), 30))
    assert any(line.startswith("scan-add: wrong at 2^10, 2^11") for line in lines)
    assert "all: skipped at 2^30: takes 9 GiB" in lines
    rows.append(Row("copy", "f", 1 << 28, device_us=Stats(1000, 1, 1, 11), moved=8 << 28))
    assert "copy at 2^28: 2.15 TB/s, 0.54 of the memory's peak" in report.text(done).splitlines()
    done.peak = None
    assert "copy at 2^28: 2.15 TB/s" in report.text(done).splitlines()


def test_no_two_contenders_look_the_same():
    assert len(set(report._COLOURS)) == len(set(report._MARKERS)) >= len(CONTENDERS) - 1


def test_plot(run, folder):
    pytest.importorskip("matplotlib")
    path = folder / "x.svg"
    status, _, err = run(*SMALL[:-1], "8:10", "--types", "int32,int8:int64", "--plot", str(path))
    assert status == 0, err
    assert ElementTree.parse(path).getroot().tag == "{http://www.w3.org/2000/svg}svg"
    assert report._COLOURS[3].lower() in path.read_text()  # distscan.scan's


@pytest.mark.parametrize(
    "given",
    [
        ["--sizes", "3:2"],
        ["--sizes", "1:2:3:4"],
        ["--sizes", "x"],
        ["--sizes", "3,"],
        ["--sizes", "3,37"],
        ["--types", "float33"],
        ["--types", "float16"],
        ["--types", "int64:int8"],
        ["--types", "bool"],
        ["--op", "xor"],
        ["--contenders", "me"],
        ["--contenders", "cub", "--backend", "cpu"],
        ["--repeat", "5"],
        ["file.npy"],
    ],
)
def test_refused_arguments(given, run):
    status, out, err = run(*given)
    assert (status, out) == (2, "")
    lines = [line for line in err.splitlines() if "warning" not in line]
    assert len(lines) == 1
    assert lines[0].startswith("distscan.bench: error: ")


@pytest.mark.one_rank
@pytest.mark.parametrize(
    ("text", "powers"), [("4", [4]), ("4:6", [4, 5, 6]), ("20:28:4,10", [10, 20, 24, 28])]
)
def test_sizes(text, powers):
    assert command.parser().parse_args(["--sizes", text]).sizes == powers


def test_help_and_list(run):
    status, out, _ = run("--help")
    assert status == 0
    assert "--sizes" in out
    status, out, _ = run("--list", "--backend", "cpu")
    assert status == 0
    assert [line.split()[0] for line in out.splitlines()[1:]] == [
        contender.name for contender in CONTENDERS
    ]
