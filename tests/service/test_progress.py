"""The bar of a job: in a terminal and in a notebook, and how it ends."""

import json
import sys
import warnings

import numpy as np
import pytest
from tqdm import std

import distscan
from distscan.core.errors import InputError
from distscan.job.report import Report
from distscan.service.client import Bar, JobHandle
from distscan.service.errors import CancelledJobError
from distscan.service.transport import Answer
from support import fresh

pytestmark = [pytest.mark.timeout(120), pytest.mark.one_rank]


def record(state, phase=None, done=0, **more):
    found = phase and {"phase": phase, "done": done, "size": 4 * 10**9}
    return {"number": 7, "state": state, "progress": found, "report": None, "error": None} | more


COURSE = [
    record("queued"),
    record("running") | {"progress": {"phase": "start", "done": 0, "size": 0}},
    record("running", "reduce", 10**9),
    record("running", "scan", 10**9),
    record("running", "scan", 3 * 10**9),
]


class Course:
    """A service that says this of job 7; an exception is raised."""

    def __init__(self, *records):
        self.records, self.asked = list(records), 0
        self.job = JobHandle(self.send, record("queued"))

    def send(self, method, url, **given):
        found = self.records[min(self.asked, len(self.records) - 1)]
        self.asked += 1
        if isinstance(found, BaseException):
            raise found
        return Answer(200, json.dumps(found).encode())


@pytest.fixture(autouse=True)
def _no_bar_is_left():
    yield
    assert not std.tqdm._instances


def test_each_phase(capsys):
    course = Course(*COURSE, record("done", report={"total": 3}))
    assert course.job.wait(progress=True) == {"total": 3}
    out, err = capsys.readouterr()
    assert out == ""
    shown = [line.strip() for line in err.replace("\r", "\n").splitlines()]
    for begin in ("queued: 0.00B", "start: 0.00B", "reduce:  25%", "scan:  25%", "scan:  75%",
                  "done: 100%"):  # fmt: skip
        assert any(line.startswith(f"job 7: {begin}") for line in shown), (begin, shown)
    assert "3.00G/4.00G" in err
    assert err.endswith("\n")


def test_without_a_bar(capsys):
    assert Course(*COURSE, record("done", report={})).job.wait() == {}
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("end", "error"),
    [
        (record("failed", error={"type": "InputError", "message": "no file"}), InputError),
        (record("cancelled"), CancelledJobError),
        (KeyboardInterrupt(), KeyboardInterrupt),
        (ConnectionError("lost"), ConnectionError),
        (COURSE[-1], TimeoutError),
    ],
)
def test_the_bar_is_closed(end, error, capsys):
    course = Course(*COURSE, end)
    with pytest.raises(error):
        course.job.wait(0.2, progress=True)
    assert "job 7: scan:  75%" in capsys.readouterr().err
    assert not std.tqdm._instances


def test_a_job_that_begins_again(capsys):
    """After a crash of the service, its bar goes back."""
    again = [*COURSE, record("queued"), *COURSE[1:]]
    Course(*again, record("done", report={})).job.wait(progress=True)
    assert "job 7: queued: " in capsys.readouterr().err.rpartition("75%")[0].partition("75%")[2]


def test_several_threads_wait(monkeypatch):
    """What a later, slower answer to another thread says does not matter."""
    course = Course(record("done", report={"total": 3}), record("running", "scan", 1))
    monkeypatch.setattr(Bar, "show", lambda bar, record: course.job.refresh())
    assert course.job.wait(progress=True) == {"total": 3}


def test_no_tqdm(monkeypatch):
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    course = Course(*COURSE)
    with pytest.raises(ImportError, match=r"tqdm.*pip install '\.\[service\]'"):
        course.job.wait(progress=True)
    assert course.asked == 0


def test_it_is_imported_when_it_is_asked_for():
    run = fresh.python(
        "import sys, distscan.service.client, distscan.service.commands\n"
        "assert 'tqdm' not in sys.modules"
    )
    assert (run.returncode, run.stderr) == (0, "")


# ---- notebooks -----------------------------------------------------------------------------------

# What tqdm uses of a notebook's kernel. Versions of tqdm find the kernel in two ways.
KERNEL = """
import sys, types

shell = types.SimpleNamespace(config={"IPKernelApp": {}})
sys.modules["IPython"] = types.ModuleType("IPython")
sys.modules["IPython"].get_ipython = lambda: shell
sys.modules["ipykernel.zmqshell"] = types.ModuleType("ipykernel.zmqshell")
"""
WIDGETS = """
class Widget:
    def __init__(self, children=(), **given):
        self.children, self.style = children, types.SimpleNamespace()
        self.layout = types.SimpleNamespace(width=None)
        self.bar_style = self.value = ""
        vars(self).update(given)
    def close(self):
        pass

shown = []
sys.modules["ipywidgets"] = types.ModuleType("ipywidgets")
vars(sys.modules["ipywidgets"]).update(HTML=Widget, FloatProgress=Widget, HBox=Widget)
sys.modules["IPython.display"] = types.ModuleType("IPython.display")
sys.modules["IPython.display"].display = shown.append
"""
JOB = """
sys.path.insert(0, {tests!r})
from service.test_progress import COURSE, Course, record
assert Course(*COURSE, record("done", report={{"total": 3}})).job.wait(progress=True)["total"] == 3
"""


def in_notebook(*parts):
    return fresh.python("\n".join(parts) + JOB.format(tests=__file__.rpartition("/service/")[0]))


def test_widgets():
    run = in_notebook(
        KERNEL,
        WIDGETS,
        "import atexit",
        "atexit.register(lambda: print([each.value for each in shown[0].children],"
        " shown[0].children[1].max, len(shown)))",
    )
    assert (run.returncode, run.stderr) == (0, "")
    assert "job 7: done: 100%" in run.stdout.replace("\\u2007", " ")  # spaces as wide as digits
    assert run.stdout.strip().endswith("4000000000 1")  # one bar, of so many bytes


@pytest.mark.parametrize("strict", [False, True])
def test_no_widgets(strict):
    """tqdm says what to install, and the bar is text."""
    first = "import warnings; warnings.simplefilter('error')" if strict else ""
    run = in_notebook(KERNEL, first)
    assert (run.returncode, run.stdout) == (0, "")
    assert "job 7: done: 100%" in run.stderr
    assert ("IProgress not found" in run.stderr) != strict


# ---- jobs of a service ---------------------------------------------------------------------------


def test_results(service, client, rng, capsys):
    """``result`` returns what ``scan_file`` returns."""
    x = rng.integers(0, 9, 5000)
    np.save(service.folder / "x.npy", x)
    job = client.submit(service.folder / "x.npy", service.folder / "y.npy", "max", force=True)
    with warnings.catch_warnings(record=True) as said:
        report = job.wait(30, progress=True)
    assert (said, f"job {job.number}: " in capsys.readouterr().err) == ([], True)
    found = job.result(30)
    assert isinstance(found, Report)
    assert found._asdict() == report
    direct = distscan.scan_file(service.folder / "x.npy", service.folder / "z.npy", "max")
    assert type(direct) is type(found)
    same = ("elements", "dtype_in", "dtype_out", "op", "total", "backend")
    assert [getattr(found, name) for name in same] == [getattr(direct, name) for name in same]
    np.testing.assert_array_equal(np.load(found.output), np.maximum.accumulate(x))


def test_results_of_jobs_that_fail(service, client):
    with pytest.raises(InputError, match="No such file"):
        client.submit(service.folder / "none.npy").result(30)
    long = service.folder / "long.npy"
    np.lib.format.open_memmap(long, "w+", "f8", (1 << 26,))
    job = client.submit(long, force=True)
    with pytest.raises(TimeoutError, match=r"is (queued|running) after 0 s"):
        job.result(0)
    job.cancel()
    with pytest.raises(CancelledJobError):
        job.result(60)
    long.unlink()
