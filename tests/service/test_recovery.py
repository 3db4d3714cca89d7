"""How a service ends, how the next one goes on with its jobs, and its supervisors."""

import configparser
import contextlib
import ctypes
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from distscan.service.errors import CancelledJobError, ServiceError
from support.services import ROOT, command, log_line, long_file, serving, wait_until

pytestmark = [pytest.mark.timeout(120), pytest.mark.one_rank]


def in_memory(service):
    """The folders in memory of all services that the test has started."""
    folders = Path("/dev/shm").glob(f"distscan-{os.getuid()}-*")
    return [path for path in folders if int(path.name.split("-")[2]) in service.pids]


def names(folder):
    return {path.name for path in folder.iterdir()}


def submit_two(service):
    """Submit a job, and one that waits for it; return their numbers when the first one runs."""
    np.save(service.folder / "x.npy", np.arange(10))
    with service.client() as client:
        runs = client.submit(long_file(service.folder, 1 << 26))
        waits = client.submit(service.folder / "x.npy", service.folder / "later.npy")
        wait_until(lambda: runs.state == "running")
    return runs.number, waits.number


def check_both(service, runs, waits, attempts):
    """Wait until the next service has run both jobs; end it."""
    with service.client() as client:
        assert client.job(runs).wait(60)["elements"] == 1 << 26
        assert client.job(waits).wait(60)["total"] == 45
        assert client.job(runs).refresh()["attempts"] == attempts
    assert service.end() == 0
    assert names(service.folder) == {"x.npy", "long.npy", "long.scan.npy", "later.npy", "state"}


@pytest.mark.parametrize(
    ("number", "ranks"), [(signal.SIGTERM, 3), (signal.SIGINT, 3), (signal.SIGHUP, 1)]
)
def test_the_running_job_ends_first(number, ranks, tmp_path):
    """New ones are refused meanwhile; those that wait run when the service is back."""
    with serving(tmp_path, ranks) as service:
        runs, waits = submit_two(service)
        with service.client(patience=0.1) as client:
            for pid in service.ranks_of():
                os.kill(pid, number)
            with pytest.raises(ServiceError):  # 503, or it has ended already
                wait_until(lambda: not client.request("GET", "/healthz"))
            with pytest.raises(ServiceError):
                client.submit(tmp_path / "x.npy", tmp_path / "refused.npy")
            assert service.wait(60) == 0
        assert names(tmp_path) == {"x.npy", "long.npy", "long.scan.npy", "state"}
        wait_until(lambda: not service.ranks_of())
        service.start()
        check_both(service, runs, waits, attempts=1)


@pytest.mark.parametrize(
    ("number", "ranks", "attempts"),
    [(signal.SIGTERM, 1, 1), (signal.SIGKILL, 3, 2)],
)
def test_a_job_that_is_interrupted(number, ranks, attempts, tmp_path):
    """By the end of the grace, or by a crash: the next service runs all; the log says so."""
    with serving(tmp_path, ranks, "--grace", "0", "--log-format", "json") as service:
        runs, waits = submit_two(service)
        status = service.end(number)
        assert number == signal.SIGKILL or status == 0
        wait_until(lambda: not service.ranks_of())
        assert names(tmp_path).isdisjoint({"long.scan.npy", "later.npy"})
        service.start()  # where the socket of a dead service may be
        message = f"job {runs} was interrupted; it is queued again"
        assert log_line(service, "json", "WARNING", message)["job"] == runs
        line = log_line(service, "json", "INFO", f"job {runs} begins", f"attempt {attempts}")
        assert line["attempt"] == attempts
        assert len(in_memory(service)) == 1
        check_both(service, runs, waits, attempts)
        assert in_memory(service) == []


def test_idle_ranks_sleep(tmp_path):
    """Under one hundredth of a core each."""
    with serving(tmp_path, 3) as service:
        with service.client() as client:
            client.scan(np.arange(300_000))

        def seconds_of_cores():
            ticks = os.sysconf("SC_CLK_TCK")
            seconds = {}
            for pid in service.ranks_of():
                with open(f"/proc/{pid}/stat") as file:
                    fields = file.read().rpartition(")")[2].split()
                seconds[pid] = (int(fields[11]) + int(fields[12])) / ticks
            return seconds

        used = []
        for _ in range(3):  # the system also counts what it does for others meanwhile
            before = seconds_of_cores()
            assert len(before) == 3
            time.sleep(6)
            after = seconds_of_cores()
            used.append(max(after[pid] - before[pid] for pid in before))
            if used[-1] < 0.07:  # ticks of 0.01
                return
        raise AssertionError(f"seconds in 6 of the rank that used most: {used}")


def test_a_signal_to_another_thread(tmp_path):
    """The system may deliver a signal to any thread; the main thread sleeps meanwhile."""
    tgkill = ctypes.CDLL(None, use_errno=True).tgkill
    with serving(tmp_path) as service:
        with service.client() as client:
            client.about()
        pid = service.process.pid
        others = {int(path.name) for path in Path(f"/proc/{pid}/task").iterdir()} - {pid}
        assert tgkill(pid, max(others), signal.SIGTERM) == 0
        assert service.wait(20) == 0


# ---- recovery ------------------------------------------------------------------------------------


RESUMED = 1 << 28  # bytes of input: a job of so many notes its chunks


@pytest.fixture
def large(tmp_path, rng):
    x = rng.integers(-1000, 1000, RESUMED // 8)
    np.save(tmp_path / "x.npy", x)
    return x


def begin(client, folder):
    """Submit a job of some seconds to two ranks; wait until both have noted chunks."""
    job = client.submit(folder / "x.npy", folder / "y.npy", memory=1 << 16)
    journals = ".y.npy.distscan-*.part.[0-9]"
    wait_until(lambda: sum(map(has_written, folder.glob(journals))) == 2, 60)
    return job.number


def has_written(journal):
    with contextlib.suppress(FileNotFoundError):  # a new journal gets its name
        return '"scanned": 0,' not in journal.read_text()
    return False


@pytest.mark.parametrize("ranks", [2, 1])
def test_the_next_service_goes_on(ranks, large, tmp_path):
    """With as many ranks after the last chunk, with others from the beginning."""
    with serving(tmp_path, 2) as service:
        with service.client() as client:
            number = begin(client, tmp_path)
            service.end(signal.SIGKILL)
        assert not (tmp_path / "y.npy").exists()
        service.ranks = ranks
        service.start()
        with service.client() as client:
            report = client.job(number).wait(60)
            assert client.job(number).refresh()["attempts"] == 2
        assert (report["bytes"]["write"] < large.nbytes) == (ranks == 2)
        assert service.end() == 0
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy", mmap_mode="r"), large.cumsum())
    assert names(tmp_path) == {"x.npy", "y.npy", "state"}


def test_a_job_that_is_cancelled_leaves_nothing(large, tmp_path):
    with serving(tmp_path, 2) as service, service.client() as client:
        number = begin(client, tmp_path)
        client.job(number).cancel()
        with pytest.raises(CancelledJobError):
            client.job(number).wait(60)
        assert names(tmp_path) == {"x.npy", "state", "socket"}


# ---- supervisors ---------------------------------------------------------------------------------


LAUNCH = ROOT / "launch"


def children(pid):
    """The processes that a process has started."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def stub(path, text):
    """Write a program for a test, and return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/usr/bin/env bash\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def notices(tmp_path, monkeypatch):
    """The socket of systemd, to which the service writes."""
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
    assert sum("it starts again in" in text for text in service.output) >= 2


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


FAILS = "echo run >>runs; (($(wc -l <runs) > 8))"  # eight times, and then ends well


@pytest.mark.parametrize(
    ("program", "backoff", "status", "waits"),
    [
        (FAILS, "1 60 600", 0, "1 2 4 8 16 32 60 60"),
        (FAILS, "3 10 600", 0, "3 6 10 10 10 10 10 10"),
        (FAILS, "2 60 0", 0, "2 2 2 2 2 2 2 2"),  # every run is a long one
        ("exit 0", "1 60 600", 0, ""),  # these ends are final
        ("exit 2", "1 60 600", 2, ""),
        *(("exit 0", wrong, 2, "") for wrong in ("1", "1 2", "1 2 x", "0.5 1 1")),
    ],
)
def test_back_off(program, backoff, status, waits, tmp_path):
    assert loop(tmp_path, program, backoff) == (status, waits.split())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_end_between_two_runs(number):
    line = [str(LAUNCH / "serve.sh"), "false"]
    environment = os.environ | {"DISTSCAN_BACKOFF": "60 60 600"}
    with subprocess.Popen(line, stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert "status 1; it starts again in 60 s" in process.stderr.readline()
        process.send_signal(number)
        assert process.wait(10) == 0


# ---- the unit of systemd, the script of Slurm ----------------------------------------------------


def grace_of(options):
    """Return the seconds that the last job has; ``serve`` takes the options."""
    assert command("serve", *options.split(), "--help")[0] == 0
    return int(re.search(r"--grace (\d+)", options)[1])


def test_the_unit():
    """Its options are those of ``serve``; it waits longer than the service does."""
    unit = configparser.ConfigParser(interpolation=None)
    unit.optionxform = str
    unit.read(LAUNCH / "distscan.service")
    service_options = unit["Service"]
    start, options = service_options["ExecStart"].split(" -m distscan serve ")
    assert start == "%h/distscan/bin/mpirun -n ${RANKS} %h/distscan/bin/python"
    assert grace_of(options) + 10 < int(service_options["TimeoutStopSec"])
    assert service_options["KillSignal"] == "SIGUSR1"  # README's service ends by it, too


def test_systemd_takes_the_unit(tmp_path):
    """Where there is systemd. Before version 254 it does not know two of the options."""
    stub(tmp_path / "distscan/bin/mpirun", "")
    if shutil.which("systemd-analyze"):
        ran = subprocess.run(
            ["systemd-analyze", "verify", "--user", str(LAUNCH / "distscan.service")],
            env=os.environ | {"HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path)},
            capture_output=True, text=True, timeout=60, check=False)  # fmt: skip
        unknown_keys = re.compile("Unknown key.* 'Restart(Steps|MaxDelaySec)'")
        assert [line for line in ran.stderr.splitlines() if not unknown_keys.search(line)] == []
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
    assert options.endswith("--queue 5\n")
    before = re.search(r"\n#SBATCH --signal=B:TERM@(\d+)\n", (LAUNCH / "serve.sbatch").read_text())
    assert grace_of(options) + 10 < int(before[1])
