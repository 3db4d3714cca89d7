"""A service survives faults and load: the scripts in ``launch``, for seconds; their own checks."""

import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import service_faults
import service_speed
from processes import Fault
from service_cases import FAULTS, Trial
from service_fuzz import Fuzzer, RawRequest, exceptions, framed
from service_running import running

TOOLS = Path(__file__).parents[2] / "launch" / "tools"
pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.one_rank,
    # httpcore leaves a socket that cannot connect to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


@pytest.fixture(scope="module")
def disturbed(tmp_path_factory):
    """A service of 2 ranks; at its end, nothing of it is left."""
    with running(tmp_path_factory.mktemp("service"), 2) as service:
        yield service


@pytest.mark.parametrize("kind", FAULTS)
def test_faults(kind, disturbed, rng):
    name = kind.replace(" ", "-")
    assert service_faults.disturb(Trial(disturbed, rng, name, mounted=False), kind) < 5


def test_faults_that_the_script_sees(disturbed, rng):
    """An output that is wrong, or that changes later; a job that is there twice."""
    trial = Trial(disturbed, rng, "seen", mounted=False)
    job = trial.jobs[0]
    with disturbed.client() as client:
        trial.note(job, job.submit(client))
        service_faults.account(trial, job, client, "")
        with pytest.raises(Fault, match="its output is wrong"):
            service_faults.account(trial, job._replace(want=job.want + 1), client, "")
        time.sleep(0.05)  # a change within 0.01 s of the end is taken for the job's own
        np.save(job.output, job.want)
        os.utime(job.output, (0, 0))  # the clock of files may not have gone on
        with pytest.raises(Fault, match="its output changed later"):
            service_faults.account(trial, job, client, "")
        for other in trial.jobs[1:]:
            trial.note(other, other.submit(client))
            service_faults.account(trial, other, client, "")
        service_faults.count(trial, client)
        job._replace(key="another").submit(client)
        with pytest.raises(Fault, match="is there as"):
            service_faults.count(trial, client)
    with pytest.raises(Fault, match="one key"):
        trial.note(job, 77)
    trial.remove()


@pytest.mark.parametrize(("name", "times"), [("service_fuzz.py", 300), ("service_speed.py", 200)])
def test_scripts(name, times):
    options = ["--times", str(times), "--ranks", "2"]
    options += ["--clients", "4"] if name == "service_speed.py" else []
    run = subprocess.run(
        [sys.executable, TOOLS / name, *options],
        text=True, capture_output=True, timeout=100, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.parametrize(
    ("status", "fault"), [(200, None), (500, "N b'{}'"), (None, "closed without an answer")]
)
def test_answers_that_the_fuzzer_sees(status, fault, tmp_path):
    head = f"HTTP/1.1 {status} As it is\r\ncontent-length: 2\r\n\r\n{{}}"
    answer = b"" if status is None else head.encode()
    options = SimpleNamespace(first=0, seed=1)
    fuzzer = Fuzzer(SimpleNamespace(socket=tmp_path / "socket"), options)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
        server.listen()

        def serve():
            line, _ = server.accept()
            with line:
                line.recv(1000)
                line.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        fuzzer.send(7, RawRequest(framed(b"GET /v1", b""), framed=True))
        thread.join()
    assert list(fuzzer.faults) == ([fault] if fault else [])


def test_exceptions_that_the_fuzzer_sees():
    """The last one of those that follow from each other; none of uvicorn's."""
    trace = 'Traceback (most recent call last):\n  File "a.py", line 1, in f\n    g()\n'
    follows = "\nDuring handling of the above exception, another exception occurred:\n\n"
    output = f"x\n{trace}ValueError: 1\n{follows}{trace}KeyError: 27\ny\n"
    assert list(exceptions(output)) == ["KeyError: N"]
    assert exceptions(f"{trace}h11._util.LocalProtocolError: no\n") == exceptions("x") == {}


def test_arrays_that_the_load_sees(monkeypatch):
    def lost(x):
        raise OSError("no answer")

    for scan, count in (
        (np.cumsum, 0),
        (lambda x: x, service_speed.WRONG),
        (lost, service_speed.LOST),
    ):
        one = SimpleNamespace(client=SimpleNamespace(scan=scan), seed=1)
        monkeypatch.setattr(service_speed, "Worker", one)
        assert service_speed.scan(1) == count
