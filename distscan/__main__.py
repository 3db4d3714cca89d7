# PYTHON_ARGCOMPLETE_OK
"""``python -m distscan``: a file job, or a command. Also what a shell asks when it completes."""

import os
import sys
from collections.abc import Sequence

from . import cli
from .commands import COMMANDS
from .mpi import launcher


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line on every rank; return the exit status, the same on each."""
    argv = sys.argv[1:] if argv is None else argv
    if "_ARGCOMPLETE" in os.environ:
        from .completion import complete  # noqa: PLC0415 - shells alone ask for it

        complete()
    if argv[:1] == ["help"]:
        argv = [*argv[1:2], "--help"]
    name = argv[0] if argv else ""
    if name not in COMMANDS:
        return cli.main(argv)
    try:
        return COMMANDS[name].run(argv[1:])
    except ImportError as error:  # of the command's module
        missing = ImportError(f"{error}; in a checkout: pip install '.[service]'")
        return cli.fail("distscan", missing) if launcher.launched_rank() == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
