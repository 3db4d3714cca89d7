"""Rank 0 wakes the other ranks, which sleep meanwhile."""

import socket
import threading
import time

import pytest

from distscan.core.errors import RankError
from distscan.service import dispatch
from distscan.service.dispatch import Wakeup

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def made(comm):
    held = Wakeup(comm)
    yield held
    held.close()


def test_tasks_arrive_in_order(made, comm, rng):
    """Of any size; what one rank receives late does not hold up the others."""
    tasks = [{"number": i, "text": "x" * int(n)} for i, n in enumerate(rng.integers(0, 3000, 50))]
    tasks.insert(20, {"text": "long " * 200_000})
    if comm.rank == 0:
        for task in tasks:
            made.send(task)
        return
    for task in tasks:
        assert made.receive() == task


def test_the_end(made, comm):
    if comm.rank == 0:
        made.send({"last": True})
        made.close()
    else:
        assert made.receive() == {"last": True}
        assert made.receive() is None
        assert made.receive() is None


def test_idle_ranks_sleep(made, comm):
    """Under one hundredth of a core."""
    if comm.rank == 0:
        time.sleep(1)
        made.send({})
        return
    begun = time.process_time()
    assert made.receive() == {}
    assert time.process_time() - begun < 0.01


def test_a_rank_that_has_ended(made, comm):
    if comm.rank == comm.size - 1:
        made.close()
    comm.Barrier()
    if comm.rank == 0 < comm.size - 1:

        def send():
            for _ in range(100):
                made.send({"text": "x" * 10000})

        with pytest.raises(RankError, match="a rank has ended"):
            send()


@pytest.mark.one_rank
def test_strangers_are_refused(tmp_path):
    """Those that do not know the secret, say too little, or nothing."""
    secret, server = b"s" * 32, socket.socket(socket.AF_UNIX)
    server.bind(str(tmp_path / "line"))
    server.listen()
    said = [b"x" * 32 + b"\0\0\0\1", b"short", b"", secret + b"\0\0\0\2", secret + b"\0\0\0\1"]

    def connect():
        for text in said:
            with socket.socket(socket.AF_UNIX) as line:
                line.connect(str(tmp_path / "line"))
                line.sendall(text)

    thread = threading.Thread(target=connect)
    thread.start()
    found = dispatch._accept(server, 2, secret)
    thread.join()
    assert len(found) == 2
    for line in (*found, server):
        line.close()


@pytest.mark.one_rank
def test_ranks_that_never_connect(tmp_path, monkeypatch):
    monkeypatch.setattr(dispatch, "_CONNECT_SECONDS", 0.1)
    said = r"no connection from ranks \[1, 2\]"
    with socket.create_server(("127.0.0.1", 0)) as server, pytest.raises(RankError, match=said):
        dispatch._accept(server, 2, b"s" * 32)


@pytest.mark.one_rank
def test_over_tcp():
    """As between nodes."""
    secret = b"s" * 32
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = "127.0.0.1", server.getsockname()[1]
        made = []
        thread = threading.Thread(target=lambda: made.append(dispatch._connect(address, 1, secret)))
        thread.start()
        (line,) = dispatch._accept(server, 1, secret)
        thread.join()
        line.sendall(b"hello")
        assert dispatch._read(made[0], 5) == b"hello"
        line.close()
        assert dispatch._read(made[0], 5) == b""
        made[0].close()
