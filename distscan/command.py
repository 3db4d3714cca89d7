"""The parts that all command lines share: entry, exit status, parser, progress. Rank 0 prints."""

import argparse
import math
import os
import signal
import sys
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any, NoReturn

from .core.errors import DistscanError, LaunchError
from .mpi import agree, communicators, launcher
from .mpi.agree import agreed
from .mpi.communicators import Comm

# These mean a bad argument or a bad input: exit status 2. Anything else ends with status 1.
USAGE = (TypeError, ValueError, OverflowError, NotImplementedError)


def run(name: str, work: Callable[[Comm, Sequence[str]], int], argv: Sequence[str] | None) -> int:
    """Run ``work`` on every rank; return the exit status, the same on every rank.

    An error is one line on stderr, ``name: error: ...``, printed once. If ``argv`` is None, the
    arguments are those of the process.
    """
    argv = sys.argv[1:] if argv is None else argv
    try:
        comm = communicators.communicator(None)
    except (LaunchError, ImportError) as error:  # ImportError: there is no MPI
        return fail(name, error) if launcher.launched_rank() == 0 else 1
    ends = [signal.SIGTERM, signal.SIGHUP]
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # during the imports: see __init__.py
        ends.append(signal.SIGINT)
    # A signal that is ignored stays ignored: nohup ignores SIGHUP.
    ends = [number for number in ends if signal.getsignal(number) is not signal.SIG_IGN]
    # These signals raise KeyboardInterrupt, as Ctrl-C does, so that the job cleans up.
    before = {number: signal.signal(number, signal.default_int_handler) for number in ends}
    try:
        return work(comm, argv)
    except Exception as error:
        if comm.size > 1 and not agree.is_agreed(error):
            # A fault outside all agreed steps is a bug. The other ranks must not wait for this one.
            fail(name, error)
            comm.Abort(1)
        return fail(name, error) if comm.rank == 0 else _status(error)
    except KeyboardInterrupt:
        if comm.rank == 0:
            fail(name, RuntimeError("interrupted"))
        if comm.size > 1:
            comm.Abort(130)
        return 130
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def fail(name: str, error: Exception) -> int:
    """Print an error as one line; return the exit status."""
    message = " ".join(str(error).split()) or type(error).__name__
    if not isinstance(
        error, (DistscanError, *USAGE, MemoryError, OSError, ImportError, RuntimeError)
    ):
        message = f"{type(error).__name__}: {message}"
    print(f"{name}: error: {message}", file=sys.stderr, flush=True)
    return _status(error)


def _status(error: Exception) -> int:
    return 2 if isinstance(error, USAGE) else 1


class Parser(argparse.ArgumentParser):
    """An argument parser that raises errors instead of printing them: ranks agree on them first."""

    text = ""

    def __init__(self, **options: Any) -> None:
        super().__init__(formatter_class=_Help, **options)

    def error(self, message: str) -> NoReturn:
        """Raise ValueError; argparse would end the process."""
        raise ValueError(f"{message}; {self.prog} --help lists the arguments")

    def _print_message(self, message: str, file: Any = None) -> None:
        self.text += message


class _Help(argparse.HelpFormatter):
    """Help as wide as the terminal. argparse would import ``shutil`` for it, which takes 4 ms."""

    def __init__(self, prog: str) -> None:
        try:
            columns = int(os.environ.get("COLUMNS", "")) or 80
        except ValueError:
            columns = os.get_terminal_size().columns if os.isatty(1) else 80
        super().__init__(prog, width=columns - 2)


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
            # Files may stand between options; after -- all are files.
            parse = parser.parse_args if "--" in argv else parser.parse_intermixed_args
            args = parse(argv)
            check(args)
        except SystemExit:
            args = None
    if args is None and comm.rank == 0:
        print(parser.text, end="", flush=True)
    return args


class Progress:
    """Progress on stderr: a bar that is rewritten on a terminal; else a line now and then."""

    def __init__(self, *, quiet: bool) -> None:
        self.quiet = quiet or sys.stderr is None
        self.terminal = not self.quiet and sys.stderr.isatty()
        self.phase, self._begun, self._next = "", 0.0, 0.0

    def show(self, phase: str, done: int, size: int) -> None:
        """Print that ``done`` of ``size`` bytes are done; a size of 0 is not known."""
        if self.quiet:
            return
        now, new = monotonic(), phase != self.phase
        if new:
            self.phase, self._begun = phase, now
        elif now < self._next:
            return
        self._next = now + (_REWRITTEN if self.terminal else _PRINTED)
        text = _progress(phase, done, size, now - self._begun)
        if self.terminal:
            print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
        else:
            print(text if not new else f"distscan: {phase}", file=sys.stderr, flush=True)

    def warn(self, message: str) -> None:
        """Print a warning on rank 0."""
        if not self.quiet:
            self.clear()
            print(f"distscan: warning: {message}", file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Clear the line of the terminal."""
        if self.terminal and self.phase and not self.quiet:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


_REWRITTEN, _PRINTED = 0.1, 10.0  # seconds between two bars, and between two lines
_WIDTH = 20


def _progress(phase: str, done: int, size: int, seconds: float) -> str:
    """Return a line of progress.

    >>> _progress("scan", 3 * 10**9, 4 * 10**9, 1.5)
    'distscan: scan    [###############.....]  75%  3.00 of 4.00 GB  2.00 GB/s  1 s left'
    """
    if size == 0 or done == 0 or seconds == 0:
        return f"distscan: {phase}"
    share, rate = min(done / size, 1.0), done / seconds
    bar = "#" * int(share * _WIDTH)
    left = (size - done) / rate
    return (
        f"distscan: {phase:7} [{bar:.<{_WIDTH}}] {share:4.0%}  {done / 1e9:.2f} of "
        f"{size / 1e9:.2f} GB  {rate / 1e9:.2f} GB/s  {_time(left)} left"
    )


def _time(seconds: float) -> str:
    """Return a time in the units that people read.

    >>> _time(0.3), _time(75), _time(7265)
    ('1 s', '1:15', '2:01:05')
    """
    whole = math.ceil(seconds)
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}:{minutes:02}:{rest:02}"
    return f"{minutes}:{rest:02}" if minutes else f"{rest} s"
