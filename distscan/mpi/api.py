"""The only import of mpi4py: at the first use of MPI, not before.

So a client of the service needs no MPI library; nor does it start one, which may fail on the front
end of a cluster.
"""

from typing import TYPE_CHECKING, Any

__all__ = ["MPI"]


class _MPI:
    """``mpi4py.MPI``, which is imported when the first of its attributes is read."""

    Intracomm = Any  # for annotations, until then

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # doctest, inspect and others read such names of every object
            raise AttributeError(name)
        try:
            from mpi4py import MPI as loaded  # noqa: PLC0415 - it starts MPI
        except (ImportError, RuntimeError) as error:
            raise ImportError(
                f"mpi4py cannot load an MPI library ({error}); install one, "
                "for example, in a checkout: pip install '.[mpich]'"
            ) from error
        self.__dict__.update(vars(loaded))  # found without this method from now on
        return getattr(loaded, name)


if TYPE_CHECKING:
    from mpi4py import MPI
else:
    MPI = _MPI()
