"""The calls of a plan: begin, exchange, finish; faults reach every rank, at once or later."""

from collections.abc import Callable
from typing import Any

from .build import CompiledScan
from .core.errors import RankError
from .mpi.agree import Agreement, Votes, agreed
from .mpi.communicators import Comm
from .mpi.notices import Notices
from .scan import Call

Check = Callable[[Any, Any, Any], tuple[Any, Any, Any, Any]]  # see ``Expected.check``


class Calls:
    """The calls of a plan whose scan is decided."""

    def __init__(
        self,
        scan: CompiledScan,
        comm: Comm,
        check: Check,
        *,
        has_elements: bool,
        agree: bool,
        number: int,
    ) -> None:
        """Prepare the exchange; collective. The plan has the same ``number`` on every rank."""
        self._scan, self._comm, self._check, self._agree = scan, comm, check, agree
        self._exchanges = scan.across and has_elements
        if self._exchanges:
            with agreed(comm):
                scan.exscan.reserve()
            scan.exscan.prepare(comm)
        self._notices = None
        if self._exchanges and not agree:  # then faults are not agreed on, but sent later
            self._notices = Notices(comm, number, reverse=scan.form.reverse)
        self._are_local = not self._exchanges and not (agree and comm.size > 1)

    def run(self, x: Any, out: Any, segments: Any) -> Any:
        """Scan ``x`` into ``out``, and return the result; collective."""
        if self._are_local:
            shard, target, flags, out = self._check(x, out, segments)
            steps = self._scan.steps
            steps.finish(steps.begin(shard, target, flags, overlap=True), self._scan.form.first)
            return out
        return self.wait(self._begin(x, out, segments, overlap=True))

    def start(self, x: Any, out: Any, segments: Any) -> tuple[Call, Any]:
        """Begin a call, and its exchange; do not wait for other ranks."""
        call, out = self._begin(x, out, segments, overlap=False)
        if self._exchanges:
            call.start()
        return call, out

    def _begin(self, x: Any, out: Any, segments: Any, *, overlap: bool) -> tuple[Call, Any]:
        """Check the arrays, and begin to find the total; return the call and its result."""
        call = Call(self._scan, self._comm)
        try:
            shard, target, flags, out = self._check(x, out, segments)
        except BaseException as fault:
            call.fault = fault
        else:
            call.begin(shard, target, flags, overlap=overlap)
        return call, out

    def wait(self, started: tuple[Call, Any]) -> Any:
        """Exchange and scan; return the result. With ``agree`` every rank raises, or none does."""
        call, out = started
        if self._agree:
            with Agreement(Votes.of(self._comm)):
                self._exchange_and_finish(call)
        elif self._notices is None:
            self._exchange_and_finish(call)
        else:
            heard = self._notices.receive()
            self._exchange_and_finish(call)
            if heard:
                self._notices.tell()
        return out

    def _exchange_and_finish(self, call: Call) -> None:
        if self._exchanges:
            call.exchange()
        fault, notices = call.fault, self._notices
        if fault is not None and notices is not None and not isinstance(fault, RankError):
            notices.send(fault)
        call.finish()

    def close(self, call: Agreement) -> None:
        """Free the memory; collective. Raises RankError for faults that no call has raised."""
        self._scan.steps.close()
        call.settle()
        if self._notices is not None:
            self._notices.close()
