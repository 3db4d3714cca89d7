"""The static files of the page: what a browser gets without a token, and nothing else."""

import re
import socket
from itertools import product
from pathlib import Path

import httpx
import pytest

from distscan.service import app
from support.services import serving

pytestmark = [pytest.mark.timeout(60), pytest.mark.one_rank]
TOKEN = "0123456789abcdef-a-token"
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
    (folder / "token").write_text(TOKEN)
    (folder / "token").chmod(0o600)
    with serving(folder, 1, "--host", "127.0.0.1", "--token-file", str(folder / "token")) as made:
        yield made.address


def raw(address, path):
    """The status and the body of an answer to a path as it stands: httpx would tidy it up."""
    host, port = address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), 10) as line:
        line.sendall(f"GET {path} HTTP/1.0\r\nHost: {host}:{port}\r\n\r\n".encode("latin-1"))
        answer = b"".join(iter(lambda: line.recv(1 << 16), b""))
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), body


# ---- what is served ------------------------------------------------------------------------------


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


# ---- what the files have -------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in FILES if name.endswith(".js")])
def test_scripts(name):
    """They make elements, not HTML; and they are short."""
    text = (PAGE / name).read_text()
    for wrong in (
        "innerHTML",
        "outerHTML",
        "insertAdjacent",
        "document.write",
        "eval(",
        "Function(",
    ):
        assert wrong not in text
    assert text.count("\n") < 300
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
    """Of each text with what is behind it, light and dark: 4.5, as WCAG 2 has it."""
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
