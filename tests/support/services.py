"""Services that tests start, in processes of their own; their logs, events and lost answers."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from io import BytesIO
from pathlib import Path

import httpx
import numpy as np
from prometheus_client.parser import text_string_to_metric_families

from distscan.service.client import Client

ROOT = Path(__file__).parents[2]
BODY = 1 << 25  # bytes of an array, at most, that the services of tests take
TOKEN = "0123456789abcdef-a-token"
LARGE = 300_000  # elements of which a client makes more than a MiB: they go by shared memory
READY = re.compile(r"listen on (\S+)")


class Service:
    """A service of some ranks, with its folder: its socket, its jobs, and the root of files."""

    def __init__(self, folder, ranks=1, *options, launcher=None):
        """``launcher`` starts so many ranks; by default that is ``launch/mpirun.sh``."""
        self.folder, self.options = Path(folder), options
        self.launcher = launcher or [ROOT / "launch/mpirun.sh", ranks]
        self.ranks, self.output, self.pids = ranks, [], set()
        self.start()

    def start(self):
        """Start it, and wait until it listens."""
        line = [sys.executable, "-m", "distscan", "serve", "--backend", "cpu"]
        if "--host" not in self.options:
            line += ["--socket", str(self.folder / "socket")]
        line += ["--state-dir", str(self.folder / "state"), "--root", str(self.folder)]
        if self.ranks > 1:
            line = [*map(str, self.launcher), *line]
        environment = os.environ | {"DISTSCAN_LABELS": "0", "PYTHONPATH": str(ROOT)}
        self.process = subprocess.Popen(
            [*line, *self.options],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
            start_new_session=True,
        )
        self.address = None
        for text in self.process.stdout:
            self.output.append(text)
            if match := READY.search(text):
                self.address = match[1]
                break
        else:
            raise RuntimeError("".join(self.output))
        self.pids.update(self.ranks_of())
        self._reader = threading.Thread(target=lambda: self.output.extend(self.process.stdout))
        self._reader.start()

    def client(self, token=None, patience=5.0, timeout=None):
        return Client(self.address, token, patience, timeout)

    def ranks_of(self):
        """The processes of the ranks."""
        match, state = [], str(self.folder / "state")
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):
                line = path.read_bytes().decode().split("\0")
                if line[1:4] == ["-m", "distscan", "serve"] and state in line:
                    match.append(int(path.parent.name))
        return match

    def end(self, number=signal.SIGTERM, timeout=30):
        """Send a signal to rank 0, or kill all; return the exit status."""
        if self.process.poll() is None:
            if number == signal.SIGKILL:
                os.killpg(self.process.pid, number)
                for pid in self.ranks_of():
                    with suppress(ProcessLookupError):
                        os.kill(pid, number)
            else:
                for pid in self.ranks_of():
                    with suppress(ProcessLookupError):
                        os.kill(pid, number)
        return self.wait(timeout)

    def wait(self, timeout=30):
        """Wait for its end; return the exit status."""
        status = self.process.wait(timeout)
        self._reader.join()
        self.process.stdout.close()
        return status


@contextmanager
def stopped(service):
    """A service of one rank that neither works nor ends, until the function that is yielded."""
    (pid,) = service.ranks_of()
    os.kill(pid, signal.SIGSTOP)
    for task in Path(f"/proc/{pid}/task").iterdir():
        while (task / "stat").read_text().rpartition(")")[2].split()[0] != "T":
            time.sleep(0.001)
    try:
        yield lambda: os.kill(pid, signal.SIGCONT)
    finally:
        os.kill(pid, signal.SIGCONT)


@contextmanager
def serving(folder, ranks=1, *options, launcher=None):
    """Run a service during a ``with`` block."""
    service = Service(folder, ranks, *options, launcher=launcher)
    try:
        yield service
    finally:
        if service.process.poll() is None:
            service.end(signal.SIGKILL)


def over_tcp(folder):
    """The options of a service that listens on TCP, for clients with ``TOKEN``."""
    path = Path(folder, "token")
    path.write_text(f"{TOKEN}\n")
    path.chmod(0o600)
    return ["--host", "127.0.0.1", "--token-file", str(path)]


def http_client(service):
    """A client of HTTP, without anything of distscan."""
    transport = httpx.HTTPTransport(uds=service.address)
    return httpx.Client(transport=transport, base_url="http://any", timeout=60)


def post(service, url, **arguments):
    """A request as curl sends it."""
    with http_client(service) as http:
        return http.post(url, **arguments)


def values(text):
    """The samples of metrics: by name, with the labels."""
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def npy(x):
    """The bytes of an array's file."""
    file = BytesIO()
    np.save(file, x)
    return file.getvalue()


def long_file(folder, elements=1 << 27):
    """A file whose scan takes long enough to be disturbed; it has holes alone."""
    np.lib.format.open_memmap(folder / "long.npy", "w+", "f8", (elements,))
    return folder / "long.npy"


def command(*arguments, **options):
    """Run ``python -m distscan``; return (status, stdout, stderr)."""
    ran = subprocess.run(
        [sys.executable, "-m", "distscan", *map(str, arguments)],
        capture_output=True,
        check=False,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        timeout=60,
        **options,
    )
    return ran.returncode, ran.stdout, ran.stderr


def lines_of(service, form):
    """The log of a service: objects, or (level, message) as objects."""
    texts = [text for text in service.output if "listen on" not in text]
    if service.ranks > 1:  # mpirun may have something to say
        texts = [text for text in texts if text.startswith("{") or "Z distscan: " in text]
    if form == "json":
        return [json.loads(text) for text in texts]
    line = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z distscan: ([A-Z]+): (.*)\n")
    matches = [line.fullmatch(text) for text in texts]
    assert all(matches), texts
    return [{"level": each[1], "message": each[2]} for each in matches]


def wait_until(condition, seconds=30):
    """Wait until a condition holds; return its value."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end
        time.sleep(0.005)
    return value


def log_line(service, form, level, *texts):
    """The first line of a level that has these texts, as soon as it is there."""

    def line():
        for line in lines_of(service, form):
            if line["level"] == level and all(text in line["message"] for text in texts):
                return line
        return None

    try:
        return wait_until(line, 10)
    except AssertionError:
        raise AssertionError((level, texts, service.output)) from None


# ---- server-sent events, read line by line -------------------------------------------------------


@contextmanager
def following(service):
    """Follow a service; yield an iterator of (event, data), where "comment" is one, too."""
    with http_client(service) as http, http.stream("GET", "/v1/events") as answer:
        answer.raise_for_status()
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield events(answer.iter_lines())


def events(lines):
    """The events of some lines."""
    fields = {}
    for line in lines:
        if line:
            name, _, value = line.partition(": ")
            fields[name] = value
            continue
        if "data" in fields:
            yield fields["event"], json.loads(fields["data"]), int(fields["id"])
        elif "" in fields:
            yield "comment", fields[""], None
        elif "retry" in fields:
            yield "retry", int(fields["retry"]), None
        fields = {}


def read_until(stream, is_last):
    """Read events read_until one is wanted; return all that were read."""
    seen = []
    for name, data, _ in stream:
        seen.append((name, data))
        if is_last(name, data):
            return seen
    raise AssertionError(f"the stream ended before; it said {seen}")


def is_job(number, state):
    """Whether an event says that a job is in a state."""
    return lambda name, data: name == "job" and (data["number"], data["state"]) == (number, state)


# ---- a proxy that loses answers, after the service has done its work -----------------------------


class Cutter:
    """Hands requests on to a service's socket, and answers back; the next ``lose`` are lost."""

    def __init__(self, path, behind):
        self.address, self._behind, self.lose, self.lost = str(path), behind, 0, 0
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(self.address)
        self._server.listen()
        self._lines, self._threads = ExitStack(), []
        self._start(self._accept)

    def _start(self, work, *arguments):
        self._threads.append(threading.Thread(target=work, args=arguments))
        self._threads[-1].start()

    def _accept(self):
        with suppress(OSError):
            while True:
                near, _ = self._server.accept()
                far = socket.socket(socket.AF_UNIX)
                for line in (near, far):
                    self._lines.callback(line.close)
                    self._lines.callback(end, line)
                far.connect(self._behind)
                self._start(self._hand_on, near, far, False)
                self._start(self._hand_on, far, near, True)

    def _hand_on(self, source, target, answers):
        with suppress(OSError):
            while piece := source.recv(1 << 16):
                if answers and self.lose > 0:
                    self.lose, self.lost = self.lose - 1, self.lost + 1
                    break
                target.sendall(piece)
        end(source)
        end(target)

    def close(self):
        end(self._server)
        self._threads[0].join()
        self._server.close()
        self._lines.close()
        for thread in self._threads:
            thread.join()


def end(line):
    with suppress(OSError):
        line.shutdown(socket.SHUT_RDWR)


@contextmanager
def cutting(service):
    """Run such a proxy during a ``with`` block."""
    cutter = Cutter(service.folder / "cut", service.address)
    try:
        yield cutter
    finally:
        cutter.close()
        (service.folder / "cut").unlink()
