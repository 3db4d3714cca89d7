"""How a service begins and ends: by signals, by kills, by what it is given."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import numpy as np
import pytest

from distscan.service import places
from distscan.service.errors import BusyError, ServiceError, UnauthorizedError
from support.services import ROOT, serving

pytestmark = [pytest.mark.timeout(120), pytest.mark.one_rank]
TOKEN = "0123456789abcdef-a-token"
ranks = pytest.mark.parametrize("ranks", [1, 3], ids=["1-rank", "3-ranks"])


def command(*arguments, **given):
    """Run ``python -m distscan``; return (status, stdout, stderr)."""
    ran = subprocess.run(
        [sys.executable, "-m", "distscan", *map(str, arguments)],
        capture_output=True,
        check=False,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        timeout=60,
        **given,
    )
    return ran.returncode, ran.stdout, ran.stderr


def long_file(folder, gib=0.5):
    """A file whose scan takes long enough to be disturbed."""
    np.lib.format.open_memmap(folder / "long.npy", "w+", "f8", (int(gib * 2**27),))
    return folder / "long.npy"


def in_memory(service):
    """The folders of arrays on their way, of all services that the test has started."""
    found = Path("/dev/shm").glob(f"distscan-{os.getuid()}-*")
    return [path for path in found if int(path.name.split("-")[2]) in service.pids]


def gone(service):
    """No rank is left, soon."""
    end = time.monotonic() + 10
    while service.ranks_of() and time.monotonic() < end:
        time.sleep(0.05)
    return service.ranks_of() == []


@ranks
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_the_running_job_ends_first(number, ranks, tmp_path):
    """New ones are refused meanwhile; those that wait run when the service is back."""
    with serving(tmp_path, ranks) as service:
        client, source = service.client(patience=0.1), long_file(tmp_path)
        runs = client.submit(source)
        waits = client.submit(source, tmp_path / "later.npy")
        while client.job(runs.number).state == "queued":
            time.sleep(0.005)
        for pid in service.ranks_of():
            os.kill(pid, number)
        time.sleep(0.1)  # Python calls handlers between two lines
        with pytest.raises((BusyError, ServiceError)):
            client.submit(source, tmp_path / "refused.npy")
        assert service.wait(60) == 0
        assert (tmp_path / "long.scan.npy").exists()
        assert not (tmp_path / "later.npy").exists()
        assert not (tmp_path / "socket").exists()
        assert gone(service)
        client.close()
        service.start()
        with service.client() as client:
            assert client.job(runs.number).wait()["elements"] == 1 << 26
            assert client.job(waits.number).wait(60)["elements"] == 1 << 26
        assert service.end() == 0
    assert (tmp_path / "later.npy").exists()


def test_a_job_that_takes_longer_than_the_grace(tmp_path):
    with serving(tmp_path, 1, "--grace", "0") as service:
        client = service.client()
        job = client.submit(long_file(tmp_path, 1))
        while client.job(job.number).state == "queued":
            time.sleep(0.005)
        assert service.end() == 0
        client.close()
        service.start()
        with service.client() as client, pytest.raises(ServiceError, match="submit it again"):
            client.job(job.number).wait()
    assert not (tmp_path / "long.scan.npy").exists()


@ranks
def test_killed(ranks, tmp_path):
    """Jobs that waited run, and the one that ran is reported; nothing half is there."""
    with serving(tmp_path, ranks) as service:
        client, source = service.client(), long_file(tmp_path)
        runs = client.submit(source)
        waits = client.submit(source, tmp_path / "later.npy")
        while client.job(runs.number).state == "queued":
            time.sleep(0.005)
        service.end(signal.SIGKILL)
        client.close()
        assert gone(service)
        assert not (tmp_path / "later.npy").exists()
        assert in_memory(service) != []  # of the service that was killed
        service.start()  # where the socket of the dead service is
        with service.client() as client:
            with pytest.raises(ServiceError, match="the service ended while the job ran"):
                client.job(runs.number).wait()
            assert client.job(waits.number).wait(60)["elements"] == 1 << 26
            client.submit(source, force=True).wait(60)
        assert len(in_memory(service)) == 1
        assert service.end() == 0
        assert in_memory(service) == []
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"long.npy", "long.scan.npy", "later.npy", "state"}


def test_a_rank_that_is_killed_ends_the_service(tmp_path):
    """``mpirun`` ends with it, so that a supervisor starts it again."""
    with serving(tmp_path, 3) as service:
        assert len(service.ranks_of()) == 3
        os.kill(max(service.ranks_of()), signal.SIGKILL)
        assert service.wait(30) != 0
        assert gone(service)


@ranks
def test_idle_ranks_sleep(ranks, tmp_path):
    """Under one hundredth of a core each."""
    with serving(tmp_path, ranks) as service:
        with service.client() as client:
            client.scan(np.arange(300_000))

        def used():
            ticks = os.sysconf("SC_CLK_TCK")
            found = {}
            for pid in service.ranks_of():
                with open(f"/proc/{pid}/stat") as file:
                    fields = file.read().rpartition(")")[2].split()
                found[pid] = (int(fields[11]) + int(fields[12])) / ticks
            return found

        before = used()
        assert len(before) == ranks
        time.sleep(3)
        after = used()
        assert max(after[pid] - before[pid] for pid in before) <= 0.03


# ---- over TCP ------------------------------------------------------------------------------------


@pytest.fixture
def token(tmp_path):
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    (tmp_path / "token").chmod(0o600)
    return tmp_path / "token"


def test_over_tcp(tmp_path, token):
    with serving(tmp_path, 1, "--host", "127.0.0.1", "--token-file", str(token)) as service:
        with service.client(TOKEN) as client:
            assert list(client.scan([3, 1, 4])) == [3, 4, 8]
        for wrong in (None, "x", TOKEN[:-1], TOKEN + "x", "é"):
            given = {} if wrong is None else {"authorization": f"Bearer {wrong}".encode()}
            for url in ("/v1", "/v1/jobs", "/v1/jobs/1"):
                answer = httpx.get(service.address + url, headers=given)
                assert answer.status_code == 401
        with service.client("wrong") as client, pytest.raises(UnauthorizedError):
            client.scan([1])
        assert httpx.get(f"{service.address}/healthz").status_code == 200
        status, out, err = command("jobs", "--address", service.address, "--token-file", token)
        assert (status, out, err) == (0, "", "")
        assert service.end() == 0
    said = "".join(service.said)
    assert "was refused: a wrong token" in said
    assert "was refused: no token" in said
    assert TOKEN not in said


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--host", "127.0.0.1"], "--token-file is needed"),
        (["--host", "0.0.0.0", "--token-file", "token"], "can be reached from other machines"),
        (["--host", "::", "--token-file", "token"], "can be reached from other machines"),
        (["--host", "10.0.0.1", "--token-file", "token"], "can be reached from other machines"),
        (["--host", "example.org", "--token-file", "token"], "can be reached from other machines"),
        (["--token-file", "token"], "name a --host"),
        (["--port", "80"], "name a --host"),
        (["--host", "127.0.0.1", "--socket", "s", "--token-file", "token"], "not on both"),
        (["--root", "none"], "No such file"),
    ],
    ids=" ".join,
)
def test_where_it_does_not_listen(options, message, tmp_path, token):
    status, out, err = command("serve", *options, "--state-dir", "state", cwd=tmp_path)
    assert status != 0
    assert out == ""
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "mode", "message"),
    [
        (TOKEN, 0o644, "others may read"),
        ("short", 0o600, "fewer than 16"),
        (None, 0, "cannot read"),
    ],
    ids=["readable", "short", "missing"],
)
def test_tokens_that_are_no_secret(text, mode, message, tmp_path):
    if text is not None:
        (tmp_path / "token").write_text(text)
        (tmp_path / "token").chmod(mode)
    with pytest.raises(ServiceError, match=message):
        places.token_in(tmp_path / "token")
    given = ["--host", "127.0.0.1", "--token-file", "token", "--state-dir", "state"]
    status, _, err = command("serve", *given, cwd=tmp_path)
    assert status == 1
    assert message in err


# ---- its socket ----------------------------------------------------------------------------------


def test_one_service_at_a_time(tmp_path):
    with serving(tmp_path) as service:
        assert (tmp_path / "socket").stat().st_mode & 0o777 == 0o600
        given = ["--socket", tmp_path / "socket", "--backend", "cpu"]
        status, _, err = command("serve", *given, "--state-dir", tmp_path / "other")
        assert (status, err) == (
            1, f"distscan: error: another service listens on {tmp_path}/socket\n")  # fmt: skip
        status, _, err = command("serve", "--socket", tmp_path / "s", "--state-dir",
                                 tmp_path / "state")  # fmt: skip
        assert status == 1
        assert "another service uses" in err
        assert service.end() == 0
    (tmp_path / "socket").write_text("a file")
    status, _, err = command(
        "serve", "--socket", tmp_path / "socket", "--state-dir", tmp_path / "o"
    )
    assert status == 1
    assert (tmp_path / "socket").read_text() == "a file"


def test_a_folder_of_another_user(tmp_path):
    """A socket's folder to which others may write is no place for it."""
    (tmp_path / "distscan").mkdir()
    (tmp_path / "distscan").chmod(0o777)
    with pytest.raises(ServiceError, match="nobody else may write to"):
        places.make_private(tmp_path / "distscan")
    places.make_private(tmp_path / "new")
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700


def test_no_service(tmp_path):
    """The message says how to start one."""
    status, out, err = command("jobs", "--address", tmp_path / "none")
    assert (status, out) == (1, "")
    assert "no service answers on" in err
    assert "python -m distscan serve" in err


# ---- commands ------------------------------------------------------------------------------------


def test_commands(tmp_path):
    """As the file job: the same options, the same report."""
    x = np.arange(10.0)
    np.save(tmp_path / "x.npy", x)
    with serving(tmp_path) as service:
        where = ["--address", service.address]
        status, out, err = command("submit", "x.npy", "--op", "max", *where, cwd=tmp_path)
        assert status == 0, err
        assert "max of 10 elements, float64 to float64" in out
        assert "total 9.0" in out
        np.testing.assert_array_equal(np.load(tmp_path / "x.scan.npy"), x)
        status, out, err = command("submit", "x.npy", *where, cwd=tmp_path)
        assert (status, out) == (2, "")
        assert "exists; --force replaces it" in err
        given = ["--force", "--json", "--quiet", "--initial", "3"]
        status, out, _ = command("submit", "x.npy", *given, *where, cwd=tmp_path)
        assert '"total": 48.0' in out
        status, out, _ = command("submit", "x.npy", "--force", "--detach", *where, cwd=tmp_path)
        number = int(out)
        status, out, _ = command("jobs", *where)
        assert [line.split()[0] for line in out.splitlines()] == ["4", "3", "2", "1"]
        assert f"{tmp_path}/x.npy" in out
        status, out, _ = command("show", number, *where)
        assert f'"number": {number}' in out
        assert command("cancel", number, *where)[0] == 0
        status, _, err = command("show", 77, *where)
        assert (status, err) == (1, "distscan: error: there is no job 77\n")
        for wrong in (["submit"], ["show", "x"], ["jobs", "--no"], ["submit", "x", "--axis", "y"]):
            assert command(*wrong, *where)[0] == 2
        assert command("serve", "--help")[0] == 0
        assert command("submit", "--help")[1].startswith("usage: python -m distscan submit")
        assert service.end() == 0


def test_clients_start_no_mpi(tmp_path):
    code = "import sys, distscan; distscan.connect('none'); print('mpi4py.MPI' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "False\n"
