"""The parts that all command lines share: entry, exit status, parser, progress. Rank 0 prints."""

import argparse
import signal
import sys
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any, NoReturn

from .core.errors import DistscanError, LaunchError
from .mpi import communicators, faults, launcher
from .mpi.agree import agreed
from .mpi.communicators import Comm

# These mean a bad argument or a bad input: exit status 2. Anything else ends with status 1.
_USAGE = (TypeError, ValueError, OverflowError, NotImplementedError)


def run(name: str, work: Callable[[Comm, Sequence[str]], int], argv: Sequence[str] | None) -> int:
    """Run ``work`` on every rank; return the exit status, the same on every rank.

    An error is one line on stderr, ``name: error: ...``, printed once. If ``argv`` is None, the
    arguments are those of the process.
    """
    argv = sys.argv[1:] if argv is None else argv
    try:
        comm = communicators.communicator(None)
    except (LaunchError, ImportError) as error:  # ImportError: there is no MPI
        return _fail(name, error) if launcher.launched_rank() == 0 else 1
    ends = [signal.SIGTERM, signal.SIGHUP]
    # A signal that is ignored stays ignored: nohup ignores SIGHUP.
    ends = [number for number in ends if signal.getsignal(number) is not signal.SIG_IGN]
    # These signals raise KeyboardInterrupt, as Ctrl-C does, so that the job cleans up.
    before = {number: signal.signal(number, signal.default_int_handler) for number in ends}
    try:
        return work(comm, argv)
    except Exception as error:
        if comm.size > 1 and not faults.is_agreed(error):
            # A fault outside all agreed steps is a bug. The other ranks must not wait for this one.
            _fail(name, error)
            comm.Abort(1)
        return _fail(name, error) if comm.rank == 0 else _status(error)
    except KeyboardInterrupt:
        if comm.rank == 0:
            _fail(name, RuntimeError("interrupted"))
        if comm.size > 1:
            comm.Abort(130)
        return 130
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _fail(name: str, error: Exception) -> int:
    message = " ".join(str(error).split()) or type(error).__name__
    if not isinstance(
        error, (DistscanError, *_USAGE, MemoryError, OSError, ImportError, RuntimeError)
    ):
        message = f"{type(error).__name__}: {message}"
    print(f"{name}: error: {message}", file=sys.stderr, flush=True)
    return _status(error)


def _status(error: Exception) -> int:
    return 2 if isinstance(error, _USAGE) else 1


class Parser(argparse.ArgumentParser):
    """An argument parser that raises errors instead of printing them: ranks agree on them first."""

    text = ""

    def error(self, message: str) -> NoReturn:
        """Raise ValueError; argparse would end the process."""
        raise ValueError(f"{message}; {self.prog} --help lists the arguments")

    def _print_message(self, message: str, file: Any = None) -> None:
        self.text += message


def arguments(
    comm: Comm,
    argv: Sequence[str],
    parser: Parser,
    check: Callable[[argparse.Namespace], None] = lambda args: None,
) -> argparse.Namespace | None:
    """Return the parsed arguments, checked by ``check`` and agreed on by all ranks; collective.

    None for --help and --version, after rank 0 has printed their text.
    """
    with agreed(comm) as same:
        same["the arguments"] = list(argv)
        try:
            args = parser.parse_args(argv)
            check(args)
        except SystemExit:
            args = None
    if args is None and comm.rank == 0:
        print(parser.text, end="", flush=True)
    return args


class Progress:
    """Progress on stderr: one line that is rewritten on a terminal, else one line per phase."""

    def __init__(self, *, quiet: bool) -> None:
        self.quiet = quiet or sys.stderr is None
        self.terminal = not self.quiet and sys.stderr.isatty()
        self.phase, self.next = "", 0.0

    def show(self, phase: str, done: int, size: int) -> None:
        """Print the progress of rank 0; every rank has about the same amount of work."""
        now = monotonic()
        if self.quiet or (phase == self.phase and (not self.terminal or now < self.next)):
            return
        self.phase, self.next = phase, now + 0.1
        if self.terminal:
            share = f" {done / size:4.0%}" if size else ""
            print(f"\r\033[Kdistscan: {phase}{share}", end="", file=sys.stderr, flush=True)
        else:
            print(f"distscan: {phase}", file=sys.stderr, flush=True)

    def warn(self, message: str) -> None:
        """Print a warning on rank 0."""
        if not self.quiet:
            self.clear()
            print(f"distscan: warning: {message}", file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Clear the line of the terminal."""
        if self.terminal and self.phase and not self.quiet:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
