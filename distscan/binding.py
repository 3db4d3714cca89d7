"""The binding of ranks to a backend, and of each rank to a GPU or to its threads."""

import platform
from collections import Counter
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, get_args

from .core.errors import BackendError
from .cpu import library
from .cpu import memory as cpu
from .cpu.threads import parse_threads, usable
from .mpi import communicators, launcher
from .mpi.agree import Agreement, Terms, agreed
from .mpi.communicators import Comm, Node

Name = Literal["auto", "cpu", "cuda"]


class Binding(NamedTuple):
    """The backend of all ranks: its memory, and its description for a report."""

    memory: Any  # the backend's module ``memory``
    name: str
    device: str
    kernels: str  # what the roundings of floats depend on: the GPU, or compiled kernels, or NumPy
    nodes: int
    first_on_node: bool  # whether this rank is the first one of its node
    local_ranks: int  # on this rank's node
    sharing: int  # the most ranks that share a GPU


def bind(
    comm: Comm, wanted: Name, warn: Callable[[str], None], threads: int | None = None
) -> Binding:
    """Bind rank i of each node to GPU i modulo its number of GPUs; collective.

    If one rank has no GPU, "auto" falls back to the CPU on every rank, and ``device`` says why;
    "cuda" raises ``BackendError``. ``warn`` is called if ranks share a GPU. ``threads`` are those
    of this rank on a CPU, as in ``scan``.
    """
    node = communicators.node(comm)
    if wanted == "cpu":
        return _bind_to_cores(comm, node, threads)
    missing: BackendError | None = None
    name, address = "", ""
    try:
        memory = cuda()
        name, address = memory.bind(node.local_rank)
    except BackendError as error:
        missing = error
    if wanted == "cuda":
        with agreed(comm):
            if missing is not None:
                raise missing
    reasons = [reason for reason in comm.allgather(missing and str(missing)) if reason]
    if reasons:
        return _bind_to_cores(comm, node, threads, f": {reasons[0].split(';')[0]}")
    gpus = comm.allgather((platform.node(), address))
    most = max(Counter(gpus).values())
    if most > 1:
        warn(f"up to {most} ranks share a GPU; one rank per GPU is faster")
    return Binding(memory, "cuda", name, name, node.nodes, node.first, node.local_ranks, most)


def choose(call: Agreement, wanted: Name, function: str) -> str:
    """Return "cpu" or "cuda", the same for all ranks; each rank uses its current GPU; collective.

    ``call`` has a step that is open, and has one at the end. ``function`` is the name of the public
    function that begins with this step. If one rank has no GPU, "auto" falls back to the CPU on
    every rank; "cuda" raises ``BackendError``.
    """
    call.same = Terms({"the function": function, "the backend": wanted})
    if wanted not in get_args(Name):
        raise ValueError(f"unknown backend {wanted!r}; choose from {', '.join(get_args(Name))}")
    has_gpu = False
    try:
        has_gpu = wanted != "cpu" and cuda().count() > 0
    except BackendError:
        if wanted == "cuda":
            raise
    call.settle()
    if wanted == "auto":
        has_gpu = all(call.comm.allgather(has_gpu))
    call.begin()
    return "cuda" if has_gpu else "cpu"


def cuda() -> Any:
    """Import ``memory`` of the CUDA backend, and CuPy; a CPU job needs none."""
    try:
        from .cuda import memory  # noqa: PLC0415
    except Exception as error:  # a CuPy of another NumPy or CUDA fails in many ways
        absent = isinstance(error, ImportError) and error.name == "cupy"
        reason = "is not installed" if absent else f"cannot be imported ({error})"
        raise BackendError(
            f"CuPy {reason}; install it, in a checkout: "
            "pip install '.[cuda13]', or '.[cuda12]' for a driver of CUDA 12"
        ) from error
    return memory


def threads(wanted: int | None) -> int:
    """Return the most threads of this rank on a CPU; None is one for each core of its own."""
    return usable(launcher.local_ranks()) if wanted is None else parse_threads(wanted)


def _bind_to_cores(comm: Comm, node: Node, wanted: int | None, reason: str = "") -> Binding:
    """Return the binding to CPUs, such as "x86_64, AVX-512, 2 threads"; collective.

    Without compiled kernels it is "x86_64, NumPy", which has one thread.
    """
    with agreed(comm):
        number, found = threads(wanted), library.load()
    used = "NumPy" if found is None else f"{found.name}, {number} thread{'s' * (number > 1)}"
    device = f"{platform.machine()}, {used}{reason}"
    ranks = node.local_ranks
    kernels = "NumPy" if found is None else "compiled"
    return Binding(cpu, "cpu", device, kernels, node.nodes, node.first, ranks, ranks)
