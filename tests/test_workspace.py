"""The order of a workspace's uses on streams, and its release, on a GPU that is not there."""

import gc
from types import SimpleNamespace

import pytest

pytest.importorskip("cupy", reason="no CuPy")
from distscan.cuda import workspace

PER_THREAD = 2


class Owned:
    """A stream of CuPy's own; its work is a list of what has been queued, done from the front."""

    def __init__(self, ptr):
        self.ptr, self.capturing = ptr, False


class Foreign(Owned):
    """A stream that somebody else may end."""


class Gpu:
    """Streams and events as CUDA has them, with what each has to come behind."""

    CUDARuntimeError = RuntimeError

    def __init__(self):
        self.queues = {}  # the names of all work of each stream, its own and waited for
        self.recorded = {}  # by event
        self.capturing, self.gone = set(), set()
        self.done = set()
        self.records, self.thread = 0, 0

    def queued(self, ptr):
        assert ptr not in self.gone
        return self.queues.setdefault((ptr, self.thread if ptr == PER_THREAD else 0), set())

    def eventRecord(self, event, ptr):
        self.records += 1
        self.recorded[event] = set(self.queued(ptr))

    def streamWaitEvent(self, ptr, event):
        self.queued(ptr).update(self.recorded[event])

    def streamIsCapturing(self, ptr):
        return ptr in self.capturing


@pytest.fixture
def gpu(monkeypatch):
    gpu = Gpu()
    gpu.current = Owned(0)
    events = iter(range(1000))

    class Event:
        def __init__(self, **_):
            self.ptr = next(events)

        @property
        def done(self):
            return gpu.recorded[self.ptr] <= gpu.done

    class Device:
        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

    cuda = SimpleNamespace(
        Event=Event, Device=Device, Stream=Owned, get_current_stream=lambda: gpu.current
    )
    monkeypatch.setattr(workspace, "cupy", SimpleNamespace(cuda=cuda))
    monkeypatch.setattr(workspace, "runtime", gpu)
    monkeypatch.setattr(workspace, "releases", workspace.Releases())
    return gpu


def enter(work, stream):
    if stream is not work.last.stream:
        work.last.order(stream)


@pytest.fixture
def use(gpu):
    def use(work, stream, name):
        enter(work, stream)
        before = set(gpu.queued(stream.ptr))
        gpu.queued(stream.ptr).add(name)
        if work.last.at_once:
            work.last.record()
        return before

    return use


def test_one_stream_needs_no_event(gpu, use):
    work = workspace.Workspace()
    for i in range(5):
        use(work, gpu.current, i)
    assert gpu.records == 0


def test_each_use_is_behind_the_last(gpu, use):
    """On streams of all kinds; and not behind what others have queued since, but once."""
    work = workspace.Workspace()
    streams = [gpu.current, Owned(5), Foreign(7), Owned(PER_THREAD)]
    last = None
    for i in range(40):
        stream = streams[(i * i + i // 5) % 4]
        before = use(work, stream, i)
        assert last is None or last in before
        gpu.queued(stream.ptr).add(f"behind {i}")
        last = i
    strange = use(work, Owned(9), "new")
    assert last in strange
    assert f"behind {last}" not in strange


def test_two_threads_streams_of_one_pointer(gpu, use):
    gpu.current = Owned(PER_THREAD)
    gpu.queued(PER_THREAD).add("zeroed")
    work = workspace.Workspace()
    for thread in (1, 2, 1):
        before, gpu.thread = gpu.thread, thread
        assert {"zeroed", before} - {0} <= use(work, gpu.current, thread)


def test_a_stream_of_others_may_be_gone(gpu, use):
    gpu.current = stream = Foreign(7)
    work = workspace.Workspace()
    use(work, stream, 1)
    gpu.gone, gpu.current = {7}, Owned(0)
    assert 1 in use(work, gpu.current, 2)
    use(work, stream := Foreign(8), 3)
    gpu.gone.add(8)
    del work
    gc.collect()
    gpu.done = {1, 2, 3}
    workspace.releases.sweep()
    assert len(workspace.releases) == 0


@pytest.mark.parametrize("kind", [Owned, Foreign])
@pytest.mark.parametrize("broken", [False, True])
def test_memory_is_kept_until_the_last_use_is_over(kind, broken, gpu, use):
    """Also where the last one was broken off between its launches."""
    gpu.current = stream = kind(5)
    part = SimpleNamespace(nbytes=8)
    work = workspace.Workspace(part=part)
    use(work, stream, 1)
    if broken and kind is Owned:
        enter(work, stream)
        gpu.queued(stream.ptr).add(2)
    del work
    gc.collect()
    workspace.releases.sweep()
    assert len(workspace.releases) == 1
    gpu.done = {1}
    workspace.releases.sweep()
    assert len(workspace.releases) == (broken and kind is Owned)
    gpu.done = {1, 2}
    workspace.releases.sweep()
    assert len(workspace.releases) == 0


def test_a_stream_that_is_captured_by_now(gpu, use):
    """It can be asked for nothing: another stream is refused, and memory is kept until the end."""
    work = workspace.Workspace()
    stream = gpu.current = Owned(5)
    use(work, stream, 1)
    use(work, stream, 2)
    other = workspace.Workspace()
    use(other, stream, 3)
    gpu.capturing.add(5)
    gpu.current = Owned(0)
    with pytest.raises(RuntimeError, match="is being captured"):
        enter(other, gpu.current)
    del other
    gc.collect()
    gpu.done = {1, 2, 3}
    workspace.releases.sweep()
    assert len(workspace.releases) == 1
    gpu.capturing.clear()
    workspace.releases.sweep()
    assert len(workspace.releases) == 0


def test_temporary_arrays_are_kept_apart(gpu, use):
    """Until what was queued then is over, however long the workspace is used."""
    work, stream = workspace.Workspace(), gpu.current
    use(work, stream, 1)
    work.keep(object())
    use(work, stream, 2)
    assert len(workspace.releases) == 1
    gpu.done = {1}
    workspace.releases.sweep()
    assert len(workspace.releases) == 0
    del work
    gc.collect()
    workspace.releases.sweep()
    assert len(workspace.releases) == 1
