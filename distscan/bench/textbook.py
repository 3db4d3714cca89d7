"""A scan by ``kernels/textbook/textbook.cuh``, made of a block scan and a chain of choice; CuPy."""

from typing import NamedTuple

from ..core.dtypes import Types
from ..core.form import Extents, Form
from ..core.operators import Operator
from ..cuda.definitions import register_types
from ..cuda.launches import Scan
from ..cuda.policy import LaunchConfig, per_vector, sm_count
from ..cuda.steps import SinglePass

_RESIDENT = 2048  # the most threads that a multiprocessor holds


class TextbookPolicy(NamedTuple):
    """The parts of the kernel, and its tiles: ``threads * rows`` vectors."""

    block_scan: str  # a struct of kernels/textbook/block_scans
    # A struct of kernels/textbook/chains. This one gives floats the same bits on every run.
    chain: str = "LooksAhead"
    threads: int = 256
    rows: int = 5  # vectors per thread; odd

    @property
    def blocks(self) -> int:
        """Blocks that a multiprocessor must have registers for."""
        return max(512 // self.threads, 1)


class TextbookScan(SinglePass):
    """An inclusive scan of ``n`` elements on one rank: ``single-pass`` by another kernel."""

    def __init__(self, op: Operator, types: Types, n: int, policy: TextbookPolicy) -> None:
        self._policy = policy
        super().__init__(op, types, Form(Extents(length=n)))

    def make_scan(self, op: Operator, types: Types) -> Scan:
        """Make the kernel. Its tiles publish a prefix beside the total, so they need two words."""
        policy, types = self._policy, register_types(op, types)
        tile = policy.threads * policy.rows * per_vector(types.x, types.out)
        config = LaunchConfig(
            "textbook",
            policy._asdict() | {"blocks": policy.blocks},
            tile,
            policy.threads,
            shared=tile * max(types.x.itemsize, types.out.itemsize),
            blocks=_RESIDENT // policy.threads * sm_count(),
            words=2,
        )
        return Scan(op, types, self.n, self.form, config)
