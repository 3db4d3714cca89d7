"""Addresses and tokens of a service, its commands, and the requests that are refused."""

import json
import os
import re
import shlex
import ssl
import subprocess
import sys
import threading
import time

import httpx
import numpy as np
import pytest
from mpi4py import MPI

import distscan
from distscan import InputError
from distscan.service import errors
from distscan.service.errors import (
    ForbiddenError,
    ServiceError,
    TooLargeError,
    UnauthorizedError,
)
from support import processes
from support.services import ROOT, TOKEN, command, npy, over_tcp, post, serving

pytestmark = [pytest.mark.timeout(120), pytest.mark.one_rank]


# ---- over TCP ------------------------------------------------------------------------------------


def test_over_tcp(tmp_path, monkeypatch):
    with serving(tmp_path, 1, *over_tcp(tmp_path)) as service:
        with service.client(TOKEN) as client:
            assert list(client.scan([3, 1, 4])) == [3, 4, 8]
        for wrong in (None, "x", TOKEN[:-1], TOKEN + "x", "é"):
            head = {} if wrong is None else {"authorization": f"Bearer {wrong}".encode()}
            assert httpx.get(f"{service.address}/v1", headers=head).status_code == 401
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


REACHABLE = "can be reached from other machines"


@pytest.mark.parametrize(
    ("options", "status", "message"),
    [
        ("--host 127.0.0.1", 2, "--token-file is needed"),
        ("--host 0.0.0.0 --token-file token", 2, REACHABLE),
        ("--host :: --token-file token", 2, REACHABLE),
        ("--host example.org --token-file token", 2, REACHABLE),
        ("--token-file token", 2, "name a --host"),
        ("--port 80", 2, "name a --host"),
        ("--host 127.0.0.1 --socket s --token-file token", 2, "not on both"),
        ("--root none", 2, "there is no folder none; create it"),
        ("--host 127.0.0.1 --token-file readable", 1, "others may read"),
        ("--host 127.0.0.1 --token-file short", 1, "fewer than 16"),
        ("--host 127.0.0.1 --token-file none", 1, "cannot read"),
        ("--allow-host https://example.org", 2, "is no host"),
        ("--allow-host ''", 2, "is no host"),
        ("--allow-host 'a b'", 2, "is no host"),
        ("--allow-host example.org/x", 2, "is no host"),
        ("", 2, "DISTSCAN_SERVICE is a URL, http://127.0.0.1:1: name where to listen"),
    ],
)
def test_options_that_are_refused(options, status, message, tmp_path, monkeypatch):
    over_tcp(tmp_path)
    for name, text, mode in (("readable", TOKEN, 0o644), ("short", "short", 0o600)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(mode)
    monkeypatch.setenv("DISTSCAN_SERVICE", "http://127.0.0.1:1")
    arguments = [*shlex.split(options), "--backend", "cpu", "--state-dir", "state"]
    code, out, err = command("serve", *arguments, cwd=tmp_path)
    assert (code, out) == (status, "")
    assert err.startswith("distscan: error: ")
    assert message in err
    assert err.count("\n") == 1


# ---- its socket ----------------------------------------------------------------------------------


def test_one_service_at_a_time(tmp_path):
    with serving(tmp_path) as service:
        assert (tmp_path / "socket").stat().st_mode & 0o777 == 0o600
        arguments = ["--socket", tmp_path / "socket", "--backend", "cpu"]
        status, _, err = command("serve", *arguments, "--state-dir", tmp_path / "other")
        assert (status, err) == (
            1, f"distscan: error: another service listens on {tmp_path}/socket\n")  # fmt: skip
        arguments = ["--socket", tmp_path / "s", "--state-dir", tmp_path / "state"]
        status, _, err = command("serve", *arguments)
        assert status == 1
        assert "another service uses" in err
        assert service.end() == 0
    (tmp_path / "socket").write_text("a file")
    arguments = ["--socket", tmp_path / "socket", "--state-dir", tmp_path / "o"]
    assert command("serve", *arguments)[0] == 1
    assert (tmp_path / "socket").read_text() == "a file"


def test_a_folder_of_another_user(tmp_path, monkeypatch):
    """No service listens in a folder to which others may write, and no client looks there."""
    monkeypatch.delenv("DISTSCAN_SERVICE", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    (tmp_path / "distscan").mkdir()
    (tmp_path / "distscan").chmod(0o777)
    with pytest.raises(ServiceError, match="nobody else may write to"):
        distscan.connect()
    status, _, err = command("serve", "--backend", "cpu", "--state-dir", tmp_path / "state")
    assert status == 1
    assert "nobody else may write to" in err


def test_a_service_that_is_not_there_yet(tmp_path):
    """A command waits for it, and says so."""
    line = [sys.executable, "-m", "distscan", "jobs", "--address", tmp_path / "socket"]
    with subprocess.Popen(line, stderr=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert "distscan: waiting for a service on" in process.stderr.readline()
        with serving(tmp_path) as service:
            assert process.wait(30) == 0
            service.end()


# ---- commands ------------------------------------------------------------------------------------


def check_texts(folder, where):
    """What ``jobs`` and ``show`` print for people and for programs."""
    out = command("jobs", *where)[1]
    lines = [line.split(maxsplit=6) for line in out.splitlines()]
    assert [line[0] for line in lines] == ["4", "3", "2", "1"]
    assert [line[1] for line in lines][1:] == ["done", "failed", "done"]
    assert all(float(line[4]) >= 0 and line[5] == "s" for line in lines[1:])
    assert lines[-1][6] == f"max of {folder}/x.npy"
    assert re.search(rf"sum of {folder}/x.npy +OutputError: .* exists", lines[-2][6])
    assert len({re.search("(max|f?sum) of", line).start() for line in out.splitlines()}) == 1
    listed = json.loads(command("jobs", "--json", *where)[1])
    assert [job["number"] for job in listed] == [4, 3, 2, 1]
    assert json.loads(command("show", 4, "--json", *where)[1])["number"] == 4
    shown = command("show", 3, *where)[1]
    assert shown.startswith(f"job 3: done\n  scan       fsum of {folder}/x.npy\n")
    assert "\n  options    " in shown
    assert "window=[-2, 7]" in shown
    assert re.search(r"\n  read +\d", shown)  # seconds of a phase
    assert f"\n{folder}/x.scan.npy" in shown
    shown = command("show", 2, *where)[1]
    assert shown.startswith("job 2: failed\n")
    assert f"\n  output     {folder}/x.scan.npy\n" in shown
    assert "\n  reason     OutputError: " in shown


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
        arguments = ["--op", "fsum", "--window", "-2", "7", "--force", "--json", "--quiet"]
        arguments += ["--initial", "3"]
        status, out, _ = command("submit", "x.npy", *arguments, *where, cwd=tmp_path)
        assert '"total": 48.0' in out
        status, out, _ = command("submit", "x.npy", "--force", "--detach", *where, cwd=tmp_path)
        number = int(out)
        check_texts(tmp_path, where)
        for axis in (0, 1):  # options that are 0 are options, too
            arguments = ["--axis", axis, "--initial", "0", "--exclusive", "--force"]
            status, _, err = command("submit", "xs.npy", *arguments, *where, cwd=tmp_path)
            assert status == 0, err
            y = np.load(tmp_path / "xs.scan.npy")
            np.testing.assert_array_equal(y, xs.cumsum(axis) - xs)
        assert command("cancel", number, *where) == (0, f"job {number} had ended: done\n", "")
        status, _, err = command("show", 77, *where)
        assert status == 1
        assert err == "distscan: error: there is no job 77; python -m distscan jobs lists them\n"
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


def test_clients_import_little():
    """No MPI, nothing that the ranks need alone, and no bar before somebody waits."""
    run = processes.python(
        "import sys; before = {*sys.modules}; "  # coverage loads sqlite3
        "import distscan; from distscan.service import commands; distscan.connect('none'); "
        "never = {'mpi4py.MPI', 'distscan.service.dispatch', 'sqlite3', 'starlette', 'anyio', "
        "'tqdm'}; print(never & sys.modules.keys() - before)"
    )
    assert (run.stdout, run.stderr) == ("set()\n", "")


@pytest.mark.parametrize(
    ("address", "loads"),
    [("socket", 0), ("http://127.0.0.1:1", 0), ("https://127.0.0.1:1", 1)],
)
def test_certificates(address, loads, monkeypatch):
    """They take long to load, so this is done for TLS alone; there the service's is checked."""
    contexts, default = [], ssl.create_default_context
    monkeypatch.setattr(
        ssl,
        "create_default_context",
        lambda **options: contexts.append(default(**options)) or contexts[-1],
    )
    with distscan.connect(address, patience=0.1) as client, pytest.raises(ServiceError):
        client.about()
    assert [context.verify_mode for context in contexts] == loads * [ssl.CERT_REQUIRED]


def test_without_its_extra(tmp_path):
    """``serve`` names the package to install; clients need none, and say how to start a service."""
    (tmp_path / "starlette.py").write_text("raise ModuleNotFoundError('no starlette here')")
    (tmp_path / "httpx.py").write_text("raise ModuleNotFoundError('no httpx here')")
    line = "import distscan; distscan.connect('/nowhere', patience=0).scan([1])"
    for arguments, messages in (
        (["-m", "distscan", "serve"], ["no starlette here; in a checkout: pip install"]),
        (["-c", line], ["no service answers on /nowhere", "start one: mpirun -n 8 python -m"]),
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
        assert all(text in ran.stderr for text in messages)


# ---- arguments that ``distscan.scan`` refuses: the client raises the same exception --------------

WRONG = [
    *({"axis": axis} for axis in (3, -(10**30), "0", True, (0, 1))),
    *({"op": op} for op in ("none", None, np.sin, "bitwise_or")),
    *({"dtype": dtype} for dtype in ("nonsense", "M8[s]", object)),
    *({"initial": initial} for initial in ("abc", b"3", object, [1, 2], 1j)),
    *({"initial": initial, "dtype": "i8"} for initial in (10**5000, 1.5, float("nan"))),
    {"initial": 300, "dtype": "i1"},
    *({"out": out} for out in (np.empty(3), [1.0, 2.0], np.empty(12, "M8[s]"))),
    {"out": np.broadcast_to(0.0, 12)},  # read-only
    *({"segments": segments} for segments in (np.zeros(3, bool), np.full(12, None))),
    {"segments": np.zeros((3, 4), bool), "axis": 0},
    {"strategy": "none"},
    {"strategy": "scan-add", "segments": np.zeros(12, bool)},
    *({"x": x} for x in (None, ["a", "b"], [2**70], np.zeros(3, "M8[s]"), [[1], [1, 2]])),
    *({"x": x} for x in (np.zeros(3, "i4,f8"), np.ma.masked_less(np.arange(5), 3))),
    {"op": "fsum", "strategy": "scan-add"},
    {"op": "fsum", "dtype": "int64"},
    *({"op": "fsum", "window": window} for window in ((3, 1), 5)),
    *({"op": "fsum", "initial": initial} for initial in (1j, 1 << 1024)),
    {"window": (0, 1)},
]
RIGHT = {
    "bool": {"initial": True, "dtype": "i8"},
    "float": {"initial": np.float32(0.1)},
    "number-0d": {"initial": np.array(7)},
    "scalar": {"x": 3.0},
    "scalar-axis": {"x": np.array(3.0), "axis": 0},
    "index": {"axis": np.int8(-1)},
    "truth": {"exclusive": "no", "reverse": 0},
    "long-double": {"x": np.arange(3, dtype=np.longdouble), "initial": np.longdouble(1) / 4},
    "list": {"x": []},
    "segments-axis": {"segments": np.array([True, False, True]), "axis": 0},
    "keys-axis": {"segments": np.array([1, 1, 2, 2]), "axis": -1, "reverse": True},
    **{
        f"op-{i}": {"x": [3, 1, 0, 4], "op": op}
        for i, op in enumerate([MPI.SUM, MPI.BXOR, np.multiply, np.logical_or, "min"])
    },
}


def raised(scan, options):
    with pytest.raises(Exception) as caught:  # noqa: PT011 - compared with another one
        scan(**({"x": np.arange(12.0).reshape(3, 4)} | options))
    return type(caught.value), str(caught.value)


@pytest.mark.parametrize("options", WRONG)
def test_wrong(options, client):
    assert raised(client.scan, options) == raised(distscan.scan, options)


@pytest.mark.parametrize("case", RIGHT)
def test_right(case, client):
    options = {"x": np.arange(12.0).reshape(3, 4)} | RIGHT[case]
    y, expected = client.scan(**options), distscan.scan(**options)
    assert (type(y), y.dtype) == (type(expected), expected.dtype)
    np.testing.assert_array_equal(y, expected)


def test_arguments_that_a_service_does_not_take(client):
    with pytest.raises(TypeError, match="operators that have a name, not hypot"):
        client.scan([1.0, 2.0], np.hypot)
    with pytest.raises(TypeError, match=r"op must be a name, .* not the function <lambda>; wrap"):
        client.scan([1.0, 2.0], lambda a, b: a + b)
    with pytest.raises(ValueError, match="unknown options: threads"):
        client.scan([1.0, 2.0], threads=2)
    for call in (client.scan, client.submit):
        with pytest.raises(TypeError, match="a scan has no option 'no'"):
            call("x.npy", no=1)
    with pytest.raises(TypeError, match="an initial of 8 bytes"):
        client.scan(np.ones(3, np.longdouble), initial=np.longdouble(1) / 3)


@pytest.mark.parametrize(
    ("query", "options"),
    [
        ("axis=3", {"axis": 3}),
        ("op=none", {"op": "none"}),
        ("strategy=none", {"strategy": "none"}),
        ("op=bitwise_or", {"op": "bitwise_or"}),
        ("op=max&window=0,1", {"op": "max", "window": (0, 1)}),
        ("op=fsum&window=1", {"op": "fsum", "window": [1]}),
        (f"op=fsum&initial={1 << 1024}", {"op": "fsum", "initial": 1 << 1024}),
    ],
)
def test_errors_that_the_service_finds(query, options, client):
    """Other clients leave the checks to it."""

    def scan(x):
        client.request("POST", f"/v1/scans?{query}", content=npy(x))

    assert raised(scan, {}) == raised(distscan.scan, options)


@pytest.mark.parametrize("kind", [*errors._TYPES.values()])
def test_on_the_wire(kind):
    """Every exception that a service sends is raised as it is."""
    received = errors.from_json(errors.to_json(kind("no such axis")))
    assert (type(received), str(received)) == (kind, "no such axis")


# ---- requests ------------------------------------------------------------------------------------


def test_paths_outside(service, client, tmp_path):
    """Also by links, and by relative parts."""
    np.save(tmp_path / "secret.npy", np.ones(3))
    (service.folder / "link.npy").unlink(missing_ok=True)
    (service.folder / "link.npy").symlink_to(tmp_path / "secret.npy")
    (service.folder / "way").unlink(missing_ok=True)
    (service.folder / "way").symlink_to(tmp_path)
    np.save(service.folder / "x.npy", np.ones(3))
    inside, out = service.folder / "x.npy", service.folder / "refused.npy"
    for source, target in (
        (tmp_path / "secret.npy", out),
        (service.folder / "link.npy", out),
        (service.folder / "way/secret.npy", out),
        (f"{service.folder}/../{tmp_path.name}/secret.npy", out),
        (inside, tmp_path / "y.npy"),
        (inside, service.folder / "way/y.npy"),
        ("/etc/passwd", out),
    ):
        with pytest.raises(ForbiddenError, match="in none of the folders"):
            client.submit(source, target)
    for name in ("segments", "state", "trace"):
        with pytest.raises(ForbiddenError, match="in none of the folders"):
            client.submit(inside, out, **{name: tmp_path / "y.npy"})
    assert not out.exists()
    end = time.monotonic() + 10  # mpirun may hand the lines on late
    while not any("was refused" in text and "secret.npy" in text for text in service.output):
        assert time.monotonic() < end, service.output
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"op": "os:system"}, "unknown op"),
        ({"op": ["sum"]}, "unknown op"),
        ({"no": 1}, "unknown options: no"),
        ({"inputs": []}, "inputs is a list"),
        ({"inputs": "x.npy"}, "inputs is a list"),
        ({"inputs": ["x.npy"]}, "is relative"),
        ({"inputs": [7]}, "a path is text"),
        ({"inputs": ["/x\0y"]}, "a path is text"),
        ({"output": None}, "a path is text"),
        ({"force": 1}, "force is true or false"),
        ({"axis": "0"}, "axis is a whole number"),
        ({"axis": True}, "axis is a whole number"),
        ({"initial": [1]}, "initial is a number"),
        ({"initial": 1e999}, "write initial as text: 'inf'"),
        ({"\ud800": 1}, "unknown options: \ud800"),
        ({"inputs": ["\ud800"]}, "\ud800 is relative"),
        ({"memory": 0}, "memory must be an integer of at least 1, not 0"),
        ({"shape": 3}, "shape is a list"),
        ({"shape": [-1]}, "shape is a list"),
        ({"shape": [1] * 65}, "shape has at most 64 axes"),
        ({"shape": [1 << 62, 2, 0]}, "shape has at most 64 axes"),
        ({"threads": 1 << 63}, "threads is a whole number of 63 bits"),
        ({"dtype": 8}, "dtype is text"),
        ({"raw": "(0,)i4"}, "is not understood"),
        ({"strategy": "none"}, "unknown strategy"),
    ],
)
def test_requests_that_are_wrong(change, message, service):
    right = {"inputs": [str(service.folder / "x.npy")], "output": str(service.folder / "y.npy")}
    answer = post(service, "/v1/jobs", content=json.dumps(right | change))
    assert answer.status_code == 400
    assert message in answer.json()["error"]["message"]


def test_many_inputs(service, client):
    """Others are answered while their paths are looked up; lists do not have them all."""
    many = [f"{service.folder}/a/{i}.npy" for i in range(4000)]
    request = {"inputs": many, "output": str(service.folder / "y.npy")}
    with pytest.raises(TooLargeError, match="at most 10000 inputs, not 20000"):
        client.request("POST", "/v1/jobs", json=request | {"inputs": ["/x.npy"] * 20_000})
    jobs, answers = [], 0
    thread = threading.Thread(
        target=lambda: jobs.append(client.request("POST", "/v1/jobs", json=request).json())
    )
    thread.start()
    while thread.is_alive():
        client.about()
        answers += 1
    thread.join()
    job = client.job(jobs[0]["number"])
    assert answers > 5
    with pytest.raises(InputError):
        job.wait(60)
    (listed,) = client.request("GET", "/v1/jobs", params={"most": 1}).json()["jobs"]
    assert (listed["number"], listed["input_count"]) == (job.number, 4000)
    assert listed["request"]["inputs"] == many[:1]
    assert job.refresh()["request"]["inputs"] == many


def test_names_that_are_no_text(service, client):
    """Files may have them: a job is answered, done, and listed."""
    source, target = (os.fsdecode(bytes(service.folder / name) + b"\xff") for name in "xy")
    with open(source, "wb") as file:
        np.save(file, np.arange(10))
    job = json.dumps({"inputs": [source], "output": target, "force": True})
    answer = post(service, "/v1/jobs", content=job)
    assert answer.status_code == 202
    assert client.job(answer.json()["number"]).wait(30)["total"] == 45
    assert answer.json()["request"]["output"] == target
    assert client.jobs(1)[0].number == answer.json()["number"]
    assert os.path.exists(target)


def test_urls_that_are_wrong(service, client):
    """Numbers beyond all jobs, or none at all."""
    for url in ("/v1/jobs?most=x", "/v1/jobs?before=1.5", "/v1/jobs/1?wait=-1",
                "/v1/jobs/1?wait=nan", f"/v1/jobs/{1 << 70}"):  # fmt: skip
        with pytest.raises((TypeError, ValueError, OverflowError)):
            client.request("GET", url)
    assert client.request("GET", "/v1/jobs?most=-5").json() == {"jobs": []}
    assert post(service, f"/v1/jobs/{'9' * 5000}").status_code == 404  # Python takes 4300 digits
    for url, message in (
        ("?axis=x", "axis is a whole number"),
        ("?exclusive=1", "exclusive is true or false"),
        ("?none=1", "unknown options: none"),
        ("?initial=x", "x"),
        ("?op=fsum&window=a,b", "window is two integers"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            client.request("POST", f"/v1/scans{url}", content=npy(np.ones(3)))
    for key in ("", "k" * 201):
        answer = post(service, "/v1/jobs", json={}, headers={"idempotency-key": key})
        assert answer.status_code == 400


def test_bodies_that_are_no_json(service):
    for body in (b"", b"{", b"[]", b"7", b"\xff\xfe", b"[" * 100_000):
        answer = post(service, "/v1/jobs", content=body)
        assert answer.status_code == 400, body[:10]
    assert post(service, "/v1/jobs", content=b" " * (2 << 20)).status_code == 413


def test_routes_that_do_not_exist(service):
    assert post(service, "/v2/jobs").status_code == 404
    assert "POST /v1 is not of protocol 1" in post(service, "/v1").json()["error"]["message"]
