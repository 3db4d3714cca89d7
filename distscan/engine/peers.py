"""The set-up of GPUs that exchange totals themselves: whether they can, and how."""

import functools
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, cast
from uuid import uuid4

import cupy

from ..cuda import nccl
from ..cuda.peers import Inbox, gpu_uuid
from ..cuda.workspace import LastUse, keep_captured, refuse_capture_of_new
from ..mpi import communicators
from ..mpi.agree import Agreement, agreed
from ..mpi.communicators import Comm
from ..mpi.handshake import Handshake
from .shard_scan import PeerAccess, ShardScan

_WORDS = 2  # of the totals of a first inbox: of 4 bytes, as most plans have them


def prove(comm: Comm, strategy: str, *, some: bool, reverse: bool) -> PeerAccess:
    """Find out whether the GPUs of all ranks can exchange totals themselves; collective.

    Each rank must have elements, which ``some`` says of this one, and a GPU of its own. For "nccl"
    there must be NCCL. For "fused" and "auto" all ranks must be on one node, and each GPU must
    reach the memory of the others, which is tried. For "auto" the hosts get a handshake. The result
    is the same on every rank.
    """
    node = communicators.node(comm)
    with agreed(comm):
        refuse_capture_of_new()
        uuid, no_nccl = gpu_uuid(), nccl.missing() if strategy == "nccl" else ""
    ranks = comm.allgather((some, uuid, no_nccl))
    if not all(full for full, *_ in ranks):
        return PeerAccess("a rank has no elements", None)
    if len({uuid for _, uuid, _ in ranks}) < comm.size:
        return PeerAccess("ranks share a GPU", None)
    if strategy == "nccl":
        return PeerAccess(max(missing for *_, missing in ranks), None, "nccl")
    if node.nodes > 1:
        return PeerAccess("the ranks are on several nodes", None)
    try:
        release(acquire(comm, _WORDS, reverse=reverse))
        return PeerAccess("", Handshake(comm, reverse=reverse) if strategy == "auto" else None)
    except (OSError, NotImplementedError) as error:  # on every rank
        return PeerAccess(str(error), None)


class _Proof(NamedTuple):
    """The latest result of ``prove`` for a communicator, and the GPU that this rank had."""

    gpu: int
    peers: PeerAccess


def is_proven(comm: Comm, gpu: int) -> bool:
    """Return whether ``access`` knows the result of ``prove`` for this GPU; local."""
    proof: Any = comm.Get_attr(_key_of_proofs())
    return proof is not None and proof.gpu == gpu


def access(comm: Comm, gpu: int, *, known: bool) -> PeerAccess:
    """Return whether the GPUs of all ranks can exchange totals themselves; the same on every rank.

    Each rank has elements on its ``gpu``. With ``known``, ``is_proven`` holds on every rank. Else
    it is found out, which is collective, and kept with ``comm``: by each other's memory, else by
    NCCL.
    """
    if not known:
        with cupy.cuda.Device(gpu):
            peers = prove(comm, "fused", some=True, reverse=False)
            if peers.fault:
                by_nccl = prove(comm, "nccl", some=True, reverse=False)
                peers = peers if by_nccl.fault else by_nccl
        comm.Set_attr(_key_of_proofs(), _Proof(gpu, peers._replace(links=SharedLinks(gpu))))
    return cast(_Proof, comm.Get_attr(_key_of_proofs())).peers


@functools.cache
def _key_of_proofs() -> int:
    """Return the key of the attribute that holds the ``_Proof`` of a communicator."""
    return communicators.MPI.Comm.Create_keyval()


class SharedLinks:
    """What connects the GPUs of a communicator for calls that agree, which share it.

    It is NCCL's communicator, or inboxes, each of which serves all scans of its width. Such calls
    come in the same order on all ranks. NCCL orders those on several streams itself; for inboxes an
    event does.
    """

    def __init__(self, gpu: int) -> None:
        self._gpu = gpu
        self._known: dict[tuple[int, bool], Inbox] = {}
        self._nccl: nccl.Communicator | None = None
        weakref.finalize(self, _release_all, self._known).atexit = False

    def connect(self, scan: ShardScan, agreement: Agreement) -> None:
        """Connect the GPU of a scan with those of the other ranks; inside an open step.

        The first scan of its width and direction is that on every rank, and makes inboxes; the
        first one of all makes NCCL's communicator.
        """
        steps: Any = scan.steps
        if self._gpu != cupy.cuda.Device().id:
            raise RuntimeError("this rank has used another GPU with this communicator meanwhile")
        if scan.strategy == "nccl":
            if self._nccl is None:
                agreement.settle()
                self._nccl = _nccl_communicator(agreement.comm)
                agreement.begin()
            steps.share(self._nccl)
            return
        key = 1 << (steps.place_words - 1).bit_length(), scan.form.reverse
        if key not in self._known:
            agreement.settle()
            self._known[key] = acquire(agreement.comm, key[0], reverse=key[1])
            self._known[key].last = LastUse()
            agreement.begin()
        steps.share(self._known[key])


def _release_all(inboxes: dict[tuple[int, bool], Inbox]) -> None:
    for inbox in inboxes.values():
        inbox.last = None
        release(inbox)


def connect(scan: ShardScan, comm: Comm) -> None:
    """Connect the GPUs of a plan; collective. They can exchange totals, as ``prove`` has found."""
    steps: Any = scan.steps
    if scan.strategy == "nccl":
        steps.connect(_nccl_communicator(comm))
        return
    inbox = acquire(comm, steps.place_words, reverse=scan.form.reverse)
    finalizer = weakref.finalize(steps, release, inbox)
    finalizer.atexit = False
    steps.connect(inbox, finalizer)


def _nccl_communicator(comm: Comm) -> nccl.Communicator:
    """Return NCCL's communicator of the same ranks; collective. It is kept with ``comm``."""
    key, gpu = communicators.derived_key("nccl"), cupy.cuda.Device().id
    known: Any = comm.Get_attr(key)
    if known is None:
        known = nccl.Communicators()
        comm.Set_attr(key, known)
    latest: Any = known[-1] if known else None
    if not all(comm.allgather(latest is not None and latest.gpu == gpu)):
        with agreed(comm):
            name = nccl.new_name() if comm.rank == 0 else None
        name = comm.bcast(name)
        with agreed(comm):
            latest = nccl.Communicator(name, comm.rank, comm.size)
        known.append(latest)
    return cast(nccl.Communicator, latest)


# ---- inboxes that no plan uses ---------------------------------------------------------------

_free: list[Inbox] = []


def acquire(comm: Comm, words: int, *, reverse: bool) -> Inbox:
    """Return inboxes for totals of so many status words, the same on all ranks; collective.

    They have served a plan before, or are new. Raises NotImplementedError on every rank if GPUs do
    not reach each other's memory.
    """
    gpu = cupy.cuda.Device().id
    kind = words, comm.rank, comm.size, reverse, gpu
    offered: dict[str, Inbox] = {}
    try:
        with agreed(comm):
            while _free:  # another thread does not find them meanwhile
                inbox = _free.pop()
                offered[inbox.name] = inbox
            offer = {
                inbox.name: inbox.count()
                for inbox in offered.values()
                if (inbox.words, inbox.rank, inbox.ranks, inbox.reverse, inbox.gpu) == kind
            }
        offers = comm.allgather(offer)
        # After a call that not all ranks have made, the counts differ.
        same = (name for name in offers[0] if len({offer.get(name) for offer in offers}) == 1)
        found = offered.pop(next(same, ""), None)
    finally:
        _free.extend(offered.values())
    if found is None:
        return _open(comm, words, reverse=reverse)
    with agreed(comm):
        found.begin()
    return found


def _open(comm: Comm, words: int, *, reverse: bool) -> Inbox:
    """Make this rank's inbox, and open those of the others; collective."""
    name, handle, inbox = comm.bcast(uuid4().hex), b"", None
    try:
        with agreed(comm), _explained("CUDA IPC is refused"):
            inbox = Inbox(name, words, comm.rank, comm.size, reverse=reverse)
            handle = inbox.handle()
        handles = comm.allgather(handle)
        with agreed(comm), _explained("a GPU does not reach another one's memory"):
            assert inbox is not None
            inbox.open(handles)
    except BaseException:  # on every rank
        if inbox is not None:
            inbox.close_others()
        comm.Barrier()
        if inbox is not None:
            inbox.free()
        raise
    return inbox


@contextmanager
def _explained(what: str) -> Iterator[None]:
    """Say what a fault of CUDA means here."""
    try:
        yield
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise NotImplementedError(f"{what} ({error})") from error


def release(inbox: Inbox) -> None:
    """Let a later plan take the inboxes, or keep them for a CUDA graph."""
    if inbox.is_captured:
        keep_captured(inbox)
    else:
        _free.append(inbox)
