"""Requests that a browser sends for pages of other sites, and names that lead to this machine."""

import asyncio
import re

import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Mount

from distscan.service.monitoring import Metrics
from distscan.service.requests import Guard, Names, OriginFilter, host_of
from support.services import command, post, serving

pytestmark = [pytest.mark.timeout(60), pytest.mark.one_rank]
TOKEN = "0123456789abcdef-a-token"
APP = Starlette(routes=[Mount("/", PlainTextResponse("here"))])
GUARD = Guard(None, Metrics())
ALLOWED = frozenset({host_of("scans.example.org"), host_of("other.example.org:8443")})


def status(headers, path="/v1/jobs", method="GET", *, over_tcp=True, allowed=ALLOWED):
    """The status of the answer to a request with these headers."""

    async def ask():
        transport = httpx.ASGITransport(OriginFilter(APP, GUARD, Names(over_tcp, allowed)))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            answer = await client.request(method, path, headers=headers)
        assert not [name for name in answer.headers if name.startswith("access-control-")]
        if answer.status_code == 403:
            assert answer.json()["error"]["type"] == "ForbiddenError"
        return answer.status_code

    return asyncio.run(ask())


OWN = (
    *("localhost", "localhost:8000", "LOCALHOST", "localhost.:8000", "a.localhost:8000"),
    *("127.0.0.1", "127.0.0.1:8000", "127.8.9.10:1", "[::1]", "[::1]:8000"),
    *("scans.example.org", "Scans.Example.org", "scans.example.org:443", "other.example.org:8443"),
)
OTHERS = (
    *("example.org", "example.org:8000", "127.0.0.1.example.org", "localhost.example.org"),
    *("10.0.0.1", "0.0.0.0", "[::]", "[::2]:8000", "169.254.169.254", "192.168.0.1:8000"),
    *("scans.example.org:8000", "other.example.org", "a.scans.example.org", "2130706433.nip.io"),
    *("localhost@example.org", "example.org#localhost", "example.org/localhost", "[::1"),
    *("localhost:x", "localhost, example.org", "::1", "localhost:80:80", "notlocalhost.org"),
)


@pytest.mark.parametrize("host", OWN)
@pytest.mark.parametrize("over_tcp", [True, False], ids=["tcp", "unix"])
def test_own_names(host, over_tcp):
    assert status({"host": host}, over_tcp=over_tcp) == 200
    assert status({"host": host}, "/", over_tcp=over_tcp) == 200


@pytest.mark.parametrize("host", OTHERS)
@pytest.mark.parametrize("over_tcp", [True, False], ids=["tcp", "unix"])
def test_other_names(host, over_tcp, caplog):
    """Such as one that its owner lets lead to 127.0.0.1; also for the page, and over ssh -L."""
    for path in ("/v1/jobs", "/", "/page/main.js", "/healthz"):
        assert status({"host": host}, path, over_tcp=over_tcp) == 403
        assert f"GET {path} by 127.0.0.1:123 was refused: this service is not" in caplog.text


@pytest.mark.parametrize("host", ["any", "distscan", "distscan:80", "a_b"])
def test_names_without_a_dot(host):
    """Over a Unix socket a client names any host."""
    assert status({"host": host}) == 403
    assert status({"host": host}, over_tcp=False) == 200


@pytest.mark.parametrize("over_tcp", [True, False], ids=["tcp", "unix"])
def test_no_name(over_tcp):
    """No browser leaves it out; a program that looks whether the service is there may."""
    assert status({"host": ""}, over_tcp=over_tcp) == 403

    async def ask(*headers):
        said = []
        scope = {"type": "http", "method": "GET", "path": "/healthz", "query_string": b"",
                 "headers": headers, "client": None}  # fmt: skip

        async def send(message):
            said.append(message)

        await OriginFilter(APP, GUARD, Names(over_tcp, ALLOWED))(scope, None, send)
        return said[0]["status"]

    assert asyncio.run(ask()) == 200
    for origin in (b"null", b"http://localhost"):
        assert asyncio.run(ask((b"origin", origin))) == 403


@pytest.mark.parametrize(
    ("host", "origin", "wanted"),
    [
        ("127.0.0.1:8000", "http://127.0.0.1:8000", 200),
        ("localhost:8000", "http://localhost:8000", 200),
        ("[::1]:8000", "http://[::1]:8000", 200),
        ("localhost", "http://localhost", 200),
        ("scans.example.org", "https://scans.example.org", 200),
        ("127.0.0.1:8000", "https://scans.example.org", 200),
        ("127.0.0.1:8000", "https://other.example.org:8443", 200),
        ("127.0.0.1:8000", "http://localhost:8000", 403),
        ("127.0.0.1:8000", "http://127.0.0.1:8001", 403),
        ("127.0.0.1:8000", "http://127.0.0.1", 403),
        ("127.0.0.1:8000", "https://example.org", 403),
        ("127.0.0.1:8000", "https://other.example.org", 403),
        ("127.0.0.1:8000", "null", 403),
        ("127.0.0.1:8000", "", 403),
        ("127.0.0.1:8000", "file://", 403),
        ("127.0.0.1:8000", "http://127.0.0.1:8000.example.org", 403),
        ("127.0.0.1:8000", "chrome-extension://127.0.0.1:8000", 403),
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE", "OPTIONS"])
def test_origins(host, origin, wanted, method):
    for over_tcp in (True, False):
        given = {"host": host, "origin": origin}
        assert status(given, method=method, over_tcp=over_tcp) == wanted
        assert status(given, "/", method, over_tcp=over_tcp) == wanted


@pytest.mark.parametrize("site", ["cross-site", "same-site", "x"])
def test_sites(site):
    """A link to the page is all that another page may have."""
    given = {"host": "127.0.0.1:8000", "sec-fetch-site": site, "sec-fetch-mode": "navigate"}
    for over_tcp in (True, False):
        assert status(given, over_tcp=over_tcp) == 403
        assert status(given, "/page/main.js", over_tcp=over_tcp) == 403
        assert status(given, "/", "POST", over_tcp=over_tcp) == 403
        assert status(given, "/", over_tcp=over_tcp) == 200
        assert status(given | {"sec-fetch-mode": "no-cors"}, "/", over_tcp=over_tcp) == 403
    for own in ("same-origin", "none"):
        assert status(given | {"sec-fetch-site": own}) == 200


# ---- a service -----------------------------------------------------------------------------------


def test_over_tcp(tmp_path):
    """Before the token is looked at; each refusal is logged."""
    (tmp_path / "token").write_text(TOKEN)
    (tmp_path / "token").chmod(0o600)
    given = ["--host", "127.0.0.1", "--token-file", str(tmp_path / "token")]
    names = ["--allow-host", "a.example.org", "--allow-host", "b.example.org"]
    with serving(tmp_path, 1, *given, *names) as service:
        own = {"authorization": f"Bearer {TOKEN}"}

        def asked(**headers):
            return httpx.get(f"{service.address}/v1/jobs", headers=own | headers).status_code

        assert asked() == 200
        assert asked(host="b.example.org") == 200
        assert asked(host="c.example.org") == 403
        assert asked(origin="https://a.example.org") == 200
        assert asked(origin="https://c.example.org") == 403
        assert asked(**{"sec-fetch-site": "cross-site"}) == 403
        with service.client(TOKEN) as client:
            assert list(client.scan([1, 2])) == [1, 3]
        assert service.end() == 0
    said = "".join(service.said)
    for why in ("this service is not 'c.example.org'", "a page of 'https://c.example.org' may not",
                "a page of another site may not"):  # fmt: skip
        assert re.search(rf"GET /v1/jobs by 127.0.0.1:\d+ was refused: {why}", said)


def test_over_a_unix_socket(tmp_path):
    with serving(tmp_path) as service:
        page = {"host": "127.0.0.1:8000", "origin": "http://127.0.0.1:8000"}
        assert post(service, "/v1/scans", headers=page).status_code == 400  # it is no array
        assert post(service, "/v1/scans").status_code == 400
        for other in ({"origin": "https://example.org"}, {"host": "example.org"}):
            assert post(service, "/v1/scans", headers=page | other).status_code == 403
        assert service.end() == 0
    assert "by a client of this user was refused: a page of 'https://example.org'" in "".join(
        service.said
    )


@pytest.mark.parametrize("name", ["https://example.org", "", "a b", "example.org/x"])
def test_names_that_are_none(name, tmp_path):
    status, out, err = command("serve", "--allow-host", name, "--state-dir", tmp_path / "state")
    assert (status, out) == (2, "")
    assert "is no host" in err
