"""Browsers: requests for pages of other sites, names that lead to this machine, static files."""

import re
import socket
from contextlib import ExitStack
from itertools import product
from pathlib import Path

import httpx
import pytest

import distscan
from support.services import TOKEN, http_client, over_tcp, serving

pytestmark = [pytest.mark.timeout(60), pytest.mark.one_rank]


@pytest.fixture(scope="module", params=["tcp", "unix"])
def service(request, tmp_path_factory):
    """A service on TCP, or on a Unix socket, which browsers reach by ``ssh -L``."""
    folder = tmp_path_factory.mktemp("website")
    names = ["--allow-host", "scans.example.org", "--allow-host", "other.example.org:8443"]
    tcp = over_tcp(folder) if request.param == "tcp" else []
    with serving(folder, 1, *tcp, *names) as service:
        service.tcp = bool(tcp)
        yield service
        assert service.end() == 0


@pytest.fixture(scope="module")
def http(service):
    with ExitStack() as stack:
        if service.tcp:
            head = {"authorization": f"Bearer {TOKEN}"}
            yield stack.enter_context(httpx.Client(base_url=service.address, headers=head))
        else:
            yield stack.enter_context(http_client(service))


def raw(service, request):
    """The status and the body of an answer to a request as it stands: httpx would tidy it up."""
    if service.tcp:
        host, port = service.address.removeprefix("http://").split(":")
        line = socket.create_connection((host, int(port)), 10)
    else:
        line = socket.socket(socket.AF_UNIX)
        line.connect(service.address)
    with line:
        line.sendall(f"{request}\r\n\r\n".encode("latin-1"))
        answer = b"".join(iter(lambda: line.recv(1 << 16), b""))
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), body


# ---- origins and names of hosts ------------------------------------------------------------------


def refused(http, headers, path="/v1/jobs", method="GET"):
    """Whether a service refuses a request with these headers."""
    answer = http.request(method, path, headers=headers)
    assert answer.status_code in {200, 400, 403, 405}  # 400: no body; 405: no such method
    assert not [name for name in answer.headers if name.startswith("access-control-")]
    if answer.status_code == 403:
        assert answer.json()["error"]["type"] == "ForbiddenError"
    return answer.status_code == 403


LOOPBACK = "127.0.0.1:8000"
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
    *("localhost:x", "localhost, example.org", "::1", "localhost:80:80", "notlocalhost.org", ""),
)


@pytest.mark.parametrize("host", [*OWN, *OTHERS])
def test_names(host, http):
    """Another name may be one that its owner lets lead to 127.0.0.1; also over ssh -L."""
    for path in ("/v1/jobs", "/", "/page/main.js", "/healthz"):
        assert refused(http, {"host": host}, path) == (host in OTHERS)


@pytest.mark.parametrize("host", ["any", "distscan", "distscan:80", "a_b"])
def test_names_without_a_dot(host, service, http):
    """Over a Unix socket a client names any host."""
    assert refused(http, {"host": host}) == service.tcp


def test_no_name(service):
    """No browser leaves it out; a program that looks whether the service is there may."""
    assert raw(service, "GET /healthz HTTP/1.0")[0] == 200
    for origin in ("null", "http://localhost"):
        assert raw(service, f"GET /healthz HTTP/1.0\r\nOrigin: {origin}")[0] == 403


OWN_PAGES = (
    *(("[::1]:8000", "http://[::1]:8000"), ("localhost", "http://localhost")),
    *(("scans.example.org", "https://scans.example.org"), (LOOPBACK, f"http://{LOOPBACK}")),
    *((LOOPBACK, "https://scans.example.org"), (LOOPBACK, "https://other.example.org:8443")),
)
OTHER_ORIGINS = (
    *("http://localhost:8000", "http://127.0.0.1:8001", "http://127.0.0.1", "", "null"),
    *("https://example.org", "https://other.example.org", f"http://{LOOPBACK}.example.org"),
    *("file://", f"chrome-extension://{LOOPBACK}"),
)


@pytest.mark.parametrize(
    ("host", "origin"), [*OWN_PAGES, *((LOOPBACK, origin) for origin in OTHER_ORIGINS)]
)
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE", "OPTIONS"])
def test_pages(host, origin, method, http):
    """A page may send requests if the host that they name, or an allowed one, has sent it."""
    for path in ("/v1/jobs", "/"):
        is_own = (host, origin) in OWN_PAGES
        assert refused(http, {"host": host, "origin": origin}, path, method) == (not is_own)


@pytest.mark.parametrize("site", ["cross-site", "same-site", "x"])
def test_sites(site, http):
    """A link to the page is all that another page may have."""
    head = {"host": LOOPBACK, "sec-fetch-site": site, "sec-fetch-mode": "navigate"}
    assert refused(http, head)
    assert refused(http, head, "/page/main.js")
    assert refused(http, head, "/", "POST")
    assert refused(http, head | {"sec-fetch-mode": "no-cors"}, "/")
    assert not refused(http, head, "/")
    for same in ("same-origin", "none"):
        assert not refused(http, head | {"sec-fetch-site": same})


# ---- the page: static files ----------------------------------------------------------------------

PAGE = Path(distscan.__file__).parent / "service/page"
FILES = sorted(path.name for path in PAGE.iterdir())
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; frame-ancestors 'none'; form-action 'none'"
)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/", "index.html"),
        ("/favicon.ico", "icon.svg"),
        *((f"/page/{name}", name) for name in FILES),
    ],
)
def test_files(path, name, http):
    """Each is there without a token, with the headers that protect it."""
    answer = http.get(path, headers={"authorization": ""})
    assert answer.status_code == 200
    assert answer.content == (PAGE / name).read_bytes()
    assert answer.headers["content-type"] == TYPES[Path(name).suffix]
    assert answer.headers["content-security-policy"] == POLICY
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["cache-control"] == "no-store"
    assert not [name for name in answer.headers if name.startswith("access-control-")]


def test_the_page(http):
    assert http.head("/").status_code == 200
    assert http.post("/").status_code == 405


@pytest.mark.parametrize(
    "path",
    [
        *("/../serve.py", "/%2e%2e/serve.py", "/..%2fserve.py", "/%2e%2e%2fserve.py"),
        *("/..%5cserve.py", "/x/../../serve.py", "/....//serve.py", "//etc/passwd"),
        *("/%2fetc%2fpasswd", "//../../../../../../../etc/passwd", "/index.html%00", "/%ff"),
        *("/" + 300 * "x", "/" + 3000 * "x/", "/", "", "/none.js", "/../../serve.py"),
    ],
)
def test_nothing_else(path, service):
    status, body = raw(service, f"GET /page{path} HTTP/1.0\r\nHost: localhost")
    assert status in (307, 404)
    assert b"import" not in body
    assert b"root:" not in body
    assert raw(service, "GET /healthz HTTP/1.0")[0] == 200


# ---- contents of the files ----------------------------------------------------------------------


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
    definitions = re.findall(
        r"--([\w-]+): light-dark\((#\w{6}), (#\w{6})\)", (PAGE / "style.css").read_text()
    )
    pairs = [
        *product(["text", "muted"], ["ground", "surface", "raised"]),
        *product(["accent", "bad"], ["surface", "raised"]),
        *((name, f"{name}-ground") for name in ("good", "bad", "busy", "still", "note")),
        ("on-accent", "accent"),
    ]
    phases = ["start", "read", "copy-in", "reduce", "exscan", "scan", "copy-out", "write", "upload",
              "check"]  # fmt: skip
    for theme in (0, 1):
        colours = {name: values[theme] for name, *values in definitions}
        for phase, ground in product(phases, ["surface", "raised"]):  # parts of a picture: 3
            assert contrast(colours[phase], colours[ground]) >= 3, (theme, phase, ground)
        for text, ground in pairs:
            assert contrast(colours[text], colours[ground]) >= 4.5, (theme, text, ground)
