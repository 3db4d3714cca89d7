"""The exceptions. Each is also the built-in kind that NumPy users catch."""


class DistscanError(Exception):
    """Base of everything distscan raises on its own account."""


class DisagreementError(DistscanError, ValueError):
    """The ranks of one collective call passed different types, operators or options."""


class RankError(DistscanError, RuntimeError):
    """Another rank failed in a call that this rank took part in."""


class InputError(DistscanError, ValueError):
    """A file cannot be scanned: missing, unreadable, truncated, or not a plain ``.npy``."""


class OutputError(DistscanError, ValueError):
    """The output may not be written where it was asked for."""


class BackendError(DistscanError, RuntimeError):
    """The chosen backend cannot run here; the message says what to install."""


class KernelError(DistscanError, RuntimeError):
    """A CUDA kernel did not compile; the message carries the compiler's own lines."""


class LaunchError(DistscanError, RuntimeError):
    """The launcher and the MPI library do not belong together."""


class CheckError(DistscanError, AssertionError):
    """``--check`` found an element that differs from NumPy's."""
