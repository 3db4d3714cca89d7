"""The exceptions. Each one is also the built-in exception that NumPy users catch."""


class DistscanError(Exception):
    """Base class of distscan's exceptions."""


class DisagreementError(DistscanError, ValueError):
    """The ranks of one collective call passed different types, operators or options."""


class RankError(DistscanError, RuntimeError):
    """Another rank failed in a call that this rank took part in."""


class InputError(DistscanError, ValueError):
    """A file cannot be scanned: missing, unreadable, truncated, or not a plain ``.npy``."""


class OutputError(DistscanError, ValueError):
    """The output file cannot be written under its name."""


class BackendError(DistscanError, RuntimeError):
    """The chosen backend cannot run here; the message names the packages to install."""


class KernelError(DistscanError, RuntimeError):
    """A CUDA kernel did not compile; the message has the compiler's own lines."""


class LaunchError(DistscanError, RuntimeError):
    """The launcher does not belong to the MPI library in use."""


class CheckError(DistscanError, AssertionError):
    """``--check`` found an element that differs from NumPy's."""


#: Errors of an argument or of an input. The command line ends with status 2 for these, and with 1
#: for all others; a service answers with status 400.
USAGE = (TypeError, ValueError, OverflowError, NotImplementedError)
