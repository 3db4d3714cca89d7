# PYTHON_ARGCOMPLETE_OK
"""``python -m distscan``: a file job, or a command. Also what a shell asks when it completes."""

import os
import sys
from collections.abc import Sequence
from functools import partial

from . import cli
from .commands import COMMANDS
from .mpi.agree import agreed
from .mpi.communicators import Comm


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line on every rank; return the exit status, the same on each."""
    argv = sys.argv[1:] if argv is None else argv
    if "_ARGCOMPLETE" in os.environ:
        from .completion import complete  # noqa: PLC0415 - shells alone ask for it

        complete()
    if argv[:1] == ["help"]:
        argv = [*(name for name in argv[1:] if name != "help"), "--help"]
    name = argv[0] if argv else ""
    if name not in COMMANDS:
        return cli.main(argv)
    try:
        command = COMMANDS[name].load()
    except ImportError as error:
        return cli.run("distscan", partial(_refuse, error), argv)
    return command(argv[1:])


def _refuse(error: ImportError, comm: Comm, argv: Sequence[str]) -> int:
    """Raise an error on all ranks, also on those that have the package and run the command."""
    with agreed(comm):
        raise error
    return 1


if __name__ == "__main__":
    sys.exit(main())
