"""Cases that Hypothesis draws on rank 0, and all ranks run."""

from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from mpi4py import MPI

from support.seed import SEED


def led(
    comm: MPI.Intracomm, cases: st.SearchStrategy[Any], check: Callable[[Any], None], examples: int
) -> None:
    """Check each case on all ranks. So they are in step, also while a case is made smaller."""

    def run(case: Any) -> None:
        own: Exception | None = None
        try:
            check(case)
        except Exception as error:
            own = error
        failed = [rank for rank, wrong in enumerate(comm.allgather(own is not None)) if wrong]
        if failed:
            raise AssertionError(f"ranks {failed} fail for {case}") from own

    @seed(SEED)
    @settings(
        max_examples=examples,
        database=None,
        deadline=None,
        report_multiple_bugs=False,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(cases)
    def lead(case: Any) -> None:
        comm.bcast((case,))
        run(case)

    if comm.rank == 0:
        try:
            lead()
        finally:
            comm.bcast(None)
        return
    fault: Exception | None = None
    while (sent := comm.bcast(None)) is not None:
        fault = None
        try:
            run(*sent)
        except AssertionError as error:
            fault = error
    if fault is not None:
        raise fault
