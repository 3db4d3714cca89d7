"""Send malformed requests to a service: it answers or closes each, and goes on.

    python launch/service_fuzz.py                     # 100,000 requests
    python launch/service_fuzz.py --times 1000 --ranks 1

Requests differ from valid ones in bytes, heads, JSON, arrays or URLs: see service_requests.py.
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
from contextlib import suppress
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from textwrap import dedent

import numpy as np
from kill_cases import Fault
from service_requests import RawRequest, Requests
from service_running import Running, running

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
    """Sends requests by several threads, and collects what is wrong."""

    def __init__(self, service: Running, options: argparse.Namespace) -> None:
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
                made = Requests(random.Random(f"{self.options.seed} {number}"), self.service.files)
                self.send(number, made.one())
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
        if found := re.match(r"request (\d+)", request):
            again = f"--seed {options.seed} --first {found[1]} --times 1"
            print(f"    repeat it by python launch/service_fuzz.py {again}")
    return bool(fuzzer.faults)


def report(fuzzer: Fuzzer, seconds: float) -> None:
    """Print the table, and judge the memory."""
    first, half, end = fuzzer.memory
    counts = ", ".join(f"{count} {said}" for said, count in sorted(fuzzer.answers.items()))
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
