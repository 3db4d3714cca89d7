"""Each request that a service refuses is logged: who, what and why, and no token."""

import contextlib
import fcntl
import re
import socket
from datetime import datetime, timezone
from io import BytesIO

import httpx
import numpy as np
import pytest

from distscan.service import monitoring
from support.service_logs import wanted
from support.services import serving

pytestmark = [pytest.mark.timeout(120), pytest.mark.one_rank]
TOKEN = "0123456789abcdef-a-token"
WRONG = "a-wrong-token-nobody-may-read"


def npy(x):
    found = BytesIO()
    np.save(found, x)
    return found.getvalue()


REFUSED = {  # the path, and why; what a request must have for that
    "no-token": ("/v1/jobs", 401, "no token", {"headers": {"authorization": ""}}),
    "wrong-token": (
        "/v1/jobs", 401, "a wrong token", {"headers": {"authorization": f"Bearer {WRONG}"}}),
    "protocol": ("/v1/scans", 426, "protocol 99", {"headers": {"distscan-protocol": "99"}}),
    "path": (
        "/v1/jobs", 403, r"/etc/x\ny.npy is in none of the folders",
        {"json": {"inputs": ["/etc/x\ny.npy"], "output": "/etc/y.npy"}}),
    "long-json": ("/v1/jobs", 413, "more than 1048576 bytes", {"content": b" " * (2 << 20)}),
    "long-array": ("/v1/scans", 413, "more than 4000000 bytes", {"content": bytes(5_000_000)}),
    "long-buffer": ("/v1/buffers", 413, "more than 4000000 bytes", {"json": {"bytes": 1 << 40}}),
    "no-memory": (
        "/v1/scans", 429, "all memory for arrays is in use", {"content": npy(np.zeros(200_000))}),
}  # fmt: skip


@pytest.fixture(scope="module", params=monitoring.LOG_FORMS)
def over_tcp(request, tmp_path_factory):
    """A service over TCP that logs in each form, and a connection to it."""
    folder = tmp_path_factory.mktemp("logs")
    (folder / "token").write_text(TOKEN)
    (folder / "token").chmod(0o600)
    options = ["--host", "127.0.0.1", "--token-file", str(folder / "token"), "--queue", "1"]
    options += ["--body", "4000000", "--memory", "2097152", "--log-format", request.param]
    with (
        serving(folder, 1, *options) as service,
        httpx.Client(
            base_url=service.address, headers={"authorization": f"Bearer {TOKEN}"}
        ) as http,
    ):
        service.form = request.param
        yield service, http
        secrets = [text for text in service.said if TOKEN in text or WRONG in text]
        assert secrets == []


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case, over_tcp):
    """Each says who, what and why, and not the token."""
    (service, http), (path, status, why, given) = over_tcp, REFUSED[case]
    with contextlib.ExitStack() as held:
        if case == "no-memory":
            found = http.post("/v1/buffers", json={"bytes": 1 << 20}).json()
            fcntl.flock(held.enter_context(open(found["path"])), fcntl.LOCK_EX)
        answer = http.post(path, **given)
    assert answer.status_code == status
    if service.form == "json":
        why = why.replace(r"\n", "\n")
    line = wanted(service, service.form, "WARNING", f"POST {path} by 127.0.0.1:", why)
    assert re.search(r"by 127\.0\.0\.1:\d+ was refused: ", line["message"])
    if service.form == "json":
        assert re.fullmatch(r"127\.0\.0\.1:\d+", line["client"])
        assert (line["method"], line["path"], line["status"]) == ("POST", path, status)
        assert why in line["reason"]
        assert datetime.fromisoformat(line["time"].replace("Z", "+00:00")) <= datetime.now(
            timezone.utc
        )
    assert not any(secret in text for text in service.said for secret in (TOKEN, WRONG))
    assert not any(secret in answer.text for secret in (TOKEN, WRONG))


def test_a_queue_that_is_full(over_tcp):
    (service, http), folder = over_tcp, over_tcp[0].folder
    np.lib.format.open_memmap(folder / "long.npy", "w+", "f8", (1 << 27,))
    job = {"inputs": [str(folder / "long.npy")], "output": str(folder / "y.npy"), "force": True}
    numbers, answer = [], None
    while answer is None or answer.status_code == 202:  # one runs, one waits
        assert len(numbers) < 4
        answer = http.post("/v1/jobs", json=job)
        numbers.append(answer.json().get("number"))
    assert answer.status_code == 429
    assert numbers.pop() is None
    wanted(service, service.form, "WARNING", "POST /v1/jobs by 127.0.0.1:", "jobs wait already")
    for number in numbers[::-1]:
        http.delete(f"/v1/jobs/{number}")
        wanted(service, service.form, "INFO", f"job {number} was cancelled after")


def test_whom_a_proxy_speaks_for(over_tcp):
    """The address that a client names is not taken for its own."""
    service, http = over_tcp
    head = {"authorization": "no", "x-forwarded-for": "198.51.100.7"}
    assert http.get("/metrics", headers=head).status_code == 401
    line = wanted(service, service.form, "WARNING", "GET /metrics by 127.0.0.1:")
    assert line.get("forwarded_for", "198.51.100.7") == "198.51.100.7"
    assert service.form == "text" or "forwarded_for" in line


def test_a_token_in_the_url(over_tcp):
    """What is behind the path is not logged."""
    service, http = over_tcp
    answer = http.get(f"/v1?token={WRONG}", headers={"authorization": WRONG})
    assert answer.status_code == 401
    wanted(service, service.form, "WARNING", "GET /v1 by 127.0.0.1:", "a wrong token")


def test_a_reason_of_a_mib(over_tcp):
    service, http = over_tcp
    path = "/" + "x" * 300_000
    job = {"inputs": [path], "output": path}
    assert http.post("/v1/jobs", json=job).status_code == 403
    wanted(service, service.form, "WARNING", "POST /v1/jobs", "xxx...")
    assert max(map(len, service.said)) < 4000


@pytest.mark.parametrize("line", ["GET /v1", "GET /none"])
def test_a_host_that_is_no_name(line, over_tcp):
    """The request is refused and logged all the same."""
    service, http = over_tcp
    with socket.create_connection((http.base_url.host, http.base_url.port), 10) as talk:
        talk.sendall(f"{line} HTTP/1.1\r\nHost: [\r\nConnection: close\r\n\r\n".encode())
        answer = b"".join(iter(lambda: talk.recv(1 << 16), b""))
    assert answer.startswith(b"HTTP/1.1 403 ")
    wanted(service, service.form, "WARNING", f"{line} by 127.0.0.1:", "this service is not '['")
