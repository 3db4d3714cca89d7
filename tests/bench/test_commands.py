"""Each command of the benchmark once, with little data: its table, its JSON, its refusals."""

import copy
import json
import re
from xml.etree import ElementTree

import pytest

from distscan.bench import __main__ as command
from support.cuts import few_ranks

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
    status, out, err = run("--backend", "cpu", "--sizes", "8,10", "--types",
                           "float32,float64,int8:int64", "--json", path)  # fmt: skip
    assert status == 0, err
    assert "wall clock of one call, us" in out
    report = json.loads(path.read_text())
    assert (report["ranks"], report["backend"], report["repeat"]) == (comm.size, "cpu", 11)
    assert report["command"].startswith("python -m distscan.bench --backend cpu")
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


def test_json_alone(run):
    status, out, err = run(*SMALL, "--json", "-")
    assert status == 0, err
    copies, scan = json.loads(out)["results"]
    assert (copies["contender"], scan["contender"]) == ("copy", "distscan.scan")
    assert copies["share"] == 1


@few_ranks
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("option", "title"), [("--forms", "forms"), ("--uses", "uses")])
def test_forms_and_uses(option, title, run, comm, folder, monkeypatch):
    """Each has its line; then against this run itself, and against a run of sizes."""
    monkeypatch.setattr(command, "MIB", 1)
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
        found = json.loads(path.read_text())
        for scale, name in ((100, faster), (0.01, path)):
            changed = copy.deepcopy(found)
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
        status, out, err = run(*SMALL, "--against", folder / name)
        assert (status, out) == (2, ""), name
        lines = [line for line in err.splitlines() if "warning" not in line]
        assert len(lines) == 1, lines
        assert re.match("distscan.bench: error: (rank 0: )?--against: ", lines[0])


def test_plot(run, folder):
    pytest.importorskip("matplotlib")
    path = folder / "x.svg"
    status, _, err = run(*SMALL, "--plot", path)
    assert status == 0, err
    assert ElementTree.parse(path).getroot().tag == "{http://www.w3.org/2000/svg}svg"


@pytest.mark.parametrize(
    "arguments",
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
        ["--contenders", "cub"],
        ["--repeat", "5"],
        ["file.npy"],
        ["--block-scans"],
        ["--block-scans", "--plot", "x.svg"],
        ["--limit", "5"],
        ["--against", "x", "--limit", "101"],
        ["--against", "x", "--limit", "nan"],
        ["--against", "x", "--block-scans"],
        ["--forms", "0"],
        ["--forms", "x"],
        ["--forms", "--sizes", "10"],
        ["--forms", "--op", "max"],
        ["--forms", "--types", "int8"],
        ["--forms", "--plot", "x.svg"],
        ["--forms", "--block-scans"],
        ["--levels", "--sizes", "10"],
        ["--uses", "--forms"],
        ["--uses", "--op", "max"],
        ["--uses", "--types", "int8"],
        ["--uses", "--plot", "x.svg"],
        ["--uses", "--block-scans"],
        ["--uses", "--levels"],
        ["--uses", "--contenders", "copy"],
        ["--uses", "--limit", "5"],
    ],
    ids=" ".join,
)
def test_refused_arguments(arguments, run):
    status, out, err = run("--backend", "cpu", *arguments)
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
    assert {"copy", "numpy", "distscan.scan"} <= {line.split()[0] for line in out.splitlines()[1:]}
