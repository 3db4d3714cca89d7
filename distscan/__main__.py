"""``python -m distscan``: a file job, a service, a command of its clients, or ``warm``."""

import sys
from collections.abc import Sequence

from . import cli
from .mpi import launcher


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line on every rank; return the exit status, the same on each."""
    argv = sys.argv[1:] if argv is None else argv
    command = argv[0] if argv else ""
    if command in {"submit", "jobs", "show", "cancel"}:
        from .service import commands  # noqa: PLC0415 - file jobs need no client

        return commands.main(command, argv[1:])
    if command == "warm":
        from . import warm  # noqa: PLC0415 - file jobs may need no GPU

        return warm.main(argv[1:])
    if command != "serve":
        return cli.main(argv)
    try:
        from .service import serve  # noqa: PLC0415 - an extra
    except ImportError as error:
        missing = ImportError(f"{error}; in a checkout: pip install '.[service]'")
        return cli.fail("distscan", missing) if launcher.launched_rank() == 0 else 1
    return serve.main(argv[1:])


if __name__ == "__main__":
    sys.exit(main())
