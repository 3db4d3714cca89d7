"""Completion of the command line in bash, zsh and fish, by argcomplete.

A shell calls this program at each TAB, with the line in its environment. ``distscan
--print-completion SHELL`` prints what tells the shell to do so.
"""

import os
from argparse import ArgumentParser
from typing import Any

from .cli import OPERATORS, file_job_parser
from .commands import COMMANDS

#: The metavars of arguments that are files or folders.
_FILES = {"INPUT", "OUTPUT", "FILE", "FILE.svg", "FOLDER", "DIR", "PATH", "WHERE"}


def complete() -> None:
    """Print the words that may come next, for the shell that has called; end the process."""
    import argcomplete  # noqa: PLC0415 - an extra

    words = os.environ["COMP_LINE"][: int(os.environ["COMP_POINT"])].split(" ")
    first = int(os.environ["_ARGCOMPLETE"])  # 3 of "python -m distscan", else 1
    words = [word for i, word in enumerate(words) if word or i == len(words) - 1]
    command = words[first] if len(words) > first + 1 else ""
    if command in COMMANDS:
        os.environ["_ARGCOMPLETE"] = str(first + 1)  # the command's own line begins there
    parser = COMMANDS[command].make_parser() if command in COMMANDS else file_job_parser()
    _describe(parser, names=[*COMMANDS, "help"] if len(words) == first + 1 else [])
    argcomplete.autocomplete(parser, always_complete_options=False)


def _describe(parser: ArgumentParser, names: list[str]) -> None:
    """Tell argcomplete which words an argument has; ``names`` may stand in place of INPUT."""
    from argcomplete.completers import ChoicesCompleter, FilesCompleter  # noqa: PLC0415

    def inputs(prefix: str, **options: Any) -> list[str]:
        return [*names, *FilesCompleter()(prefix, **options)]

    for action in parser._actions:
        completer: Any = ChoicesCompleter(())
        if action.dest == "inputs":
            completer = inputs
        elif action.dest == "op":
            completer = ChoicesCompleter(OPERATORS)
        elif action.metavar in _FILES:
            completer = FilesCompleter()
        if action.choices is None and action.nargs != 0:
            action.completer = completer  # type: ignore[attr-defined]
