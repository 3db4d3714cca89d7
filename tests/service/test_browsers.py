"""Browsers: requests for pages of other sites, names that lead to this machine, static files."""

import asyncio
import re
import socket
from itertools import product
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Mount

from distscan.service import app
from distscan.service.monitoring import Metrics
from distscan.service.requests import Guard, Names, OriginFilter, host_of
from support.services import TOKEN, command, over_tcp, post, serving

pytestmark = [pytest.mark.timeout(60), pytest.mark.one_rank]

# ---- origins and names of hosts ------------------------------------------------------------------

APP = Starlette(routes=[Mount("/", PlainTextResponse("here"))])
GUARD = Guard(None, Metrics())
ALLOWED = frozenset({host_of("scans.example.org"), host_of("other.example.org:8443")})


def status(headers, path="/v1/jobs", method="GET", *, tcp=True, allowed=ALLOWED):
    """The status of the answer to a request with these headers."""

    async def ask():
        transport = httpx.ASGITransport(OriginFilter(APP, GUARD, Names(tcp, allowed)))
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
@pytest.mark.parametrize("tcp", [True, False], ids=["tcp", "unix"])
def test_own_names(host, tcp):
    assert status({"host": host}, tcp=tcp) == 200
    assert status({"host": host}, "/", tcp=tcp) == 200


@pytest.mark.parametrize("host", OTHERS)
@pytest.mark.parametrize("tcp", [True, False], ids=["tcp", "unix"])
def test_other_names(host, tcp, caplog):
    """Such as one that its owner lets lead to 127.0.0.1; also for the page, and over ssh -L."""
    for path in ("/v1/jobs", "/", "/page/main.js", "/healthz"):
        assert status({"host": host}, path, tcp=tcp) == 403
        assert f"GET {path} by 127.0.0.1:123 was refused: this service is not" in caplog.text


@pytest.mark.parametrize("host", ["any", "distscan", "distscan:80", "a_b"])
def test_names_without_a_dot(host):
    """Over a Unix socket a client names any host."""
    assert status({"host": host}) == 403
    assert status({"host": host}, tcp=False) == 200


@pytest.mark.parametrize("tcp", [True, False], ids=["tcp", "unix"])
def test_no_name(tcp):
    """No browser leaves it out; a program that looks whether the service is there may."""
    assert status({"host": ""}, tcp=tcp) == 403

    async def ask(*headers):
        messages = []
        scope = {"type": "http", "method": "GET", "path": "/healthz", "query_string": b"",
                 "headers": headers, "client": None}  # fmt: skip

        async def send(message):
            messages.append(message)

        await OriginFilter(APP, GUARD, Names(tcp, ALLOWED))(scope, None, send)
        return messages[0]["status"]

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
    for tcp in (True, False):
        given = {"host": host, "origin": origin}
        assert status(given, method=method, tcp=tcp) == wanted
        assert status(given, "/", method, tcp=tcp) == wanted


@pytest.mark.parametrize("site", ["cross-site", "same-site", "x"])
def test_sites(site):
    """A link to the page is all that another page may have."""
    given = {"host": "127.0.0.1:8000", "sec-fetch-site": site, "sec-fetch-mode": "navigate"}
    for tcp in (True, False):
        assert status(given, tcp=tcp) == 403
        assert status(given, "/page/main.js", tcp=tcp) == 403
        assert status(given, "/", "POST", tcp=tcp) == 403
        assert status(given, "/", tcp=tcp) == 200
        assert status(given | {"sec-fetch-mode": "no-cors"}, "/", tcp=tcp) == 403
    for own in ("same-origin", "none"):
        assert status(given | {"sec-fetch-site": own}) == 200


# ---- a service -----------------------------------------------------------------------------------


def test_over_tcp(tmp_path):
    """Before the token is looked at; each refusal is logged."""
    names = ["--allow-host", "a.example.org", "--allow-host", "b.example.org"]
    with serving(tmp_path, 1, *over_tcp(tmp_path), *names) as service:
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


# ---- the page ------------------------------------------------------------------------------------

PAGE = Path(app.__file__).with_name("page")
FILES = sorted(path.name for path in PAGE.iterdir())
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    folder = tmp_path_factory.mktemp("website")
    with serving(folder, 1, *over_tcp(folder)) as service:
        yield service.address


def raw(address, path):
    """The status and the body of an answer to a path as it stands: httpx would tidy it up."""
    host, port = address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), 10) as line:
        line.sendall(f"GET {path} HTTP/1.0\r\nHost: {host}:{port}\r\n\r\n".encode("latin-1"))
        answer = b"".join(iter(lambda: line.recv(1 << 16), b""))
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), body


# ---- static files ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FILES)
def test_files(name, address):
    """Each is there without a token, with what protects it."""
    answer = httpx.get(f"{address}/page/{name}")
    assert answer.status_code == 200
    assert answer.content == (PAGE / name).read_bytes()
    assert answer.headers["content-type"] == TYPES[Path(name).suffix]
    check_headers(answer)


def test_the_icon(address):
    """Browsers ask for it by this name beside answers that are no page."""
    answer = httpx.get(f"{address}/favicon.ico")
    assert answer.content == (PAGE / "icon.svg").read_bytes()
    assert answer.headers["content-type"] == TYPES[".svg"]
    check_headers(answer)


def check_headers(answer):
    policy = dict(
        part.split(" ", 1) for part in answer.headers["content-security-policy"].split("; ")
    )
    assert policy == {
        "default-src": "'none'",
        "script-src": "'self'",
        "style-src": "'self'",
        "connect-src": "'self'",
        "img-src": "'self' data:",
        "base-uri": "'none'",
        "frame-ancestors": "'none'",
        "form-action": "'none'",
    }
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["cache-control"] == "no-store"
    assert not [name for name in answer.headers if name.startswith("access-control-")]


def test_the_page(address):
    answer = httpx.get(address)
    assert answer.content == (PAGE / "index.html").read_bytes()
    check_headers(answer)
    assert httpx.head(address).status_code == 200
    assert httpx.post(address).status_code == 405
    assert httpx.get(f"{address}/v1/jobs").status_code == 401


@pytest.mark.parametrize(
    "path",
    [
        "/page/../serve.py",
        "/page/%2e%2e/serve.py",
        "/page/..%2fserve.py",
        "/page/%2e%2e%2fserve.py",
        "/page/..%5cserve.py",
        "/page/x/../../serve.py",
        "/page/....//serve.py",
        "/page//etc/passwd",
        "/page/%2fetc%2fpasswd",
        "/page//../../../../../../../etc/passwd",
        "/page/index.html%00",
        "/page/%ff",
        "/page/" + 300 * "x",
        "/page/" + 3000 * "x/",
        "/page/",
        "/page",
        "/page/none.js",
        "/serve.py",
    ],
)
def test_nothing_else(path, address):
    status, body = raw(address, path)
    assert status in (307, 404)
    assert b"import" not in body
    assert b"root:" not in body
    assert raw(address, "/healthz")[0] == 200


# ---- contents of the files ----------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in FILES if name.endswith(".js")])
def test_scripts(name):
    """They make elements, not HTML."""
    text = (PAGE / name).read_text()
    wrong = r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|Function\("
    assert not re.search(wrong, text)
    for module in re.findall(r'from "\./(.*?)"', text):
        assert module in FILES


def test_nothing_comes_from_elsewhere():
    """No address of another host, no style or script in the page: the policy would block them."""
    for name in FILES:
        text = (PAGE / name).read_text().replace("http://www.w3.org/2000/svg", "")
        assert "://" not in text
        assert "@import" not in text
    page = (PAGE / "index.html").read_text()
    assert not re.search(r"style=|\son\w+=|<style", page)
    assert re.findall(r"<script.*?>(.*?)</script>", page) == ["", ""]
    for name in re.findall(r'"page/(.*?)"', page):
        assert name in FILES


def test_nothing_moves_for_those_who_do_not_like_it():
    moves = r"(?:transition|animation)[\w-]*:"
    allowed = r"@media \(prefers-reduced-motion: no-preference\) \{(?:[^{}]*\{[^{}]*\})*\s*\}"
    texts = [(PAGE / name).read_text() for name in FILES if name.endswith(".css")]
    assert re.search(moves, "".join(texts))
    assert not re.search(moves, re.sub(allowed, "", "".join(texts)))


def luminance(colour):
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    low, high = sorted([luminance(one), luminance(other)])
    return (high + 0.05) / (low + 0.05)


def test_contrast():
    """Of each text with its ground, light and dark: 4.5, as WCAG 2 has it."""
    found = re.findall(
        r"--([\w-]+): light-dark\((#\w{6}), (#\w{6})\)", (PAGE / "colours.css").read_text()
    )
    pairs = [
        *product(["text", "muted"], ["ground", "surface", "raised"]),
        *product(["accent", "bad"], ["surface", "raised"]),
        *((name, f"{name}-ground") for name in ("good", "bad", "busy", "still", "note")),
        ("on-accent", "accent"),
    ]
    for theme in (0, 1):
        colours = {name: values[theme] for name, *values in found}
        for text, ground in pairs:
            assert contrast(colours[text], colours[ground]) >= 4.5, (theme, text, ground)
