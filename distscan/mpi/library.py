"""MPI, as mpi4py has it: no other module imports mpi4py.

Where it cannot be loaded, distscan can: what needs no MPI works, and the first use of MPI raises.
"""

from typing import Any, NoReturn

__all__ = ["MPI"]


class _Missing:
    """Stands for ``mpi4py.MPI`` where that cannot be loaded."""

    Intracomm = Any  # which annotations name

    def __init__(self, reason: Exception) -> None:
        self._reason = reason

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):  # as doctest, inspect and others look for in every object
            raise AttributeError(name)
        raise ImportError(
            f"mpi4py cannot load an MPI library ({self._reason}); install one, "
            "for example, in a checkout: pip install '.[mpich]'"
        ) from self._reason


try:
    from mpi4py import MPI
except (ImportError, RuntimeError) as error:
    MPI = _Missing(error)  # type: ignore[assignment]
