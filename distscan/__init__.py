"""The prefix scan of data that is spread over many GPUs and MPI ranks.

>>> import distscan
>>> distscan.scan([3, 1, 4])  # each rank passes its own shard
array([3, 4, 8])
"""

import signal
import sys
from typing import TYPE_CHECKING, Any

if sys.argv[:1] == ["-m"] and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    # ``python -m distscan``: Ctrl-C during the imports must end the process, not an import.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from .aliases import (
    cummax,
    cummin,
    cumprod,
    cumsum,
    cumulative_prod,
    cumulative_sum,
    fcumsum,
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
from .core.operators import Operator, Predicate
from .plan import Plan
from .scan import scan
from .scan_file import scan_file
from .uses.positions import offsets, partition, segment_flags
from .uses.recurrence import linear_recurrence
from .uses.selection import compact, select
from .version import __version__ as __version__

if TYPE_CHECKING:
    from .service.client import connect
    from .service.client_async import connect_async

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
    "connect",
    "connect_async",
    "cummax",
    "cummin",
    "cumprod",
    "cumsum",
    "cumulative_prod",
    "cumulative_sum",
    "fcumsum",
    "linear_recurrence",
    "logcumsumexp",
    "nancumprod",
    "nancumsum",
    "offsets",
    "partition",
    "scan",
    "scan_file",
    "segment_flags",
    "select",
]


def __getattr__(name: str) -> Any:
    """Import the client of a service when it is first used: most programs have no service."""
    modules = {"connect": ".service.client", "connect_async": ".service.client_async"}
    if name not in modules:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415

    return getattr(import_module(modules[name], __name__), name)


def __dir__() -> list[str]:
    """List the public names: modules and what this file imports are no part of the interface."""
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
