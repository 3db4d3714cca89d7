"""The progress of all ranks reaches rank 0, and a fault of one rank ends the work of all."""

import time

import numpy as np
import pytest

from distscan.core.errors import RankError
from distscan.mpi import notices
from distscan.mpi.agree import agreed
from distscan.mpi.notices import Notices, watching
from support.together import everywhere

pytestmark = pytest.mark.timeout(60)
SOON = 10  # seconds, for a machine that has more ranks than cores


@pytest.fixture
def own(comm, rng):
    """Random numbers of this rank alone."""
    return np.random.default_rng([int(rng.integers(1 << 32)), comm.rank])


@pytest.fixture(autouse=True)
def nothing_is_left(comm):
    """No message waits for a later call."""
    yield
    comm.Barrier()
    if comm.size > 1:
        assert not any(
            notices.aside(comm).Iprobe(tag=tag) for tag in (notices._DONE, notices._STOP)
        )
    comm.Barrier()


def no_show(done):
    """Progress that nobody looks at."""


def work(note, seconds=SOON):
    """Go on until another rank has failed, which must be soon."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        note(1)
        time.sleep(0.0005)
    pytest.fail("a fault of another rank was not heard of")


@pytest.mark.parametrize("period", [0, 0.005, 1000])
def test_totals(period, comm, own, monkeypatch):
    """The last that is shown is the sum of all, in every one of many sweeps."""
    monkeypatch.setattr(notices, "_PERIOD", period)
    for _ in range(5):
        done, shown = own.integers(0, 1 << 40, own.integers(0, 30)).tolist(), []
        with agreed(comm), watching(comm, shown.append) as note:
            for each in done:
                note(each)
                time.sleep(0.001 * own.integers(0, 2))
        whole = sum(comm.allgather(sum(done)))
        if comm.rank == 0:
            assert shown[-1] == whole
            assert shown == sorted(shown)
        else:
            assert shown == []


def test_shown_meanwhile(comm, own, monkeypatch):
    """Rank 0 shows the progress of ranks that are ahead of it, and of those that are behind."""
    monkeypatch.setattr(notices, "_PERIOD", 0)
    shown, mine = [0], int(own.integers(1, 1000))
    rest = sum(comm.allgather(0 if comm.rank == 0 else mine))
    with agreed(comm), watching(comm, shown.append) as note:
        if comm.rank > 0:
            note(mine)
        else:
            end = time.monotonic() + SOON
            while shown[-1] < rest and time.monotonic() < end:
                note(0)
            assert shown[-1] == rest
    with agreed(comm), watching(comm, shown.append) as note:
        for _ in range(3 if comm.rank > 0 else 0):
            note(mine)
            time.sleep(0.01)
    assert comm.rank > 0 or shown[-1] == 3 * rest


@pytest.mark.parametrize("period", [0, 0.1])
@pytest.mark.parametrize("who", ["first", "last", "middle"])
@pytest.mark.parametrize("after", [0, 3], ids=["at-once", "later"])
def test_a_fault_stops_all(after, who, period, comm, monkeypatch):
    monkeypatch.setattr(notices, "_PERIOD", period)
    guilty = {"first": 0, "last": comm.size - 1, "middle": comm.size // 2}[who]

    def call():
        with agreed(comm), watching(comm, no_show) as note:
            for _ in range(after):
                note(1)
                time.sleep(0.01)
            if comm.rank == guilty:
                raise OSError("the disk is full")
            work(note)

    begin = time.monotonic()
    text = everywhere(comm, OSError, "the disk is full", call)
    assert time.monotonic() - begin < SOON
    if comm.size > 1:
        assert text == f"rank {guilty}: the disk is full"


def test_what_the_others_raise(comm):
    """They end by an exception that says why, and that the agreement leaves out."""
    kinds = []

    def call():
        with agreed(comm), watching(comm, no_show) as note:
            try:
                if comm.rank == comm.size - 1:
                    raise ZeroDivisionError("mine")
                work(note)
            except Exception as error:
                kinds.append(type(error))
                raise

    everywhere(comm, ZeroDivisionError, "mine", call)
    assert comm.allgather(kinds[0]) == [RankError] * (comm.size - 1) + [ZeroDivisionError]


@pytest.mark.parametrize("who", ["first", "last"])
def test_ranks_that_have_ended(who, comm):
    """The fault of a slow rank reaches those that wait for it at the end."""
    guilty = 0 if who == "first" else comm.size - 1

    def call():
        with agreed(comm), watching(comm, no_show) as note:
            note(1)
            if comm.rank == guilty:
                time.sleep(0.2)
                raise OSError("late")

    everywhere(comm, OSError, "late", call)


def test_all_fail_at_once(comm):
    def call():
        with agreed(comm), watching(comm, no_show) as note:
            note(1)
            raise ValueError("no chunk")

    everywhere(comm, ValueError, "no chunk", call)


@pytest.mark.parametrize("who", ["first", "last"])
def test_interrupted(who, comm):
    """Ctrl-C on one rank: it raises, and so do the others."""
    guilty = 0 if who == "first" else comm.size - 1
    kind = KeyboardInterrupt if comm.rank == guilty else RuntimeError

    def call():
        with agreed(comm), watching(comm, no_show) as note:
            if comm.rank == guilty:
                raise KeyboardInterrupt
            work(note)

    with pytest.raises(kind):
        call()


@pytest.mark.parametrize("kind", [BrokenPipeError, KeyboardInterrupt])
@pytest.mark.parametrize("when", ["meanwhile", "at-the-end"])
def test_progress_that_cannot_be_shown(when, kind, comm, monkeypatch):
    """Stderr may be closed; the ranks then end together, whatever they do."""
    monkeypatch.setattr(notices, "_PERIOD", 0)

    def show(done):
        raise kind("no reader")

    def call():
        with agreed(comm), watching(comm, show) as note:
            if when == "meanwhile":
                work(note)

    if kind is BrokenPipeError:
        everywhere(comm, kind, "no reader", call)
        return
    with pytest.raises(kind if comm.rank == 0 else RuntimeError):
        call()


def test_progress_that_cannot_be_shown_after_a_fault(comm):
    """The first fault is the one that all learn of."""

    def show(done):
        raise BrokenPipeError("no reader")

    def call():
        with agreed(comm), watching(comm, show):
            if comm.rank == comm.size - 1:
                raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full"):
        call()


def test_sweeps_after_faults(comm, rng, own, monkeypatch):
    """Nothing of a sweep that failed is counted in the next one."""
    monkeypatch.setattr(notices, "_PERIOD", 0)
    for _ in range(20):
        guilty, shown = int(rng.integers(-1, comm.size)), []
        done = own.integers(0, 100, own.integers(0, 9)).tolist()

        def call(guilty=guilty, shown=shown, done=done):
            with agreed(comm), watching(comm, shown.append) as note:
                for each in done:
                    note(each)
                if comm.rank == guilty:
                    raise OSError("no more")

        if guilty >= 0:
            everywhere(comm, OSError, "no more", call)
        else:
            call()
            whole = sum(comm.allgather(sum(done)))
            assert comm.rank > 0 or shown[-1] == whole


def test_messages_of_the_caller(comm):
    """They are another communicator's, whatever their tags."""
    sent = [comm.isend("mine", 0, tag) for tag in (1, 2)] if comm.rank > 0 else []
    with agreed(comm), watching(comm, no_show) as note:
        note(1)
    if comm.rank == 0:
        for rank in range(1, comm.size):
            assert [comm.recv(source=rank, tag=tag) for tag in (1, 2)] == ["mine", "mine"]
    for request in sent:
        request.wait()


def test_notices_that_nobody_received(comm):
    """A plan that is gone leaves some, whatever its number was; they are no progress."""
    if comm.size == 1:
        return
    numbers = range(4)
    for number in numbers:
        if comm.rank == comm.size - 1:
            Notices(comm, number, reverse=False).send(OSError("the disk is full"))
    comm.Barrier()
    shown = []
    with agreed(comm), watching(comm, shown.append) as note:
        note(comm.rank)
    assert comm.rank > 0 or shown[-1] == comm.size * (comm.size - 1) // 2
    for number in numbers:  # whoever comes next finds none
        Notices(comm, number, reverse=False).receive()
