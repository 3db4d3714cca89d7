"""Where a service listens, who may come, and its commands."""

import os
import ssl
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy as np
import pytest

import distscan
from distscan.service import commands, protocol
from distscan.service.errors import ServiceError, UnauthorizedError
from support.services import ROOT, TOKEN, command, over_tcp, serving

pytestmark = [pytest.mark.timeout(120), pytest.mark.one_rank]

# ---- over TCP ------------------------------------------------------------------------------------


def test_over_tcp(tmp_path, monkeypatch):
    with serving(tmp_path, 1, *over_tcp(tmp_path)) as service:
        with service.client(TOKEN) as client:
            assert list(client.scan([3, 1, 4])) == [3, 4, 8]
        for wrong in (None, "x", TOKEN[:-1], TOKEN + "x", "é"):
            given = {} if wrong is None else {"authorization": f"Bearer {wrong}".encode()}
            for url in ("/v1", "/v1/jobs", "/v1/jobs/1"):
                answer = httpx.get(service.address + url, headers=given)
                assert answer.status_code == 401
        with service.client("wrong") as client, pytest.raises(UnauthorizedError):
            client.scan([1])
        monkeypatch.setenv("DISTSCAN_SERVICE", service.address)
        with distscan.connect() as client, pytest.raises(UnauthorizedError):
            client.scan([1])
        monkeypatch.setenv("DISTSCAN_TOKEN", f"{TOKEN}\n")
        with distscan.connect() as client:
            assert repr(client) == f"<Client of {service.address}>"
            assert list(client.scan([3, 1, 4])) == [3, 4, 8]
        assert command("jobs") == (0, "", "")
        monkeypatch.delenv("DISTSCAN_TOKEN")
        assert httpx.get(f"{service.address}/healthz").status_code == 200
        where = ["--address", service.address, "--token-file", tmp_path / "token"]
        assert command("jobs", *where) == (0, "", "")
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
        (["--host", "example.org", "--token-file", "token"], "can be reached from other machines"),
        (["--token-file", "token"], "name a --host"),
        (["--port", "80"], "name a --host"),
        (["--host", "127.0.0.1", "--socket", "s", "--token-file", "token"], "not on both"),
        (["--root", "none"], "No such file"),
    ],
)
def test_where_it_does_not_listen(options, message, tmp_path):
    over_tcp(tmp_path)
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
        protocol.token_in(tmp_path / "token")
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
        given = ["--socket", tmp_path / "s", "--state-dir", tmp_path / "state"]
        status, _, err = command("serve", *given)
        assert status == 1
        assert "another service uses" in err
        assert service.end() == 0
    (tmp_path / "socket").write_text("a file")
    given = ["--socket", tmp_path / "socket", "--state-dir", tmp_path / "o"]
    assert command("serve", *given)[0] == 1
    assert (tmp_path / "socket").read_text() == "a file"


def test_a_folder_of_another_user(tmp_path):
    """A socket's folder to which others may write is no place for it."""
    (tmp_path / "distscan").mkdir()
    (tmp_path / "distscan").chmod(0o777)
    with pytest.raises(ServiceError, match="nobody else may write to"):
        protocol.make_private(tmp_path / "distscan")
    protocol.make_private(tmp_path / "new")
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700


def test_no_service(tmp_path, capsys, monkeypatch):
    """The message says how to start one."""
    monkeypatch.setattr(commands, "_PATIENCE", 1.0)
    monkeypatch.setattr(commands.gc, "freeze", lambda: None)  # this process goes on
    assert commands.main("jobs", ["--address", str(tmp_path / "none")]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "distscan: waiting for a service on" in err
    assert "no service answers on" in err
    assert "python -m distscan serve" in err


# ---- commands ------------------------------------------------------------------------------------


def test_commands(tmp_path):
    """As the file job: the same options, the same report."""
    x, xs = np.arange(10.0), np.arange(12).reshape(3, 4)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "xs.npy", xs)
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
        for axis in (0, 1):  # options that are 0 are options, too
            given = ["--axis", axis, "--initial", "0", "--exclusive", "--force"]
            status, _, err = command("submit", "xs.npy", *given, *where, cwd=tmp_path)
            assert status == 0, err
            y = np.load(tmp_path / "xs.scan.npy")
            np.testing.assert_array_equal(y, xs.cumsum(axis) - xs)
        assert command("cancel", number, *where) == (0, f"job {number} had ended: done\n", "")
        status, _, err = command("show", 77, *where)
        assert (status, err) == (1, "distscan: error: there is no job 77\n")
        for wrong in (["submit"], ["show", "x"], ["jobs", "--no"], ["submit", "x", "--axis", "y"],
                      ["submit", "x.npy", "--force", "--each", "--key", "k"]):  # fmt: skip
            assert command(*wrong, *where)[0] == 2
        assert command("serve", "--help")[0] == 0
        assert command("submit", "--help")[1].startswith("usage: python -m distscan submit")
        assert service.end() == 0


@pytest.mark.parametrize("wrong", [f"{TOKEN}\nx: y", f"{TOKEN}\u00e9", f"{TOKEN}\0"])
def test_a_token_that_no_header_has(wrong, monkeypatch):
    """The message does not tell it."""
    with pytest.raises(ValueError, match="the token has other characters") as caught:
        distscan.connect("socket", token=wrong)
    assert TOKEN not in str(caught.value)
    if "\0" not in wrong:  # no variable has it
        monkeypatch.setenv("DISTSCAN_TOKEN", wrong)
        with pytest.raises(ValueError, match="the token has other characters"):
            distscan.connect("http://127.0.0.1:1")
    distscan.connect("socket").close()  # brings no token


def test_a_service_does_not_listen_on_a_url(tmp_path, monkeypatch):
    monkeypatch.setenv("DISTSCAN_SERVICE", "http://127.0.0.1:1")
    status, _, err = command("serve", "--backend", "cpu", "--state-dir", tmp_path)
    assert status == 2
    assert err.startswith("distscan: error: ")
    assert "DISTSCAN_SERVICE is a URL, http://127.0.0.1:1" in err
    assert "--host" in err


def test_a_socket_of_another_user(tmp_path, monkeypatch):
    """A client does not send its arrays there."""
    monkeypatch.delenv("DISTSCAN_SERVICE", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert protocol.address_to_use() == str(tmp_path / "distscan/socket")
    (tmp_path / "distscan").mkdir()
    (tmp_path / "distscan").chmod(0o777)
    with pytest.raises(ServiceError, match="nobody else may write to"):
        protocol.address_to_use()


def test_clients_start_no_mpi(tmp_path):
    """And nothing that the ranks need alone."""
    code = (
        "import sys; before = {*sys.modules}; "  # coverage loads sqlite3
        "import distscan; from distscan.service import commands; distscan.connect('none'); "
        "never = {'mpi4py.MPI', 'distscan.service.dispatch', 'sqlite3', 'starlette', 'anyio'}; "
        "print(never & sys.modules.keys() - before)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "set()\n"


@pytest.mark.parametrize(
    ("address", "loads"),
    [("socket", 0), ("http://127.0.0.1:1", 0), ("https://127.0.0.1:1", 1)],
)
def test_certificates(address, loads, monkeypatch):
    """They take long to load, so this is done for TLS alone; there the service's is checked."""
    made, default = [], ssl.create_default_context
    monkeypatch.setattr(
        ssl, "create_default_context", lambda **given: made.append(default(**given)) or made[-1]
    )
    with distscan.connect(address, patience=0.1) as client, pytest.raises(ServiceError):
        client.about()
    assert [context.verify_mode for context in made] == loads * [ssl.CERT_REQUIRED]


def test_without_its_extra(tmp_path):
    """``serve`` says what to install; clients need none of it."""
    (tmp_path / "starlette.py").write_text("raise ModuleNotFoundError('no starlette here')")
    (tmp_path / "httpx.py").write_text("raise ModuleNotFoundError('no httpx here')")
    line = "import distscan; distscan.connect('/nowhere', patience=0).scan([1])"
    for arguments, said in (
        (["-m", "distscan", "serve"], "no starlette here; in a checkout: pip install"),
        (["-c", line], "no service answers on /nowhere"),
    ):
        ran = subprocess.run(
            [sys.executable, *arguments],
            capture_output=True,
            check=False,
            text=True,
            timeout=60,
            env=os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT}"},
        )
        assert ran.returncode == 1
        assert said in ran.stderr


@contextmanager
def serving_by(lines, folder):
    """Run lines of a shell, of which the first starts a service; end it."""
    given = {"XDG_RUNTIME_DIR": str(folder / "run"), "HOME": str(folder), "DISTSCAN_LABELS": "0"}
    given |= {"PYTHONPATH": str(ROOT), "XDG_STATE_HOME": str(folder / "state")}
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    end = "kill -USR1 $!; wait $!"
    with open(folder / "out", "w+") as out, open(folder / "err", "w+") as err:
        ran = subprocess.run(
            ["bash", "-c", "\n".join(["set -e", *lines, end])],
            cwd=folder,
            env=os.environ | given | {"PATH": path},
            stdout=out,
            stderr=err,
            check=False,
            timeout=90,
            start_new_session=True,
        )
        yield ran.returncode, (folder / "out").read_text(), (folder / "err").read_text()


def test_readme(tmp_path):
    """README's lines for a service run as they are copied, on two ranks."""
    section = (ROOT / "README.md").read_text().partition("\n## Service\n")[2].partition("\n## ")[0]
    lines = [line.strip() for line in section.splitlines() if line.startswith("    ")]
    assert len(lines) == 5
    assert lines[0].startswith("mpirun -n 8 python -m distscan serve &")
    (tmp_path / "run").mkdir(mode=0o700)
    lines[0] = lines[0].replace("mpirun -n 8", "mpirun -n 2")
    with serving_by(lines, tmp_path) as (status, out, err):
        assert status == 0, err
    assert "sum of 1000000 elements, float64 to float64" in out
    assert "     1  done " in out
    assert out.endswith("[3 4 8]\n")
    np.testing.assert_array_equal(np.load(tmp_path / "input.scan.npy"), np.arange(1.0, 10**6 + 1))
