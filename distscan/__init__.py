"""The prefix scan of data that is spread over many GPUs and MPI ranks.

>>> import distscan
>>> distscan.scan([3, 1, 4])  # each rank passes its own shard
array([3, 4, 8])
"""

from .aliases import (
    cummax,
    cummin,
    cumprod,
    cumsum,
    logcumsumexp,
    nancumprod,
    nancumsum,
)
from .core.errors import (
    BackendError,
    CheckError,
    DisagreementError,
    DistscanError,
    InputError,
    KernelError,
    LaunchError,
    OutputError,
    RankError,
)
from .core.operators import Operator
from .core.predicates import Predicate
from .cumulative import cumulative_prod, cumulative_sum
from .cuts import partition
from .plan import Plan
from .recipes import offsets, segment_flags
from .recurrence import linear_recurrence
from .scan import scan
from .selection import compact, select

__all__ = [
    "BackendError",
    "CheckError",
    "DisagreementError",
    "DistscanError",
    "InputError",
    "KernelError",
    "LaunchError",
    "Operator",
    "OutputError",
    "Plan",
    "Predicate",
    "RankError",
    "compact",
    "cummax",
    "cummin",
    "cumprod",
    "cumsum",
    "cumulative_prod",
    "cumulative_sum",
    "linear_recurrence",
    "logcumsumexp",
    "nancumprod",
    "nancumsum",
    "offsets",
    "partition",
    "scan",
    "segment_flags",
    "select",
]
__version__ = "0.1.0"  # the only place: pyproject.toml reads it here
