"""How short the way of a call through the GPU's steps is, on a GPU that is not there."""

import ctypes
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import numpy as np
import pytest

import distscan
from distscan.core import dtypes, operators
from distscan.core.extents import Extents
from distscan.core.form import Form
from support import late_gpu
from support.steps import of_size

cuda = pytest.importorskip("distscan.cuda.steps", reason="no CuPy", exc_type=ImportError)
from distscan.cuda import (  # noqa: E402
    calls,
    columns,
    configs,
    launches,
    row,
    strategy,
    workspace,
)
from distscan.cuda.kernel import Kernel  # noqa: E402

PACKAGE = Path(distscan.__file__).parent
N, INNER = 1 << 22, 1 << 10
SEGMENTS = {"core/segments.py"}
KEYS = Form(segmented=True, keys=np.dtype(np.uint32))
# Words behind the first, of the total of float32: a flag, and two keys.
FURTHER_WORDS = {"FlaggedPointer": 1, "KeyedBy<unsigned int>::Pointer": 3}
CASES = {
    "single-pass": (cuda.SinglePass, Form(), {"launches"}),
    "short": (cuda.SinglePass, Form(), {"launches"}),
    "segments": (cuda.SinglePass, Form(segmented=True), {"launches"}),
    "rows": (cuda.SinglePass, Form(Extents(outer=2)), {"launches"}),
    "columns": (cuda.SinglePass, Form(Extents(inner=INNER)), {"columns"}),
    "thread-per-column": (cuda.SinglePass, Form(Extents(outer=1 << 10, inner=INNER)), {"columns"}),
    "scan-add": (cuda.ScanAdd, Form(), {"launches"}),
    "reduce-scan": (cuda.ReduceScan, Form(), {"launches"}),
    "reduce-scan-segments": (cuda.ReduceScan, Form(segmented=True), {"launches"}),
    "keys": (cuda.SinglePass, KEYS, {"launches"}),
    "reduce-scan-keys": (cuda.ReduceScan, KEYS, {"launches"}),
    "reduce-scan-columns": (cuda.ReduceScan, Form(Extents(inner=INNER)), {"columns", "row"}),
}


class Stream:
    ptr = 0


def launch(kernel, stream):
    """Do as the kernel does: beside each word of the total the epoch, and the offset is taken."""
    given = kernel.arguments
    if kernel.entry == "scan" and given.mail.from_host:
        ctypes.c_uint64.from_address(given.mail.answer).value = given.work.epoch << 32 | 1
    if kernel.entry.startswith("reduce"):
        total, epoch = given.total.words, given.epoch
    elif kernel.entry == "scan" and given.work.total.words:
        total, epoch = given.work.total.words, given.work.epoch
    else:
        return
    for word in range(1 + FURTHER_WORDS.get(kernel.definitions.get("DISTSCAN_SOURCE"), 0)):
        ctypes.c_uint32.from_address(total + 8 * word + 4).value = epoch


@pytest.fixture(autouse=True)
def absent(monkeypatch):
    gpu, _ = late_gpu.make()
    stream, late = Stream(), gpu.empty

    def empty(shape, dtype):
        return late(int(np.prod(shape)) * np.dtype(dtype).itemsize, np.uint8)

    gpu.empty = gpu.zeros = empty
    gpu.cuda.Stream, gpu.cuda.get_current_stream = Stream, lambda: stream
    gpu.cuda.Device = lambda: SimpleNamespace(
        compute_capability="90", attributes={"MultiProcessorCount": 132}
    )
    runtime = SimpleNamespace(streamIsCapturing=lambda _: 0, CUDARuntimeError=RuntimeError)
    for module in (calls, columns, configs, launches, row, strategy, workspace, cuda):
        monkeypatch.setattr(module, "cupy", gpu)
    for module in (workspace, calls):
        monkeypatch.setattr(module, "runtime", runtime)
    monkeypatch.setattr(workspace, "releases", MagicMock())
    monkeypatch.setattr(strategy, "releases", MagicMock())
    monkeypatch.setattr(Kernel, "load", lambda self: 7)
    monkeypatch.setattr(cuda, "launch", launch)


def on_gpu(code):
    flags = SimpleNamespace(c_contiguous=True)
    dtype = np.dtype(code)
    return SimpleNamespace(
        data=SimpleNamespace(ptr=1 << 30), dtype=dtype, itemsize=dtype.itemsize, flags=flags
    )


def entered(work):
    """The files of distscan whose code runs in ``work``."""
    found = set()

    def note(frame, event, _):
        if event == "call":
            found.add(Path(frame.f_code.co_filename))

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return {path.relative_to(PACKAGE).as_posix() for path in found if PACKAGE in path.parents}


@pytest.mark.parametrize("case", CASES)
def test_a_call_enters_few_files(case):
    """What is made once is in others."""
    make, form, files = CASES[case]
    n = 1 << 12 if case == "short" else N // (form.extents.outer * form.extents.inner)
    types = dtypes.Types(*[np.dtype("f")] * 3)
    steps = make(operators.BUILTIN["sum"], types, of_size(n, form))
    x, out, marks = on_gpu("f"), on_gpu("f"), on_gpu(form.keys or "?") if form.segmented else None
    offset = np.zeros((INNER,) if "row" in files else (), "f")

    def call():
        steps.empty()
        pending = steps.begin(x, out, marks, overlap=True)
        if not pending.empty:
            pending.total()
        steps.finish(pending, None if pending.empty else offset)

    call()
    wanted = {"cuda/steps.py", "cuda/calls.py", *(f"cuda/{name}.py" for name in files)}
    assert entered(call) == wanted | (SEGMENTS if form.segmented else set())
