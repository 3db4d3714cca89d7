"""Tables of measurements: printed, and written as files of docs/measured/."""

import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def line(cells: Sequence[Any]) -> str:
    """Write a row as Markdown; None is an empty cell."""
    return f"| {' | '.join('' if cell is None else str(cell) for cell in cells)} |"


def head(columns: Sequence[str]) -> str:
    """Write the first two lines of a table as Markdown."""
    return f"{line(columns)}\n|{'---|' * len(columns)}"


def command(script: str, argv: Sequence[str] | None) -> str:
    """Write the command that ran a script, with its arguments."""
    arguments = shlex.join(sys.argv[1:] if argv is None else argv)
    return f"python launch/tools/{script} {arguments}".rstrip()


def update(path: Path, table: dict[str, Any]) -> None:
    """Write a table to a file. Other facts in the file, such as the chip, stay."""
    facts = json.loads(path.read_text()) if path.exists() else {}
    parts = []
    for key, value in (facts | table).items():
        text = json.dumps(value)
        if key in {"rows", "notes"} and value:  # a line each
            lines = ",\n".join(f"  {json.dumps(one)}" for one in value)
            text = f"[\n{lines}\n ]"
        parts.append(f" {json.dumps(key)}: {text}")
    path.write_text("{\n" + ",\n".join(parts) + "\n}\n")
