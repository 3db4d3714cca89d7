"""Signals that raise wait until a collective call has ended, and no rank is left behind."""

import os
import signal
import threading

import numpy as np
import pytest

import distscan
from distscan.mpi import signals


@pytest.fixture
def handled():
    """SIGUSR1 raises, from a handler that is put in place behind distscan's."""

    def raises(number, frame):
        raise TimeoutError("a signal")

    before = signal.signal(signal.SIGUSR1, raises)
    yield signal.SIGUSR1
    signal.signal(signal.SIGUSR1, before)


def test_a_signal_inside_waits_for_the_end(handled):
    done = []

    @signals.uninterruptible
    def inner():
        os.kill(os.getpid(), handled)
        sum(range(1000))
        done.append("inner")

    @signals.uninterruptible
    def outer():
        signals.defer()
        inner()
        done.append("outer")

    with pytest.raises(TimeoutError):
        outer()
    assert done == ["inner", "outer"]
    with pytest.raises(TimeoutError):  # outside, at once
        os.kill(os.getpid(), handled)
    signals.uninterruptible(lambda: None)()  # nothing waits any more


def test_all_signals_inside_a_call_are_handled_at_its_end(handled):
    """One of each kind, even if the handler of the first raises; none is left for a later call."""
    seen = []
    before = signal.signal(signal.SIGUSR2, lambda number, frame: seen.append(number))
    try:

        @signals.uninterruptible
        def call():
            signals.defer()
            for number in (handled, handled, signal.SIGUSR2, signal.SIGUSR2):
                os.kill(os.getpid(), number)
            assert seen == []

        with pytest.raises(TimeoutError):
            call()
        assert seen == [signal.SIGUSR2]
        signals.uninterruptible(lambda: None)()
        assert seen == [signal.SIGUSR2]
    finally:
        signal.signal(signal.SIGUSR2, before)


def test_a_signal_raises_in_a_step_that_may_be_interrupted(handled):
    """One that came before raises when such a step begins."""
    done = []

    @signals.interruptible
    def step(number):
        done.append(f"step {number}")
        if number == 2:
            os.kill(os.getpid(), handled)
        inner(number)
        done.append("not reached")

    @signals.uninterruptible
    def inner(number):
        if number == 3:
            os.kill(os.getpid(), handled)
        done.append("inner")

    @signals.uninterruptible
    def outer(number):
        signals.defer()
        if number == 1:
            os.kill(os.getpid(), handled)
        done.append("outer")
        try:
            step(number)
        finally:
            done.append("end")

    for number, want in (
        (1, ["outer", "end"]),
        (2, ["outer", "step 2", "end"]),
        (3, ["outer", "step 3", "inner", "end"]),
    ):
        done.clear()
        with pytest.raises(TimeoutError):
            outer(number)
        assert done == want
    signals.uninterruptible(lambda: None)()  # nothing waits any more


def test_another_threads_call_does_not_hold_up_a_signal(handled):
    inside, go_on = threading.Event(), threading.Event()

    @signals.uninterruptible
    def waits():
        inside.set()
        assert go_on.wait(60)

    signals.defer()
    thread = threading.Thread(target=waits)
    thread.start()
    assert inside.wait(60)
    with pytest.raises(TimeoutError):
        os.kill(os.getpid(), handled)
    go_on.set()
    thread.join()


def test_a_new_handler_is_found(handled):
    signals.defer()
    seen = []
    before = signal.signal(signal.SIGUSR1, lambda *_: seen.append("new"))

    @signals.uninterruptible
    def call():
        signals.defer()
        os.kill(os.getpid(), handled)
        sum(range(1000))
        return list(seen)

    assert call() == []
    assert seen == ["new"]
    signal.signal(signal.SIGUSR1, before)


def test_all_signals_that_wait_are_delivered(handled):
    """Each once, in the order in which they came."""
    seen, other = [], signal.SIGUSR2
    before = {each: signal.signal(each, lambda number, _: seen.append(number))
              for each in (handled, other)}  # fmt: skip

    @signals.uninterruptible
    def call():
        signals.defer()
        for each in (other, handled):
            os.kill(os.getpid(), each)
            sum(range(1000))
        return list(seen)

    try:
        assert call() == []
        assert seen == [other, handled]
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def test_another_thread_leaves_new_handlers_alone(handled):
    """Python sets handlers in the main thread; there the next call finds them."""
    faults = []

    def defer():
        try:
            signals.defer()
        except ValueError as error:
            faults.append(error)

    thread = threading.Thread(target=defer)
    thread.start()
    thread.join()
    assert not faults

    @signals.uninterruptible
    def call():
        signals.defer()
        os.kill(os.getpid(), handled)
        sum(range(1000))
        faults.append("the end")

    with pytest.raises(TimeoutError):
        call()
    assert faults == ["the end"]


@pytest.mark.timeout(300)
def test_interrupted_ranks_stay_in_step(comm, rng):
    """At any moment of any call; each rank compares notes with the others behind it."""
    if comm.size == 1:
        pytest.skip("one rank cannot be out of step")
    own = np.random.default_rng(comm.rank)

    def interrupt(number, frame):
        while frame is not None:  # nothing else of the test is interrupted
            if frame.f_code.co_filename.startswith(os.path.dirname(distscan.__file__)):
                raise KeyboardInterrupt
            frame = frame.f_back

    before = signal.signal(signal.SIGINT, interrupt)
    distscan.scan(np.zeros(3))
    interrupted = 0
    try:
        for turn in range(300):
            timer = None
            if turn % 10 == 0 and comm.rank == turn // 10 % comm.size:
                timer = threading.Timer(own.random() * 2e-3, os.kill, (os.getpid(), signal.SIGINT))
                timer.start()
            said, y = "finished", None
            try:
                y = distscan.scan(np.full(3, comm.rank + turn), ("sum", "max")[turn % 2])
            except KeyboardInterrupt:
                said = "interrupted"
                interrupted += 1
            if y is not None and turn % 2 == 0:
                assert y[0] == sum(3 * (r + turn) for r in range(comm.rank)) + comm.rank + turn
            everyone = comm.allgather((turn, said))
            assert {number for number, _ in everyone} == {turn}
            if timer is not None:
                timer.join()
    finally:
        signal.signal(signal.SIGINT, before)
