"""The contenders: this project's strategies, a copy, and the peers, as their users write them.

``prepare`` does the work that a user does once. It returns one call for each pair of buffers. These
calls are timed. Peers that scan over several ranks are rehearsed first: ``rehearse`` does their
local steps, without the exchange. So a rank that fails alone leaves no other rank waiting.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any, Literal
from unittest import mock

import numpy as np

import distscan

from .. import binding
from ..build import Strategy
from ..cpu import library
from ..version import __version__
from . import by_hand, cub, tbb
from .case import Case, Task
from .copies import copies
from .timing import Call


@dataclass(frozen=True)
class Contender:
    """One line of the tables."""

    name: str
    prepare: Callable[[Task], list[Call]]
    version: Callable[[], str]  # raises ImportError if the contender cannot be used
    moved: Callable[[Case], int] | None = None  # bytes per element, if they are known
    ranks: Literal["one", "several", "any"] = "any"
    backends: tuple[str, ...] = ("cpu", "cuda")
    ops: tuple[str, ...] = ("sum",)
    scans: bool = True  # False for the copy
    rehearse: Callable[[Task], object] | None = None  # the local steps alone
    takes: Callable[[Case], bool] = lambda case: case.plain  # which forms

    def suits(self, backend: str, ranks: int, op: str) -> bool:
        """Return whether the contender scans with ``op`` on so many ranks of this backend."""
        return (
            backend in self.backends
            and op in self.ops
            and self.ranks in ("any", "one" if ranks == 1 else "several")
        )


ALL_OPS = ("sum", "prod", "max", "min")


# ---- this project --------------------------------------------------------------------------


def _plan(strategy: Strategy, task: Task, level: str = "") -> list[Call]:
    case, (x, out) = task.case, task.pairs[0]
    chosen = {"DISTSCAN_THREADS": str(case.threads or ""), "DISTSCAN_CPU": level}
    with mock.patch.dict(os.environ, {name: value for name, value in chosen.items() if value}):
        plan = distscan.Plan(
            task.comm,
            x.shape,
            x.dtype,
            op=case.op.name,
            out_dtype=out.dtype,
            strategy=strategy,
            backend=task.machine.backend,
            **case.options,
        )
    return [partial(plan, x, None if case.new else out, task.heads) for x, out in task.pairs]


def _scan(task: Task) -> list[Call]:
    scan = partial(distscan.scan, op=task.case.op.name, comm=task.comm)
    return [partial(scan, x, out=out) for x, out in task.pairs]


def _scan_add_moved(case: Case) -> int:
    """Return the bytes per element: the scan writes the type that accumulates, the add reads it.

    The type is that of GPUs.
    """
    acc = 4 if case.out == np.float16 else case.out.itemsize
    return case.x.itemsize + 2 * acc + case.out.itemsize


# ---- a copy --------------------------------------------------------------------------------


def _copy(task: Task) -> list[Call]:
    """Copy as many bytes as a perfect scan moves; on a CPU by as many threads as the scan has."""
    return copies(task.machine, task.copies, _threads(task.case))


def _threads(case: Case) -> int:
    return case.threads or binding.threads(None)


# ---- peers ---------------------------------------------------------------------------------

_ACCUMULATE = {"sum": "cumsum", "prod": "cumprod"}


def _array_library(task: Task) -> list[Call]:
    """Scan by ``numpy.cumsum`` or ``cupy.cumsum``, or by ``accumulate`` of NumPy's ufunc."""
    if task.case.idiom:
        scan = task.case.scan_in_numpy()
        return [partial(scan, x, out, task.heads) for x, out in task.pairs]
    name = task.case.op.name
    if name in _ACCUMULATE:
        call = getattr(task.machine.xp, _ACCUMULATE[name])
    else:
        combine: Any = task.case.op.numpy
        call = combine.accumulate
    return [partial(call, x, dtype=out.dtype, out=out) for x, out in task.pairs]


def _cupy_cumsum(accelerators: list[str], task: Task) -> list[Call]:
    """Scan by CuPy with ``accelerators``, which CUPY_ACCELERATORS sets for a whole process.

    CuPy's default is "cub". Without accelerators, CuPy's own kernels scan. cuTENSOR has no scan.
    """
    from cupy import _core  # noqa: PLC0415 - a CPU run need not have CuPy

    def call(plain: Call) -> None:
        before = _core.get_routine_accelerators()
        _core.set_routine_accelerators(accelerators)
        try:
            plain()
        finally:
            _core.set_routine_accelerators(before)

    return [partial(call, plain) for plain in _array_library(task)]


def _torch(task: Task) -> list[Call]:
    import torch  # noqa: PLC0415 - a peer need not be installed

    if task.machine.backend == "cpu":
        torch.set_num_threads(_threads(task.case))
    tensors = [(torch.from_dlpack(x), torch.from_dlpack(out)) for x, out in task.pairs]
    name, axis = task.case.op.name, task.case.options.get("axis", 0)
    if name in ("max", "min"):  # these return the places of the maxima, too
        call = torch.cummax if name == "max" else torch.cummin
        places = torch.empty_like(tensors[0][0], dtype=torch.int64)
        return [partial(call, x, axis, out=(out, places)) for x, out in tensors]
    call = torch.cumsum if name == "sum" else torch.cumprod
    return [partial(call, x, axis, dtype=out.dtype, out=out) for x, out in tensors]


def _heat(task: Task) -> list[Call]:
    import heat  # noqa: PLC0415 - as above
    import torch  # noqa: PLC0415 - as above

    tensors = [(torch.from_dlpack(x), torch.from_dlpack(out)) for x, out in task.pairs]
    call = heat.cumsum if task.case.op.name == "sum" else heat.cumprod
    calls: list[Call] = []
    for pair in tensors:
        x, out = (heat.array(tensor, is_split=0) for tensor in pair)
        if (x.larray.data_ptr(), out.larray.data_ptr()) != tuple(t.data_ptr() for t in pair):
            raise RuntimeError("heat.array copied a shard")
        calls.append(partial(call, x, 0, out=out))
    return calls


def version(module: str, attribute_of: str = "") -> Callable[[], str]:
    """Return a function that imports a library and returns its version.

    The function raises ImportError for any fault.
    """

    def found() -> str:
        try:
            import_module(module)
            return str(import_module(attribute_of or module).__version__)
        except Exception as error:
            if isinstance(error, ModuleNotFoundError) and module.startswith(error.name or "?"):
                raise ImportError("not installed") from error
            raise ImportError(f"cannot be imported: {error}") from error

    return found


# ---- the list ------------------------------------------------------------------------------


def _call_first(prepare: Callable[[Task], list[Call]]) -> Callable[[Task], object]:
    """Return a rehearsal: the first call of the contender that ``prepare`` makes for one rank."""
    return lambda task: prepare(task)[0]()


def _passes(reads: int, writes: int, rereads: int = 0) -> Callable[[Case], int]:
    """Return the bytes per element: the input is read, the result is written, and read again."""
    return lambda case: reads * case.x.itemsize + (writes + rereads) * case.out.itemsize


def _own(
    strategy: Strategy, ranks: Literal["one", "any"], moved: Callable[[Case], int]
) -> Contender:
    prepare = partial(_plan, strategy)
    return Contender(
        strategy, prepare, lambda: __version__, moved, ranks, ops=ALL_OPS, takes=lambda case: True
    )


def _cupy(name: str, accelerators: list[str]) -> Contender:
    prepare = partial(_cupy_cumsum, accelerators)
    return Contender(name, prepare, version("cupy"), None, "one", ("cuda",), ("sum", "prod"))


CONTENDERS = (
    Contender(
        "copy", _copy, lambda: __version__, lambda case: case.bytes // case.n, ops=ALL_OPS,
        scans=False, takes=lambda case: True,
    ),
    _own("single-pass", "one", _passes(1, 1)),
    _own("reduce-scan", "any", _passes(2, 1)),
    _own("scan-add", "any", _scan_add_moved),
    Contender("distscan.scan", _scan, lambda: __version__, ops=ALL_OPS),
    Contender(
        "numpy", _array_library, version("numpy"), _passes(1, 1), "one", ("cpu",), ALL_OPS,
        takes=lambda case: True,
    ),
    _cupy("cupy-none", []),
    _cupy("cupy-cub", ["cub"]),
    Contender("cub", cub.default, cub.version, _passes(1, 1), "one", ("cuda",), ALL_OPS),
    Contender(
        "cub-run-to-run", cub.run_to_run, cub.run_to_run_version, _passes(1, 1), "one", ("cuda",)
    ),
    Contender(
        "torch", _torch, version("torch"), _passes(1, 1), "one", ops=ALL_OPS,
        takes=lambda case: case.plain or "axis" in case.options,
    ),
    Contender("tbb", tbb.scan, tbb.version, None, "one", ("cpu",), takes=tbb.takes),
    Contender(
        "by-hand", by_hand.first_form, lambda: __version__, None, "several",
        rehearse=_call_first(_array_library),
    ),
    Contender(
        "by-hand-expert", by_hand.expert, by_hand.expert_version, _passes(2, 1), "several",
        ("cuda",), rehearse=by_hand.rehearse_expert,
    ),
    Contender(
        "heat", _heat, version("heat"), _passes(1, 2, 1), ops=("sum", "prod"),
        rehearse=_call_first(_torch),
    ),
)  # fmt: skip


def lesser_levels() -> list[Contender]:
    """Return distscan on one rank at each level of instructions below the one that is used."""
    used, levels = library.load(), library.machine_levels()
    below = list(levels)[list(levels).index(used.level) + 1 :] if used else []

    def version(level: str) -> str:
        try:
            with mock.patch.dict(os.environ, {"DISTSCAN_CPU": level}):
                library.load()
        except ValueError as error:
            raise ImportError(str(error)) from error
        return __version__

    return [
        Contender(
            levels[level].name, partial(_plan, "single-pass", level=level),
            partial(version, level), _passes(1, 1), "one", ("cpu",), ALL_OPS,
            takes=lambda case: True,
        )
        for level in below
    ]  # fmt: skip
