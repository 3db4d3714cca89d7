"""The commands of ``python -m distscan``: their names, and what each does. One table.

The modules of commands are imported when they are used: a file job needs none of them.
"""

import sys
from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple


class Command(NamedTuple):
    """A command, and the functions that it consists of, as MODULE:NAME in this package."""

    help: str
    main: str  # takes the arguments, returns the exit status
    parser: str
    extra: str = ""  # the extra of the package that the command needs

    def load(self) -> Callable[[Sequence[str]], int]:
        """Return the function that runs the command; raise ImportError if packages are missing."""
        try:
            main: Callable[[Sequence[str]], int] = _load(self.main)
        except ImportError as error:
            remedy = f"; in a checkout: pip install '.[{self.extra}]'" if self.extra else ""
            raise ImportError(f"{error}{remedy}") from error
        return main

    def make_parser(self) -> ArgumentParser:
        """Return the parser of the command's arguments."""
        parser: Callable[[], ArgumentParser] = _load(self.parser)
        return parser()


def _load(target: str) -> Any:
    module, _, name = target.partition(":")
    return getattr(import_module(f".{module}", __package__), name)


COMMANDS = {
    "serve": Command("start a service: ranks that stay up", "service.serve:main",
                     "service.serve:parser", extra="service"),
    "submit": Command("send a file job to a service", "service.commands:submit",
                      "service.commands:submit_parser"),
    "jobs": Command("list the jobs of a service", "service.commands:jobs",
                    "service.commands:jobs_parser"),
    "show": Command("print what a service knows of a job", "service.commands:show",
                    "service.commands:show_parser"),
    "cancel": Command("cancel a job of a service", "service.commands:cancel",
                      "service.commands:cancel_parser"),
    "warm": Command("compile GPU kernels before they are needed", "warm:main", "warm:parser"),
    "bench": Command("measure scans beside a copy and other libraries", "bench.__main__:main",
                     "bench.__main__:parser"),
}  # fmt: skip


def program() -> str:
    """Return the words that call this program, as the user has called it."""
    return "distscan" if Path(sys.argv[0]).name == "distscan" else "python -m distscan"


def description() -> str:
    """Return the commands, a line for each."""
    lines = [f"  {name:8}{command.help}" for name, command in COMMANDS.items()]
    lines += ["  help    print this; help COMMAND prints the arguments of a command"]
    return "\n".join(["commands, instead of INPUT:", *lines])


def unknown_command_text(name: str) -> str:
    """Return that a name is neither a file nor a command, and the nearest command.

    >>> unknown_command_text("sbumit")[:62]
    'there is no file and no command sbumit: did you mean submit? T'
    """
    from difflib import get_close_matches  # noqa: PLC0415 - few jobs need it

    nearest = get_close_matches(name, COMMANDS, n=1, cutoff=0.65)
    question = f": did you mean {nearest[0]}?" if nearest else "."
    return (
        f"there is no file and no command {name}{question} The commands are "
        f"{', '.join([*COMMANDS, 'help'])}; {program()} --help explains them"
    )
