"""Send malformed requests to a service: it answers or closes each, and goes on.

    python launch/tools/service_fuzz.py                     # 100,000 requests
    python launch/tools/service_fuzz.py --times 1000 --ranks 1

Requests differ from valid ones in bytes, heads, JSON, arrays or URLs.
Several connections send them at once. After all of them:

- each was answered, or its connection was closed, within seconds
- no answer has a status of 5xx, and the service has printed no exception
- the memory of rank 0 has not grown
- valid requests in between were answered, and their results are NumPy's

A request depends only on the seed and its number. Faults are printed with the requests' bytes and
the commands that repeat them.
"""

import argparse
import json
import random
import re
import secrets
import signal
import socket
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from http.client import HTTPException, HTTPResponse
from io import BytesIO
from pathlib import Path
from textwrap import dedent
from typing import Any, NamedTuple
from urllib.parse import quote_from_bytes

import numpy as np
from processes import Fault
from service_running import ServiceProgram, running

HUGE = [0, -1, 1 << 31, (1 << 63) - 1, 1 << 63, -(1 << 63), 1 << 64, 10**30, 10**400, 10**5000]
TEXTS = [
    *("", "\0", "x\0y", "\ud800", "\udfff\ud800", "é", "\u202e", "🜁" * 50, "a" * 5000, "../" * 99),
    *("nan", "inf", "-1", "1e999", "1_0", "0x10", " 1 ", "1+2j", "9" * 5000, "٣", "True", "null"),
    *("[", "'", '"', "%", "%00", "{}", "\\N{DIGIT ONE}", "\r\nx: y", "/", "~", "/dev/zero", "."),
    *("O", "f4,f4", "(3,)f4", "M8[s]", "S5", "U7", "V8", ">c16", "<f16", "datetime64", "f", "g"),
    *("<f8", "bfloat16", "float16", "structured", "object", "int4", "i16", "(0,)i4", "10**9f8"),
]  # fmt: skip
WILD: list[Any] = [*HUGE[:-1], *TEXTS, None, True, False, 0.5, -0.0, 1e308, float("nan"),
                   float("inf"), [], {}, [[]], [None], {"a": {}}, ["x", 1], [1 << 70]]  # fmt: skip
OPTIONS = ("op", "axis", "exclusive", "initial", "reverse", "dtype", "strategy")
FIELDS = (*OPTIONS, "inputs", "output", "segments", "state", "trace", "shape", "raw", "backend",
          "threads", "memory", "force", "check", "resume", "unknown", "", "__class__")  # fmt: skip
METHODS = ("GET", "POST", "DELETE", "PUT", "HEAD", "OPTIONS", "PATCH", "TRACE", "CONNECT", "get",
           "X" * 300, "PRI", "G\0T", "", "POST POST")  # fmt: skip
PATHS = ("/v1", "/v1/jobs", "/v1/scans", "/v1/jobs/1", "/healthz", "/", "*", "", "//", "/v1//jobs",
         "/v1/jobs/", "/v1/jobs/0", "/v1/jobs/-1", "/v1/jobs/1.5", "/v1/jobs/" + "9" * 5000,
         "/v1/jobs/٣", "/v1/jobs/%31", "/v1/jobs/1/2", "/v1/../v1", "/%", "/%zz", "/\0", "/v2",
         "/v1/activity?after=-1", "/v1/activity?after=" + "9" * 5000,
         "/v1/jobs/9223372036854775808", "/v1/jobs/" + "1" * 70000, "http://[/v1", "http://x:y/v1",
         "http://any/v1", "/v1/jobs/1?wait=1e-9", "/v1?#x", "/openapi.json", "/v1;x",
         "/page", "/page/", "/page/../app.py", "/page/%2e%2e%2fapp.py", "/page/\0", "/page/%00",
         "/page/%ff", "/page//etc/passwd", "/page/main.js/x", "/page/" + "x" * 5000)  # fmt: skip
HEADS = (
    *("content-length: -1", "content-length: 0x10", "content-length: 5, 5", "content-length: 1_0"),
    *("content-length: 99999999999999999999", "content-length: ", "content-length: ٣"),
    *("content-length: 3\r\ncontent-length: 4", "transfer-encoding: chunked"),
    *("transfer-encoding: gzip, chunked", "transfer-encoding: chunked\r\ncontent-length: 5"),
    *("transfer-encoding: identity", "expect: 100-continue", "expect: x", "upgrade: websocket"),
    *("connection: upgrade\r\nupgrade: h2c", "connection: close", "connection: \0", "host: ["),
    *("host: ]:99999", "host: ", "host: x\r\nhost: y", "host: é", "host: a b"),
    *("host: " + "h" * 300, "authorization: Bearer é", "authorization: " + "x" * 9000),
    *("distscan-protocol: ٣", "distscan-protocol: ", "distscan-protocol: 1.0", "idempotency-key:"),
    *(
        "idempotency-key: é\xff",
        "idempotency-key: \t",
        "idempotency-key: " + "k" * 201,
        "x" * 20000,
    ),
    *("content-encoding: gzip", "x: " + "y" * 70000, "x:\0", " x: y", "x : y", ": y", "x\r\n y"),
    *(
        "x" * 20000,
        "origin: null",
        "origin: ",
        "origin: http://[",
        "origin: é",
        "sec-fetch-site: \0",
    ),
    *("cookie: \xff", "range: x", "\r\n".join(f"x{i}: {i}" for i in range(300))),
    *("content-type: \x80/; charset=x", "x-forwarded-for: ["),
)
CHUNKS = (b"5\r\nhello\r\n0\r\n\r\n", b"5\r\nhel", b"z\r\n", b"-5\r\nhello\r\n", b"5hello0",
          b"ffffffffffffffffffff\r\nx", b"5;x=\0\r\nhello\r\n0\r\n\r\n", b"0\r\nx: y\r\n\r\n",
          b"0\r\n" + b"x: y\r\n" * 9999, b"1\r\n[\r\n1\r\n]\r\n0\r\n\r\n", b"\r\n\r\n")  # fmt: skip
# The parts of a header of .npy.
SHAPES = ((), (1,), (100,), (10, 10), (-1,), (0,), (0, 5), (1 << 62,), (1 << 32,) * 2, (1 << 40,),
          (10**30,), (1.5,), ("x",), [3], 3, None, (True,), (1,) * 65, (1 << 17, 2), (-1, -100),
          (1 << 63,), (1 << 31, 1 << 31, 1 << 31), (100, -1),
          ((1 << 63) - 1,), ((1 << 63) - 1, 0))  # fmt: skip
KINDS = ("<f8", "<f8", "<f8", "<f8", "|O", "|S8", "<U2", "|V8", ">i4", "|b1", "<M8[s]", "<f8,<f8",
         [("a", "<f8")], [("a", "|O")], "", "x", None, 8, "<c16", "|S0", "|V0", [], {"names": []},
         "(100,)<f8", "<f2")  # fmt: skip


class RawRequest(NamedTuple):
    """A request: its bytes, and whether its frame is right, so that an answer must come."""

    raw: bytes
    framed: bool


class Requests:
    """Draws malformed requests; all depend only on the generator."""

    def __init__(self, draw: random.Random, files: Path) -> None:
        """``files`` is a folder that the service may use."""
        self.draw, self.files = draw, files

    def one(self) -> RawRequest:
        """Return a request."""
        kinds: list[Callable[[], RawRequest]] = [
            *(self.of_bytes, self.of_heads, self.of_json, self.of_arrays, self.of_urls)
        ]
        return self.draw.choice(kinds)()

    def of_bytes(self) -> RawRequest:
        """Return a valid request whose bytes have changed."""
        raw = bytearray(self._valid())
        for _ in range(self.draw.choice([1, 1, 2, 5])):
            self._change(raw)
        return RawRequest(bytes(raw), framed=False)

    def of_heads(self) -> RawRequest:
        """Return a request with a wild line, method, headers or length."""
        draw = self.draw
        method = draw.choice(METHODS if draw.random() < 0.4 else METHODS[:3])
        path = draw.choice(PATHS if draw.random() < 0.6 else PATHS[:4])
        heads = draw.sample(HEADS, draw.choice([0, 1, 1, 2]))
        body = draw.choice([b"", b"[]", b"hello", *CHUNKS])
        version = draw.choice(["HTTP/1.1"] * 6 + ["HTTP/1.0", "HTTP/2.0", "HTTP/1", "x", ""])
        if draw.random() < 0.5:
            heads.append(f"content-length: {len(body) + draw.choice([0, 0, 0, -1, 1, 1000])}")
        if draw.random() < 0.8:
            heads.append("host: any")
        lines = "\r\n".join([f"{method} {path} {version}", *heads])
        end = b"\r\n\r\n" if draw.random() < 0.95 else b"\n\n"
        return RawRequest(lines.encode("utf-8", "surrogateescape") + end + body, framed=False)

    def of_json(self) -> RawRequest:
        """Return a file job that is wild JSON, or none."""
        draw = self.draw
        job: Any = {"inputs": [str(self.files / "none.npy")], "output": str(self.files / "y.npy")}
        for _ in range(draw.choice([1, 1, 2, 3])):
            name = draw.choice(FIELDS) if draw.random() < 0.95 else draw.choice(TEXTS)
            value = draw.choice(WILD)
            job[name] = [value] if draw.random() < 0.1 else value
        if draw.random() < 0.1:
            job = draw.choice([[job], draw.choice(WILD), {"jobs": job}])
        body = json.dumps(job, ensure_ascii=draw.random() < 0.7).encode("utf-8", "surrogatepass")
        way = draw.random()
        if way < 0.1:
            body = draw.choice([b"[" * 100_000, b'{"a":' * 50_000, b"[" * 999 + b"]" * 999, b"-",
                                body.decode("utf-8", "replace").encode("utf-16"), b"\xef\xbb\xbf" +
                                body, b"1" * 9000, b"1e999999", b"NaN", b"\"\\ud800\"", b"{}{}",
                                b'{"inputs":1,"inputs":2}', body[:-1], b"\xff" + body])  # fmt: skip
        elif way < 0.2:
            changed = bytearray(body)
            self._change(changed)
            body = bytes(changed)
        heads = [] if draw.random() < 0.9 else [b"idempotency-key: " + draw.choice([b"k", b"\xe9"])]
        return RawRequest(framed(b"POST /v1/jobs", body, *heads), framed=True)

    def of_arrays(self) -> RawRequest:
        """Return an array whose header or length is wrong."""
        draw, content = self.draw, bytearray()
        size = draw.choice([0, 8, 800] * 10 + [1 << 21])
        way = draw.random()
        if way < 0.6:
            shape, kind = draw.choice(SHAPES), draw.choice(KINDS)
            order: Any = draw.choice([False, False, True, None, 1, "x"])
            header = {"descr": kind, "fortran_order": order, "shape": shape}
            if draw.random() < 0.1:
                header = draw.choice([{}, {**header, "more": 1}, {"shape": shape}])
            text = draw.choice([repr(header)] * 9 + ["[" * 5000, "0", "__import__('os')", "'" * 50])
            version = draw.choice([(1, 0)] * 8 + [(2, 0), (3, 0), (0, 0), (9, 9)])
            content += b"\x93NUMPY" + bytes(version)
            length = len(text) + draw.choice([0] * 8 + [1, -1, 10000])
            width = 2 if version[0] < 2 else 4
            content += max(length, 0).to_bytes(width, "little") + text.encode() + bytes(size)
        else:
            x = np.frombuffer(draw.randbytes(size), "u1")
            file = BytesIO()
            np.save(file, x.reshape(draw.choice([(-1,), (1, -1)])) if size else x)
            content += file.getvalue()
            if way < 0.9:
                for _ in range(draw.choice([1, 3])):
                    self._change(content, 128)
            else:
                del content[draw.randrange(len(content)) :]
        url = b"/v1/scans" if draw.random() < 0.7 else self._query()
        return RawRequest(framed(b"POST " + url, bytes(content)), framed=True)

    def of_urls(self) -> RawRequest:
        """Return a request whose query is wild."""
        draw = self.draw
        if draw.random() < 0.7:
            file = BytesIO()
            np.save(file, np.arange(draw.choice([0, 10, 100, 200_000 * (draw.random() < 0.05)])))
            return RawRequest(framed(b"POST " + self._query(), file.getvalue()), framed=True)
        name, value = draw.choice(["wait", "most", "before", "x"]), self._quoted(draw.choice(WILD))
        if name == "wait" and draw.random() < 0.9:
            name = "most"  # some may wait a minute, as asked for
        path = draw.choice(["/v1/jobs", "/v1/jobs/1", "/v1", "/healthz", "/v1/jobs/77"])
        return RawRequest(framed(f"GET {path}?{name}=".encode() + value, b""), framed=True)

    def _query(self) -> bytes:
        """Return the URL of a scan with wild options."""
        names = self.draw.sample([*OPTIONS, *OPTIONS, "x"], self.draw.choice([1, 1, 2, 4]))
        parts = [name.encode() + b"=" + self._quoted(self._option(name)) for name in names]
        return b"/v1/scans?" + self.draw.choice([b"&", b"&", b";", b"&&"]).join(parts)

    def _option(self, name: str) -> Any:
        right: dict[str, list[Any]] = {
            "op": ["sum", "max", "prod", "logaddexp", "bitwise_xor"],
            "axis": [0, 1, -1],
            "dtype": ["f4", "i8", "c16", "bool", "float16"],
            "strategy": ["auto", "scan-add"],
        }
        some = right.get(name, ["true", "false", "1"])
        return self.draw.choice(some if self.draw.random() < 0.3 else WILD)

    def _quoted(self, value: Any) -> bytes:
        raw = str(value)[:6000].encode("utf-8", "surrogatepass")
        if self.draw.random() < 0.1:
            raw += self.draw.randbytes(3)
        return quote_from_bytes(raw, safe="").encode()

    def _valid(self) -> bytes:
        """Return a valid request."""
        file = BytesIO()
        np.save(file, np.arange(self.draw.randrange(30)))
        job = {"inputs": [str(self.files / "none.npy")], "output": str(self.files / "y.npy")}
        return self.draw.choice([
            framed(b"GET /v1", b""),
            framed(b"GET /v1/jobs?most=3", b""),
            framed(b"GET /v1/jobs/1?wait=0", b""),
            framed(b"DELETE /v1/jobs/1", b""),
            framed(b"POST /v1/scans?op=max&axis=0", file.getvalue()),
            framed(b"POST /v1/jobs", json.dumps(job).encode(), b"idempotency-key: k"),
        ])  # fmt: skip

    def _change(self, raw: bytearray, within: int = 1 << 30) -> None:
        """Change some bytes, in place."""
        draw, end = self.draw, min(len(raw), within)
        at = draw.randrange(end + 1)
        to = min(at + draw.choice([1, 1, 4, 30]), len(raw))
        way = draw.randrange(6)
        if way == 0:
            del raw[at:]
        elif way == 1:
            raw[at:to] = draw.randbytes(to - at)
        elif way == 2:
            raw[at:at] = draw.choice(
                [b"\0", b"\r\n", b"\r\n\r\n", b"\xff", b" ", b":", b"\0" * 999]
            )
        elif way == 3:
            del raw[at:to]
        elif way == 4:
            raw[at:at] = raw[:to]
        elif at < end:
            raw[at] ^= 1 << draw.randrange(8)


def framed(line: bytes, body: bytes, *heads: bytes) -> bytes:
    """Return a request whose length is right."""
    some = b"\r\n".join([line + b" HTTP/1.1", b"host: any", *heads])
    return some + b"\r\ncontent-length: %d\r\n\r\n" % len(body) + body


ANSWERED = 30.0  # seconds until a request is answered, or its connection is closed
QUIET = 0.02  # seconds without an answer, after which a request has no more bytes
EVERY = 25  # requests between two that are valid
GROWN = 32  # MiB by which the memory of rank 0 may grow
SHOWN = 300  # bytes of a request that are printed
PAUSE = 80.0  # seconds after which uvicorn has let go of connections that ended in an error
LONG = 20_000  # requests of a run that has this pause
# uvicorn answers 400 to broken chunks, and prints this if the service answers at the same time.
OF_UVICORN = "h11._util.LocalProtocolError"


class Fuzzer:
    """Sends requests by several threads, and collects the faults."""

    def __init__(self, service: ServiceProgram, options: argparse.Namespace) -> None:
        self.service, self.options = service, options
        self.next, self.lock = options.first, threading.Lock()
        self.answers, self.faults = Counter[str](), dict[str, str]()
        self.valid, self.memory = Counter[bool](), list[float]()

    def run(self) -> None:
        """Send all requests, in two halves; between them, a long run pauses."""
        first, times = self.options.first, self.options.times
        self._half(first + times // 2)
        if times >= LONG:
            time.sleep(PAUSE)
        self._half(first + times)
        for what, where in exceptions(self.service.messages.read_text()).items():
            self._wrong(f"printed {what}", where)

    def _half(self, last: int) -> None:
        threads = [threading.Thread(target=self._work, args=(last,), daemon=True)
                   for _ in range(self.options.connections)]  # fmt: skip
        for thread in threads:
            thread.start()
        spoken = moved = time.monotonic()
        before = self.answers.total()
        while any(thread.is_alive() for thread in threads):
            time.sleep(0.05)
            now, total = time.monotonic(), self.answers.total()
            if self.service.ended():
                raise Fault(f"the service has ended:\n{self.service.messages.read_text()[-2000:]}")
            if total > before:
                before, moved = total, now
            if now > moved + 2 * ANSWERED:
                raise Fault(f"no request was answered for {2 * ANSWERED:.0f} s")
            if now > spoken + 10:
                spoken = now
                print(f"{total} requests, {self.service.memory()[0]:.0f} MiB", flush=True)
        self.memory.append(self.service.memory()[0])

    def _work(self, last: int) -> None:
        with self.service.client() as client:
            while True:
                with self.lock:
                    if self.next >= last:
                        return
                    number, self.next = self.next, self.next + 1
                requests = Requests(
                    random.Random(f"{self.options.seed} {number}"), self.service.files
                )
                self.send(number, requests.one())
                if number % EVERY == 0:
                    rng = np.random.default_rng(number)
                    x = rng.integers(0, 100, 1000 if number % (40 * EVERY) else 300_000)
                    try:
                        right = np.array_equal(client.scan(x), x.cumsum())
                    except Exception as error:
                        self._wrong(f"a valid request: {error!r}", "")
                        continue
                    self.valid[right] += 1

    def send(self, number: int, request: RawRequest) -> None:
        """Send a request, and look at its answer."""
        try:
            status, body = exchange(str(self.service.socket), request)
        except TimeoutError:
            status, body = "neither answered nor closed", b""
        except OSError as error:
            status, body = f"no connection: {error}", b""
        with self.lock:
            self.answers[status] += 1
        if status[:1] == "5" or not (status.isdigit() or status == "closed"):
            try:
                error = json.loads(body)["error"]
                fault = f"{status} {error['type']}: {error['message']}"
            except (ValueError, LookupError, TypeError):
                fault = f"{status} {body[:100]!r}"
            self._wrong(
                re.sub(r"\d+", "N", fault)[:200], f"request {number}: {request.raw[:SHOWN]!r}"
            )
        elif request.framed and status == "closed":
            self._wrong("closed without an answer", f"request {number}: {request.raw[:SHOWN]!r}")

    def _wrong(self, fault: str, request: str) -> None:
        with self.lock:
            self.faults.setdefault(fault, request)


def exchange(address: str, request: RawRequest) -> tuple[str, bytes]:
    """Send a request; return the status of its answer, or "closed", and the answer's body."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(ANSWERED)
        connection.connect(address)
        with suppress(BrokenPipeError, ConnectionResetError):  # it may answer before the end
            connection.sendall(request.raw)
        if not request.framed:
            connection.settimeout(QUIET)
            try:
                waits = connection.recv(12, socket.MSG_PEEK) == b"HTTP/1.1 100"
            except TimeoutError:
                waits = True
            except ConnectionResetError:
                return "closed", b""
            if waits:  # for more bytes
                connection.shutdown(socket.SHUT_WR)
            connection.settimeout(ANSWERED)
        answer = HTTPResponse(connection, method=request.raw[:4].decode("latin-1"))
        try:
            answer.begin()
            body = answer.read()
        except (HTTPException, ConnectionResetError):
            return "closed", b""
        finally:
            answer.close()
        return str(answer.status), body


def exceptions(text: str) -> dict[str, str]:
    """Return the exceptions that a service has printed, each with the place that raised it."""
    stacks = {}
    # The service's log indents them.
    text = re.sub(r"^    Traceback .*\n(?:(?:    .*)?\n)*", lambda each: dedent(each[0]), text,
                  flags=re.M)  # fmt: skip
    for trace in re.split(r"^Traceback ", text, flags=re.M)[1:]:
        frames = re.match(r".*\n(?:[ \n].*\n)*", trace)
        if frames is None:
            continue
        error, _, rest = trace[frames.end() :].partition("\n")
        if error.startswith(OF_UVICORN) or re.match(r"\n(During|The above)", rest):
            continue  # another one follows from it
        places = re.findall(r'File "(.*)\n', frames[0])
        stacks[re.sub(r"\d+", "N", error)[:200]] = " <- ".join(places[-3:][::-1])
    return stacks


def main() -> int:
    """Send the requests; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    add = parser.add_argument
    add("--times", type=int, default=100_000, help="how many requests (default: 100,000)")
    add("--ranks", type=int, default=2)
    add("--connections", type=int, default=16, help="how many at once (default: 16)")
    add("--seed", type=int, default=secrets.randbelow(10**9), help="repeats a run; printed")
    add("--first", type=int, default=0, metavar="NUMBER", help="the request to begin with")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the service ends, too
    print(f"seed {options.seed}, {options.ranks} ranks", flush=True)
    with tempfile.TemporaryDirectory(prefix="service_fuzz-") as name:
        begun = time.monotonic()
        try:
            with running(Path(name), options.ranks, "--body", str(1 << 25)) as service:
                fuzzer = Fuzzer(service, options)
                fuzzer.memory.append(service.memory()[0])
                fuzzer.run()
                report(fuzzer, time.monotonic() - begun)
        except Fault as fault:
            fuzzer.faults[str(fault)] = ""
    for what, request in fuzzer.faults.items():
        print(f"FAULT: {what}\n    {request}")
        if match := re.match(r"request (\d+)", request):
            repeat = f"--seed {options.seed} --first {match[1]} --times 1"
            print(f"    repeat it by python launch/tools/service_fuzz.py {repeat}")
    return bool(fuzzer.faults)


def report(fuzzer: Fuzzer, seconds: float) -> None:
    """Print the table, and judge the memory."""
    first, half, end = fuzzer.memory
    counts = ", ".join(f"{count} {status}" for status, count in sorted(fuzzer.answers.items()))
    print(f"{fuzzer.answers.total()} requests in {seconds:.0f} s: {counts}")
    print(f"{fuzzer.valid[True]} valid ones in between: right, {fuzzer.valid[False]}: wrong")
    print(f"MiB of rank 0: {first:.0f} at first, {half:.0f} after a half, {end:.0f} at the end")
    if end > half + GROWN:
        fuzzer.faults[f"the memory has grown from {half:.0f} to {end:.0f} MiB"] = ""
    if fuzzer.answers.total() != fuzzer.options.times:
        fuzzer.faults["a thread has ended early"] = ""
    if fuzzer.valid[False]:
        fuzzer.faults["valid requests had wrong answers"] = ""


if __name__ == "__main__":
    sys.exit(main())
