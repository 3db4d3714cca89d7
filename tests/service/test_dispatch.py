"""Rank 0's queue, and arrays in buffers, without HTTP; how rank 0 wakes the other ranks."""

import contextlib
import os
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from mpi4py import MPI

import distscan
from distscan import InputError, RankError
from distscan.binding import bind
from distscan.job.job import FileJob
from distscan.service import arrays, dispatch
from distscan.service.arrays import Buffer, Place, Scanner, Task
from distscan.service.dispatch import Dispatcher, Wakeup, job_to_json
from distscan.service.errors import BusyError, ServiceError, StoreError
from distscan.service.store import Store
from support.cases import pairs
from support.services import npy, serving, values, wait_until

pytestmark = pytest.mark.timeout(60)


def put_in_buffer(path, x):
    """Put an array into a new buffer; return the buffer, which the caller closes, and its place."""
    buffer = Buffer(path, x.nbytes)
    os.pwrite(buffer.file, x.tobytes(), 0)
    return buffer, Place(str(path), 0, str(x.dtype), x.shape)


@pytest.fixture
def dispatcher(tmp_path):
    store = Store(tmp_path / "state")
    comm = MPI.COMM_SELF
    scanner = Scanner(comm, bind(comm, "cpu", str))
    yield Dispatcher(comm, Wakeup(comm), store, scanner, limit=100, backend="cpu")
    store.close()


def job(folder, i=0):
    np.save(folder / f"{i}.npy", np.arange(10 + i))
    return job_to_json(FileJob.parse((folder / f"{i}.npy",), folder / f"{i}.scan.npy"))


@pytest.fixture
def task(tmp_path):
    """A function that returns the scan of an array from one buffer into another."""
    buffers = []

    def task(i=0):
        for name, x in (("x", np.arange(10 + i)), ("y", np.full(10 + i, -7))):
            buffers.append(put_in_buffer(tmp_path / f"{name}{i}", x))
        return Task(buffers[-2][1], buffers[-1][1], None, {"op": "sum"})

    yield task
    for buffer, _ in buffers:
        buffer.close()


@contextlib.contextmanager
def running(dispatcher):
    thread = threading.Thread(target=dispatcher.run)
    thread.start()
    try:
        yield
    finally:
        dispatcher.stop(0)
        thread.join()


@pytest.mark.one_rank
def test_arrays_and_files(dispatcher, task, tmp_path):
    records = [dispatcher.submit(job(tmp_path, i), None) for i in range(3)]
    arrays = [dispatcher.scan(task(i)) for i in range(3, 6)]
    with running(dispatcher):
        assert [array.result(20) for array in arrays] == [None] * 3
        for record in records:
            wait_until(lambda number=record.number: dispatcher.get(number)[0].state == "done")
    for i in range(6):
        path = tmp_path / (f"{i}.scan.npy" if i < 3 else f"y{i}")
        y = np.load(path) if i < 3 else np.fromfile(path, int)
        np.testing.assert_array_equal(y, np.arange(10 + i).cumsum())


@pytest.mark.one_rank
def test_arrays_whose_client_is_gone(dispatcher, task, tmp_path):
    """They are left out; the next one runs."""
    gone, stays = dispatcher.scan(task(1)), dispatcher.scan(task(2))
    assert gone.cancel()
    with running(dispatcher):
        assert stays.result(20) is None
    assert set(np.fromfile(tmp_path / "y1", int)) == {-7}
    assert np.fromfile(tmp_path / "y2", int)[-1] == np.arange(12).sum()


@pytest.mark.one_rank
def test_an_array_does_not_wait_for_a_file_job(dispatcher, task, tmp_path):
    """Rank 0 alone scans it then."""
    answers, submitted = [], dispatcher.submit(job(tmp_path), None)
    # It is called first when the job begins.
    dispatcher.listeners.append(lambda: answers or answers.append(dispatcher.scan(task(1))))
    with running(dispatcher):
        wait_until(lambda: dispatcher.get(submitted.number)[0].state == "done")
    assert answers[0] is None


@pytest.mark.one_rank
def test_the_end(dispatcher, task, tmp_path):
    """Arrays that wait are refused, files that wait stay in the store."""
    record, array = dispatcher.submit(job(tmp_path, 1), None), dispatcher.scan(task(2))
    dispatcher.stop(0)
    dispatcher.run()
    with pytest.raises(BusyError, match="the service ends"):
        array.result(1)
    with pytest.raises(BusyError, match="the service ends"):
        dispatcher.scan(task(3))
    with pytest.raises(BusyError, match="the service ends"):
        dispatcher.submit(job(tmp_path, 3), None)
    assert dispatcher.get(record.number)[0].state == "queued"
    assert dispatcher.stopping


@pytest.mark.one_rank
def test_a_disk_that_is_full_for_a_while(dispatcher, tmp_path, monkeypatch):
    """The job's end is noted when it can be; none is begun before that."""
    record, full = dispatcher.submit(job(tmp_path), None), threading.Event()
    right, tries = Store.end, []

    def end(store, *arguments, **facts):
        tries.append(arguments)
        if len(tries) == 1:
            raise StoreError("the jobs cannot be stored: the disk is full")
        right(store, *arguments, **facts)
        full.set()

    monkeypatch.setattr(Store, "end", end)
    with running(dispatcher):
        assert full.wait(20)
    assert dispatcher.get(record.number)[0].state == "done"
    assert len(tries) == 2
    assert (tmp_path / "0.scan.npy").exists()


@pytest.mark.one_rank
@pytest.mark.parametrize("error", [ZeroDivisionError("in the depths"), ValueError("axis 3")])
def test_a_job_that_meets_a_fault(error, dispatcher, tmp_path, monkeypatch, caplog):
    """It has failed; if nobody has thought of the exception, the log has its place."""

    def fail(*arguments, **options):
        raise error

    monkeypatch.setattr(dispatch, "perform", fail)
    number = dispatcher.submit(job(tmp_path), None).number
    with running(dispatcher):
        wait_until(lambda: dispatcher.get(number)[0].state == "failed")
    faults = [] if isinstance(error, ValueError) else [(number, "sum", error)]
    assert [(line.job, line.op, line.exc_info[1]) for line in caplog.records] == faults


@pytest.mark.one_rank
def test_old_jobs_are_forgotten(dispatcher, tmp_path):
    """Those that ended long ago, and no others."""
    store, now = dispatcher.store, time.time()
    dispatcher._keep = 60
    for i, ended in enumerate((now - 61, now - 59, None)):
        number = store.add(job(tmp_path, i)).number
        if ended is not None:
            store.start()
            store.end(number, "failed")
            store._db.execute("UPDATE jobs SET ended = ? WHERE number = ?", (ended, number))
    with running(dispatcher):
        wait_until(lambda: dispatcher.get(3)[0].state == "done")
    assert [record.number for record in store.newest()] == [3, 2]
    assert store.add(job(tmp_path)).number == 4  # numbers do not come again


@pytest.mark.one_rank
def test_jobs_that_were_running_when_a_service_crashed(tmp_path):
    """They run again, but not for ever; those that could change their input, or a file, do not."""
    np.save(tmp_path / "x.npy", np.arange(10))
    (tmp_path / "there.npy").write_text("of another program")

    def request(name, **options):
        return job_to_json(FileJob.parse((tmp_path / "x.npy",), tmp_path / name, **options))

    def job(name, crashes=1, **options):
        number = store.add(request(name, **options)).number
        for i in range(crashes):
            store.start()
            if i < crashes - 1:
                store.queue_again(number)
        return number

    with contextlib.closing(Store(tmp_path / "state")) as store:
        repeated = job("y.npy"), job("there.npy", force=True), job("z.npy", crashes=2)
        fails = (
            *(job("w.npy", crashes=3), job("x.scan.npy", state=tmp_path / "s.json")),
            *(job("x.npy", force=True), job("s.npy", segments=tmp_path / "s.npy", force=True)),
        )
        (tmp_path / "late.npy").write_text("of another program")
        fails += (job("late.npy"),)
        unreadable = store.add(request("v.npy") | {"dtype": "no type"}).number
    with serving(tmp_path, 2) as service, service.client() as client:
        failed = values(client.request("GET", "/metrics").content.decode())
        assert failed["distscan_jobs_ended_total", ("state", "failed")] >= len(fails)
        for number in fails:
            with pytest.raises(ServiceError, match="the output is whole if it is there"):
                client.job(number).wait(30)
        for number, attempts in zip(repeated, (2, 2, 3), strict=True):
            assert client.job(number).wait(30)["total"] == 45
            assert client.job(number).refresh()["attempts"] == attempts
        with pytest.raises(TypeError, match="'no type' is not understood"):
            client.job(unreadable).wait(30)  # another version may have stored it
        assert service.end() == 0
    assert (tmp_path / "late.npy").read_text() == "of another program"


# ---- wakeup --------------------------------------------------------------------------------------


@pytest.fixture
def wakeup(comm):
    wakeup = Wakeup(comm)
    yield wakeup
    wakeup.close()


def test_tasks_arrive_in_order(wakeup, comm, rng):
    """Of any size; a rank that receives late does not hold up the others."""
    tasks = [{"number": i, "text": "x" * int(n)} for i, n in enumerate(rng.integers(0, 3000, 50))]
    tasks.insert(20, {"text": "long " * 200_000})
    if comm.rank == 0:
        for task in tasks:
            wakeup.send(task)
        return
    for task in tasks:
        assert wakeup.receive() == task


def test_the_end_of_rank_0(wakeup, comm):
    if comm.rank == 0:
        wakeup.send({"last": True})
        wakeup.close()
    else:
        assert wakeup.receive() == {"last": True}
        assert wakeup.receive() is None
        assert wakeup.receive() is None


def test_a_rank_that_has_ended(wakeup, comm):
    if comm.rank == comm.size - 1:
        wakeup.close()
    comm.Barrier()
    if comm.rank == 0 < comm.size - 1:

        def send():
            for _ in range(100):
                wakeup.send({"text": "x" * 10000})

        with pytest.raises(RankError, match="a rank has ended"):
            send()


@pytest.mark.one_rank
def test_strangers_are_refused(tmp_path):
    """Those that do not know the secret, say too little, or nothing."""
    secret, server = b"s" * 32, socket.socket(socket.AF_UNIX)
    server.bind(str(tmp_path / "line"))
    server.listen()
    strangers = b"x" * 32 + b" 1\n", b"short", b"", b"x" * 1000
    greetings = *strangers, b"%s 2\n" % secret, b"%s 1\n" % secret

    def connect():
        for text in greetings:
            with socket.socket(socket.AF_UNIX) as line:
                line.connect(str(tmp_path / "line"))
                line.sendall(text)

    thread = threading.Thread(target=connect)
    thread.start()
    connections = dispatch._accept(server, 2, secret)
    thread.join()
    assert len(connections) == 2
    for line in (*connections, server):
        line.close()


@pytest.mark.one_rank
def test_ranks_that_never_connect(tmp_path, monkeypatch):
    monkeypatch.setattr(dispatch, "_CONNECT_SECONDS", 0.1)
    message = r"no connection from ranks \[1, 2\]"
    with socket.create_server(("127.0.0.1", 0)) as server, pytest.raises(RankError, match=message):
        dispatch._accept(server, 2, b"s" * 32)


@pytest.mark.one_rank
def test_over_tcp():
    """As between nodes."""
    secret = b"s" * 32
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = "127.0.0.1", server.getsockname()[1]
        with ThreadPoolExecutor(1) as pool:
            rank = pool.submit(dispatch._connect, address, 1, secret)
            (line,) = dispatch._accept(server, 1, secret)
        with rank.result() as lines:
            line.sendall(b"hello\n")
            assert lines.readline() == b"hello\n"
            line.close()
            assert lines.readline() == b""


# ---- arrays in buffers ---------------------------------------------------------------------------


MOST = (1 << 63) - 1


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def scanner(request, comm):
    return Scanner(comm, bind(comm, request.param, lambda message: None))


@pytest.fixture
def put(folder, comm):
    """Put an array into a buffer."""
    buffers = []

    def put(name, x):
        if comm.rank == 0:
            buffers.append(put_in_buffer(folder / name, x)[0])
        comm.Barrier()
        return Place(str(folder / name), 0, str(x.dtype), x.shape)

    yield put
    comm.Barrier()
    for buffer in buffers:
        buffer.close()


@pairs(
    shape_and_axis=[((1,), None), ((10007,), None), ((503, 7), None), ((503, 7), 0),
                    ((40, 11, 9), 1)],
    form=[{}, {"exclusive": True, "initial": 3}, {"reverse": True}],
    segments=[None, "heads", "keys"],
    allowed=lambda case: case["segments"] is None or case["shape_and_axis"][1] is None,
)  # fmt: skip
def test_by_all_ranks(shape_and_axis, form, segments, scanner, put, folder, comm, rng):
    """As ``distscan.scan`` by one rank."""
    shape, axis = shape_and_axis
    x, options = rng.integers(-1000, 1000, shape), {"axis": axis} | form
    flags = rng.random(x.size) < 0.01
    flags = {None: None, "heads": flags, "keys": flags.cumsum()}[segments]
    right = distscan.scan(x, comm=MPI.COMM_SELF, segments=flags, **options)
    places = put("x", x), put("y", np.full_like(right, -7))
    scanner.scan_by_all(Task(*places, None if flags is None else put("s", flags), options))
    comm.Barrier()
    np.testing.assert_array_equal(np.fromfile(folder / "y", int).reshape(right.shape), right)


def test_every_rank_raises(scanner, put):
    x = np.arange(10.0)
    with pytest.raises(TypeError, match="bitwise_or"):
        scanner.scan_by_all(Task(put("x", x), put("y", x), None, {"op": "bitwise_or"}))


@pytest.mark.parametrize(
    ("offset", "dtype", "shape"),
    [(8, "f8", (10,)), (0, "f8", (11,)), (0, "f8", (1 << 40, 1 << 40)), (81, "f8", (0,)),
     (0, "f8", (1,) * 65), (0, "?", (MOST,)), (80, "?", (MOST - 79,)), (MOST, "?", (MOST,)),
     (MOST, "i1", (1,)), (0, "f8", (1 << 60,)), (0, "f8", (1 << 60, 0)), (0, "?", (MOST, 2, 0)),
     (0, "?", (MOST + 1,)), (0, "?", (10**30, 0)),
     (0, "O", (1,)), (0, "i4,O", (1,)), (0, "V0", (3,)), (0, "S0", (0,)), (0, "i8", (-1,))],
)  # fmt: skip
def test_places_that_are_wrong(offset, dtype, shape, scanner, put):
    """Outside, also if the sum of offset and bytes is more than 63 bits; and of odd elements.

    Objects' addresses would be the client's; NumPy divides by the bytes of an element.
    """
    is_odd = np.dtype(dtype).hasobject or np.dtype(dtype).itemsize == 0 or min(shape) < 0
    fault = "can be sent" if is_odd else "not inside its buffer|too many bytes"
    place = put("x", np.arange(10.0))
    with pytest.raises(InputError, match=fault):
        scanner.maps.array(Place(place.path, offset, dtype, shape))


def test_a_file_that_could_become_shorter(scanner, folder, comm):
    """It is not mapped: a rank that reads past the end of a file ends by SIGBUS."""
    if comm.rank == 0:
        np.arange(10.0).tofile(folder / "x")
    comm.Barrier()
    with pytest.raises(InputError, match="is no buffer"):
        scanner.maps.array(Place(str(folder / "x"), 0, "f8", (10,)))


@pytest.mark.one_rank
def test_headers_are_read_by_one_thread_at_a_time(monkeypatch):
    """NumPy reads them by Python's parser, in which two threads may disturb each other."""
    read, inside, most = np.lib.format.read_array_header_1_0, [], []

    def watched(*arguments, **options):
        inside.append(1)
        most.append(len(inside))
        time.sleep(0.02)
        inside.pop()
        return read(*arguments, **options)

    monkeypatch.setattr(np.lib.format, "read_array_header_1_0", watched)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(arrays.parse, 4 * [memoryview(npy(np.ones(3)))]))
    assert most == [1, 1, 1, 1]
