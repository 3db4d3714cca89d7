"""What the host does around its kernels, without a GPU: types, shared memory, order of steps."""

from types import SimpleNamespace
from unittest.mock import MagicMock

import numpy as np
import pytest

from distscan.core import dtypes, operators
from distscan.core.errors import BackendError
from support.maps import NIBBLES
from support.steps import of_size

cuda = pytest.importorskip("distscan.cuda.steps", reason="no CuPy", exc_type=ImportError)
from distscan.cuda import calls, epochs, gpus, kernel, registers, strategy  # noqa: E402


@pytest.mark.parametrize(
    ("op", "x", "acc", "running"),
    [("max", "b", "b", "i"), ("min", "B", "H", "I"), ("sum", "?", "b", "i"), ("max", "?", "?", "I"),
     ("max", "i", "b", "b"), ("max", "d", "h", "h"), ("max", "b", "B", "B"), ("sum", "?", "?", "?"),
     (NIBBLES, "B", "B", "B"), ("sum", "f", "f", "f"), ("bitwise_and", "b", "b", "i"),
     ("bitwise_or", "?", "?", "I"), ("bitwise_xor", "i", "b", "b"), ("bitwise_xor", "?", "b", "i"),
     ("bitwise_or", "d", "h", "h"), ("logical_xor", "?", "?", "I"), ("logical_and", "b", "?", "I"),
     ("logical_or", "f", "?", "I"), ("max", "f", "?", "?")],
)  # fmt: skip
def test_narrow_integers_run_in_32_bits(op, x, acc, running):
    """Where the low bits come out the same: not if x is cut to the type, or it wraps to zero."""
    operator = operators.resolve(op)
    types = registers.register_types(operator, dtypes.resolve(operator, x, acc))
    assert types.acc.char == running


def test_gpus_that_are_too_old():
    gpus.check_device(SimpleNamespace(id=0, compute_capability="120"))
    with pytest.raises(BackendError, match=r"GPU 1 has compute capability 7.5; 8.0 \(A100\)"):
        gpus.check_device(SimpleNamespace(id=1, compute_capability="75"))


def test_a_function_never_gets_less_shared_memory(monkeypatch):
    """Kernels of one function may need different sizes of it, whichever is made first."""
    most, function = [], -1  # no function of any other test
    driver = SimpleNamespace(funcSetAttribute=lambda f, attribute, value: most.append((f, value)))
    monkeypatch.setattr(kernel, "driver", driver)
    for shared in (30000, 200000, 100000, 210000):
        kernel.allow(function, shared)
    assert most == [(function, shared) for shared in (30000, 200000, 200000, 210000)]


def fake(name, done, **more):
    """A kernel whose arguments and launches are noted."""
    return SimpleNamespace(
        name=name, nbytes=0, prepare=lambda *_: done.append(f"{name}: arguments"), **more
    )


@pytest.mark.parametrize("read", [False, True], ids=["unread", "read"])
def test_the_offset_is_sent_behind_the_total(read, monkeypatch):
    """The call before has ended by then, and with it the scan whose mail it was."""
    done = []
    total = SimpleNamespace(
        pointer=0, wait=lambda epoch, _: done.append(("wait", epoch)) or np.ones((), "f")
    )
    scan = fake(
        "scan",
        done,
        can_wait=True,
        behind=lambda _, epoch: done.append(("behind", epoch)),
        ahead=lambda epoch, _: done.append(("ahead", epoch)),
        mail=SimpleNamespace(send=lambda epoch, *_: done.append(("send", epoch)) or True),
    )
    work = MagicMock(scan=scan, total=total, reduce=fake("reduce", done), round=0)
    work.last.stream = None

    class Strategy(cuda.ReduceScan):
        def make(self):
            return work

    monkeypatch.setattr(calls, "cupy", MagicMock())
    monkeypatch.setattr(strategy, "cupy", MagicMock())
    monkeypatch.setattr(strategy, "is_capturing", lambda _: False)
    monkeypatch.setattr(calls, "runtime", SimpleNamespace(streamIsCapturing=lambda _: 0))
    monkeypatch.setattr(cuda, "launch", lambda kernel, _: done.append(f"{kernel.name}: launch"))
    monkeypatch.setattr(epochs, "calls", epochs.numbers(4))  # the steps take one
    types = dtypes.Types(*[np.dtype("f")] * 3)
    steps = Strategy(operators.BUILTIN["sum"], types, of_size(5))
    x = MagicMock()
    x.data.ptr, x.dtype.alignment = 64, 4
    reduced = ["reduce: arguments", "reduce: launch", "scan: arguments"]
    for epoch in (21, 25):
        pending = steps.begin(x, x, overlap=True)
        if read:
            assert pending.total() == 1
        steps.finish(pending, None)
        ahead = [("ahead", epoch), "scan: launch"]
        assert done == [*reduced, *ahead, ("wait", epoch), ("send", epoch)]
        done.clear()
    steps.begin(x, x, overlap=True)  # broken off: what comes next waits for its own total alone
    done.clear()
    steps.finish(steps.begin(x, x), None)
    assert done == [*reduced, ("wait", 33), ("behind", 33), "scan: launch"]
