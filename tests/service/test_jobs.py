"""File jobs by a service: results, faults, cancellation, the queue, and the bar of a wait."""

import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from tqdm import std

import distscan
from distscan import InputError
from distscan.service.errors import CancelledJobError, JobEndedError
from support import processes
from support.display import rows
from support.services import long_file

pytestmark = [pytest.mark.timeout(120), pytest.mark.one_rank]


def test_a_file_job(service, client, rng, capsys):
    """``result`` returns the report as ``scan_file`` does."""
    x, source = rng.normal(size=50_000), service.folder / "x.npy"
    np.save(source, x)
    options = {"op": "max", "reverse": True, "check": True, "force": True}
    job = client.submit(source, service.folder / "y.npy", **options)
    with warnings.catch_warnings(record=True) as caught:
        report = job.wait(30, progress=True)
    assert (caught, f"job {job.number}: " in capsys.readouterr().err) == ([], True)
    np.testing.assert_array_equal(
        np.load(service.folder / "y.npy"), np.maximum.accumulate(x[::-1])[::-1]
    )
    assert (report["elements"], report["ranks"]) == (x.size, service.ranks)
    assert (report["op"], report["total"]) == ("max", x.max())
    assert job.state == "done"
    assert job.progress() is None
    assert [handle.number for handle in client.jobs(1)] == [job.number]
    assert client.job(job.number).wait() == report
    result, direct = job.result(30), distscan.scan_file(source, service.folder / "z.npy", **options)
    assert type(result) is type(direct)
    assert result._asdict() == report
    shown = rows(job._repr_html_())
    assert (shown["state"], shown["op"], shown["input"]) == ("done", "max", str(source))
    names = ("elements", "dtype_in", "dtype_out", "op", "total", "backend")
    assert [getattr(result, name) for name in names] == [getattr(direct, name) for name in names]


def test_a_job_that_fails(service, client):
    """Its client gets the exception; the next job runs."""
    np.save(service.folder / "x.npy", np.ones(10))
    (service.folder / "text.npy").write_bytes(b"text")
    for name, output, message in (
        ("none.npy", None, "No such file"),
        ("text.npy", service.folder / "w.npy", "not a .npy file"),
    ):
        job = client.submit(service.folder / name, output)
        for wait in (job.wait, job.result):
            with pytest.raises(InputError, match=message):
                wait(30)
        shown = rows(job._repr_html_())
        assert shown["state"] == "failed"
        assert message in shown["InputError"]
    with pytest.raises(ValueError, match="exists; force=True replaces it"):
        client.submit(service.folder / "x.npy", service.folder / "text.npy").wait(30)
    assert (service.folder / "text.npy").read_bytes() == b"text"
    client.submit(service.folder / "x.npy", force=True).wait(30)


def test_shown_as_it_is_now(service, client):
    """A notebook shows a job's state when it shows the job; names of files are escaped."""
    source = service.folder / "<x>.npy"
    np.save(source, np.ones(10))
    job = client.submit(source, force=True)
    client.job(job.number).wait(30)
    assert rows(job._repr_html_())["state"] == "done"
    assert "&lt;x&gt;.npy" in job._repr_html_()


def test_a_client_in_a_notebook(service, client):
    shown = rows(client._repr_html_())
    assert shown["ranks"] == str(service.ranks)
    assert str(service.address) in client._repr_html_()


def test_a_total_that_json_has_not(service, client):
    np.save(service.folder / "x.npy", np.array([1, np.nan]))
    assert client.submit(service.folder / "x.npy", force=True).wait(30)["total"] == "nan"


def test_cancelled(service, client):
    """A job that runs ends at its next chunk; one that waits does not begin."""
    long = long_file(service.folder)
    np.save(service.folder / "x.npy", np.ones(10))
    runs = client.submit(long, force=True)
    waits = client.submit(service.folder / "x.npy", service.folder / "never.npy")
    with pytest.raises(TimeoutError, match=r"is (queued|running) after 0 s"):
        runs.result(0)
    assert waits.cancel()
    assert runs.cancel()
    for wait in (waits.wait, runs.wait, runs.result):
        with pytest.raises(CancelledJobError):
            wait(60)
    assert not (service.folder / "never.npy").exists()
    assert not (service.folder / "long.scan.npy").exists()
    done = client.submit(service.folder / "x.npy", force=True)
    done.wait(30)
    for ended, state in ((waits, "cancelled"), (runs, "cancelled"), (done, "done")):
        assert not ended.cancel()
        assert ended.state == state
        with pytest.raises(JobEndedError, match=f"job {ended.number} had ended: {state}"):
            client.request("DELETE", f"/v1/jobs/{ended.number}")
    assert [path for path in service.folder.iterdir() if path.name.endswith(".part")] == []
    client.submit(service.folder / "x.npy", force=True).wait(30)
    long.unlink()


# ---- the bar -------------------------------------------------------------------------------------


def record(state, phase=None, share=0.0, **more):
    progress = phase and {"phase": phase, "done": 0, "size": 0, "share": share}
    return {"number": 7, "state": state, "progress": progress, "report": None, "error": None} | more


COURSE = [
    record("queued"),
    record("running", "start"),
    record("running", "window", 0.25),
    record("running", "scan", 0.5),
    record("running", "scan", 0.75),
]


class Course:
    """A service that says this of job 7; an exception is raised."""

    def __init__(self, *records):
        self.records, self.requests = [COURSE[0], *records], 0
        client = distscan.connect("none")
        client.request = self.answer
        self.job = client.job(7)

    def answer(self, method, url, **options):
        record = self.records[min(self.requests, len(self.records) - 1)]
        self.requests += 1
        if isinstance(record, BaseException):
            raise record
        return SimpleNamespace(json=lambda: record)


def test_each_phase(capsys):
    last = record("done", report={"total": 3})
    assert Course(*COURSE, last).job.wait() == {"total": 3}
    assert capsys.readouterr() == ("", "")
    assert Course(*COURSE, last).job.wait(progress=True) == {"total": 3}
    assert not std.tqdm._instances
    out, err = capsys.readouterr()
    assert out == ""
    lines = [line.strip() for line in err.replace("\r", "\n").splitlines()]
    for begin in ("queued:   0%", "start:   0%", "window:  25%", "scan:  50%", "scan:  75%",
                  "done: 100%"):  # fmt: skip
        assert any(line.startswith(f"job 7: {begin}") for line in lines), (begin, lines)
    assert err.endswith("\n")


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
    course = [*COURSE, record("queued"), *COURSE[1:]]
    Course(*course, record("done", report={})).job.wait(progress=True)
    assert "job 7: queued: " in capsys.readouterr().err.rpartition("75%")[0].partition("75%")[2]


def test_several_threads_wait(monkeypatch):
    """A later, slower answer to another thread does not matter."""
    course = Course(record("done", report={"total": 3}), record("running", "scan", 0.1))
    monkeypatch.setattr(
        "distscan.service.client.Bar.show", lambda bar, record: course.job.refresh()
    )
    assert course.job.wait(progress=True) == {"total": 3}


def test_no_tqdm(monkeypatch):
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    course = Course(*COURSE)
    with pytest.raises(ImportError, match=r"tqdm.*pip install '\.\[service\]'"):
        course.job.wait(progress=True)
    assert course.requests == 1  # before the wait


# ---- notebooks -----------------------------------------------------------------------------------

# The parts of a notebook that tqdm uses. Versions of tqdm find the kernel in two ways.
KERNEL = """
import atexit, sys, types

shell = types.SimpleNamespace(config={"IPKernelApp": {}})
sys.modules["IPython"] = types.ModuleType("IPython")
sys.modules["IPython"].get_ipython = lambda: shell
sys.modules["ipykernel.zmqshell"] = types.ModuleType("ipykernel.zmqshell")
"""
WIDGETS = """
class Widget:
    def __init__(self, children=(), **values):
        self.children, self.style = children, types.SimpleNamespace()
        self.layout = types.SimpleNamespace(width=None)
        self.bar_style = self.value = ""
        vars(self).update(values)
    def close(self):
        pass

shown = []
sys.modules["ipywidgets"] = types.ModuleType("ipywidgets")
vars(sys.modules["ipywidgets"]).update(HTML=Widget, FloatProgress=Widget, HBox=Widget)
sys.modules["IPython.display"] = types.ModuleType("IPython.display")
sys.modules["IPython.display"].display = shown.append
atexit.register(lambda: print([each.value for each in shown[0].children],
                              shown[0].children[1].max, len(shown)))
"""
JOB = """
sys.path.insert(0, sys.argv[1])
from service.test_jobs import COURSE, Course, record
assert Course(*COURSE, record("done", report={"total": 3})).job.wait(progress=True)["total"] == 3
"""


def in_notebook(*parts):
    return processes.python("\n".join([*parts, JOB]), Path(__file__).parents[1])


def test_widgets():
    run = in_notebook(KERNEL, WIDGETS)
    assert (run.returncode, run.stderr) == (0, "")
    assert "job 7: done: 100%" in run.stdout.replace("\\u2007", " ")  # spaces as wide as digits
    assert run.stdout.strip().endswith("1.0 1")  # one bar, from 0 to 1


@pytest.mark.parametrize("strict", [False, True])
def test_no_widgets(strict):
    """tqdm says which package is missing, and the bar is text."""
    first = "import warnings; warnings.simplefilter('error')" if strict else ""
    run = in_notebook(KERNEL, first)
    assert (run.returncode, run.stdout) == (0, "")
    assert "job 7: done: 100%" in run.stderr
    assert ("IProgress not found" in run.stderr) != strict
