"""The prefix scan of data that is spread over many GPUs and MPI ranks.

>>> import distscan
>>> distscan.scan([3, 1, 4])  # each rank passes its own shard
array([3, 4, 8])
"""

from .errors import (
    BackendError,
    CheckError,
    DisagreementError,
    DistscanError,
    InputError,
    KernelError,
    LaunchError,
    OutputError,
)
from .names import cummax, cummin, cumprod, cumsum
from .operators import Operator
from .plan import Plan
from .scan import scan

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
    "cummax",
    "cummin",
    "cumprod",
    "cumsum",
    "scan",
]
__version__ = "0.1.0"
