"""The tables of options in docs/command.rst, from the parsers of the command line.

``docs/conf.py`` writes them to ``generated/options-COMMAND.rst``, which pages include.
"""

import argparse
import re
from pathlib import Path

from distscan.cli import file_job_parser
from distscan.commands import COMMANDS


def write(folder: Path) -> None:
    """Write the table of a file job, and that of each command."""
    folder.mkdir(exist_ok=True)
    parsers = {"job": file_job_parser()}
    parsers |= {name: command.make_parser() for name, command in COMMANDS.items()}
    # submit has all options of a file job: its table has the others.
    shared = {action.dest for action in parsers["job"]._actions}
    for name, parser in parsers.items():
        actions = [a for a in parser._actions if a.dest not in shared or name != "submit"]
        (folder / f"options-{name}.rst").write_text(_table(actions))


def _table(actions: list[argparse.Action]) -> str:
    """Return the table of arguments, in the order of ``--help``."""
    lines = [".. list-table::", "   :widths: 35 65", ""]
    for action in actions:
        if action.dest != "help":
            lines += [f"   * - {_names(action)}", f"     - {_text(action)}"]
    return "\n".join([*lines, ""])


def _names(action: argparse.Action) -> str:
    values = [action.metavar] if isinstance(action.metavar, str) else action.metavar or ()
    if action.choices is not None:
        values = ["|".join(map(str, action.choices))]
    elif not values and action.nargs != 0:
        values = [action.dest.upper()]
    if action.nargs == "?":
        values = [f"[{value}]" for value in values]
    names = action.option_strings or [""]
    return "``" + " ".join([", ".join(names), *values]).strip() + "``"


def _text(action: argparse.Action) -> str:
    """Return the help as a sentence. Options and FILE::NAME are literal."""
    text = (action.help or "").replace("*", r"\*").replace("`", r"\`")
    text = re.sub(r"(?<![\w-])(--\w[\w-]*|-\w\b|FILE::NAME)", r"``\1``", text)
    return f"{text[:1].upper()}{text[1:]}."
