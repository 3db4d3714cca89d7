"""Supervisors start a service again after a crash, and end it without a trace."""

import configparser
import os
import re
import shutil
import signal
import socket
import subprocess
from pathlib import Path

import numpy as np
import pytest

from distscan.service import serve
from support.services import ROOT, long_file, serving

pytestmark = [pytest.mark.timeout(120), pytest.mark.one_rank]
LAUNCH = ROOT / "launch"


def children(pid):
    """The processes that a process has started."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def stub(path, text):
    """A program that does what the test needs of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/usr/bin/env bash\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def notices(tmp_path, monkeypatch):
    """What the service tells systemd."""
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
        line.bind(str(tmp_path / "notify"))
        line.settimeout(30)
        yield line


# A socket that cannot connect, httpcore leaves to Python to close.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_service_that_is_killed_comes_back(tmp_path, monkeypatch, notices, rng):
    """First a rank is killed, then ``mpirun``. Each time the job that waits runs afterwards."""
    monkeypatch.setenv("DISTSCAN_BACKOFF", "0 1 600")
    monkeypatch.setenv("OMPI_ALLOW_RUN_AS_ROOT", "1")
    monkeypatch.setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
    x, long = rng.integers(-1000, 1000, 50_000), long_file(tmp_path)
    np.save(tmp_path / "x.npy", x)
    by = [LAUNCH / "serve.sh", "mpirun", "-n", 2]
    with serving(tmp_path, 2, launcher=by) as service, service.client(patience=60) as client:
        for victim in (max(service.ranks_of()), "mpirun"):
            assert notices.recv(100) == b"READY=1"
            runs = client.submit(long, force=True)
            waits = client.submit(tmp_path / "x.npy", force=True)
            for record in runs.updates():
                if record["state"] == "running":
                    break
            (mpirun,) = children(service.process.pid)
            os.kill(mpirun if victim == "mpirun" else victim, signal.SIGKILL)
            runs.cancel()
            assert waits.wait(60)["elements"] == x.size
            np.testing.assert_array_equal(np.load(tmp_path / "x.scan.npy"), x.cumsum())
        os.kill(service.process.pid, signal.SIGTERM)
        assert service.wait(30) == 0
    assert service.ranks_of() == []
    assert not (tmp_path / "socket").exists()
    assert sum("it starts again in" in text for text in service.said) >= 2


# ---- the loop alone, around other programs -------------------------------------------------------


def loop(folder, command, backoff):
    """Run the loop; return its status, and the seconds that it would have waited."""
    stub(folder / "bin/sleep", f'echo "$1" >>{folder}/waits')
    environment = os.environ | {
        "PATH": f"{folder}/bin:{os.environ['PATH']}",
        "DISTSCAN_BACKOFF": backoff,
    }
    (folder / "waits").touch()
    line = [str(LAUNCH / "serve.sh"), str(stub(folder / "command", command))]
    ran = subprocess.run(line, env=environment, cwd=folder, timeout=30, check=False)
    return ran.returncode, (folder / "waits").read_text().split()


@pytest.mark.parametrize(
    ("backoff", "waits"),
    [
        ("1 60 600", "1 2 4 8 16 32 60 60"),
        ("3 10 600", "3 6 10 10 10 10 10 10"),
        ("2 60 0", "2 2 2 2 2 2 2 2"),  # every run is a long one
    ],
)
def test_back_off(backoff, waits, tmp_path):
    """A program that fails eight times, and then ends well."""
    fails = "echo run >>runs; (($(wc -l <runs) > 8))"
    assert loop(tmp_path, fails, backoff) == (0, waits.split())


@pytest.mark.parametrize("status", [0, 2])
def test_ends_that_are_final(status, tmp_path):
    assert loop(tmp_path, f"exit {status}", "1 60 600") == (status, [])


@pytest.mark.parametrize("backoff", ["1", "1 2", "1 2 x", "0.5 1 1"])
def test_numbers_that_are_wrong(backoff, tmp_path):
    assert loop(tmp_path, "exit 0", backoff) == (2, [])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_end_between_two_runs(number):
    line = [str(LAUNCH / "serve.sh"), "false"]
    environment = os.environ | {"DISTSCAN_BACKOFF": "60 60 600"}
    with subprocess.Popen(line, stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert "status 1; it starts again in 60 s" in process.stderr.readline()
        process.send_signal(number)
        assert process.wait(10) == 0


# ---- the unit of systemd, the script of Slurm ----------------------------------------------------


def checked(options):
    """What ``serve`` makes of its options."""
    args = serve.parser().parse_args(options)
    serve.check(args)
    return args


def test_the_unit():
    """Its options are those of ``serve``; it waits longer than the service does."""
    unit = configparser.ConfigParser(interpolation=None)
    unit.optionxform = str
    unit.read(LAUNCH / "distscan.service")
    given = unit["Service"]
    start, options = given["ExecStart"].split(" -m distscan serve ")
    assert start == "%h/distscan/bin/mpirun -n ${RANKS} %h/distscan/bin/python"
    assert checked(options.split()).grace + 10 < int(given["TimeoutStopSec"])
    assert signal.Signals[given["KillSignal"]] in serve.SHUTDOWN_SIGNALS


def test_systemd_takes_the_unit(tmp_path):
    """Where there is systemd. Before version 254 it does not know two of the options."""
    stub(tmp_path / "distscan/bin/mpirun", "")
    if shutil.which("systemd-analyze"):
        ran = subprocess.run(
            ["systemd-analyze", "verify", "--user", str(LAUNCH / "distscan.service")],
            env=os.environ | {"HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path)},
            capture_output=True, text=True, timeout=60, check=False)  # fmt: skip
        known = re.compile("Unknown key.* 'Restart(Steps|MaxDelaySec)'")
        assert [line for line in ran.stderr.splitlines() if not known.search(line)] == []
        assert ran.returncode == 0


def test_the_script_of_slurm(tmp_path):
    """It passes options on, and leaves the service the time that it needs to end."""
    stub(tmp_path / "bin/srun", 'echo "$@"')
    ran = subprocess.run(
        ["bash", str(LAUNCH / "serve.sbatch"), "--queue", "5"],
        env={"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "SLURM_SUBMIT_DIR": str(ROOT)},
        capture_output=True, text=True, timeout=30, check=True)  # fmt: skip
    start, options = ran.stdout.split(" python -m distscan serve ")
    assert start == "--mpi=pmix --kill-on-bad-exit=1"
    args = checked(options.split())
    assert args.queue == 5
    before = re.search(r"\n#SBATCH --signal=B:TERM@(\d+)\n", (LAUNCH / "serve.sbatch").read_text())
    assert args.grace + 10 < int(before[1])
