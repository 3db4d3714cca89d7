"""The only import of mpi4py.

distscan can be imported without an MPI library. The first use of MPI then raises ImportError.
"""

from typing import Any, NoReturn

__all__ = ["MPI"]


class _Missing:
    """A stand-in for ``mpi4py.MPI`` if that cannot be loaded."""

    Intracomm = Any  # for annotations

    def __init__(self, reason: Exception) -> None:
        self._reason = reason

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):  # doctest, inspect and others read such names of every object
            raise AttributeError(name)
        raise ImportError(
            f"mpi4py cannot load an MPI library ({self._reason}); install one, "
            "for example, in a checkout: pip install '.[mpich]'"
        ) from self._reason


try:
    from mpi4py import MPI
except (ImportError, RuntimeError) as error:
    MPI = _Missing(error)  # type: ignore[assignment]
