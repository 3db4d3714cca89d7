"""Execute ``docs/notebook.ipynb``, which starts a service of two ranks; fail if a cell fails.

``python launch/tools/notebook.py``
    As ``launch/docs.sh`` does: change nothing.
``python launch/tools/notebook.py --write``
    Put the new outputs into the file, as pages show them: of a progress bar its end.
"""

import argparse
import re
from pathlib import Path

import nbformat
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).resolve().parents[2] / "docs" / "notebook.ipynb"
_LIMIT = 60  # seconds of a cell
_OVERWRITTEN = re.compile(r"[^\n]*\r")  # up to a carriage return, another text follows on the line
_WARNING = re.compile(r"^.*TqdmWarning.*\n.*\n", re.MULTILINE)  # has the path of this environment


def execute() -> nbformat.NotebookNode:
    """Return the notebook with new outputs, without what differs between machines by chance."""
    notebook = nbformat.read(NOTEBOOK, 4)
    NotebookClient(notebook, timeout=_LIMIT, coalesce_streams=True).execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # times
        for output in cell.get("outputs", []):
            if output.output_type == "stream":
                output.text = _OVERWRITTEN.sub("", _WARNING.sub("", output.text))
    return notebook


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Execute docs/notebook.ipynb.")
    parser.add_argument("--write", action="store_true", help="keep the new outputs")
    args = parser.parse_args()
    executed = execute()
    if args.write:
        nbformat.write(executed, NOTEBOOK)
