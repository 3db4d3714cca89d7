"""The demo's input, and the proof of its result.

``build DIR`` joins the sources of Python's standard library into ``DIR/joined`` and writes the
length in bytes of each line to ``DIR/lines.npy``. The scan of the lengths is where each line ends:
``prove DIR`` seeks every offset of ``DIR/lines.scan.npy`` in the joined file.
"""

import sys
import sysconfig
from pathlib import Path

import numpy as np


def build(folder: Path) -> None:
    """Write the joined file and the length of each of its lines."""
    library = Path(sysconfig.get_path("stdlib"))
    sources = {
        path.relative_to(library).as_posix(): path
        for path in library.rglob("*.py")
        if path.is_file() and not {"site-packages", "dist-packages"} & set(path.parts)
    }
    with open(folder / "joined", "wb") as joined:
        for name in sorted(sources, key=str.encode):
            joined.write(sources[name].read_bytes())
    with open(folder / "joined", "rb") as joined:
        lengths = np.fromiter(map(len, joined), np.int64)
    np.save(folder / "lines.npy", lengths)
    print(f"demo: {len(lengths)} lines in {len(sources)} files")


def prove(folder: Path) -> None:
    """Check that every offset is the end of its line, and that every line has one."""
    offsets = np.load(folder / "lines.scan.npy").tolist()
    with open(folder / "joined", "rb") as joined:
        lines = sum(1 for _ in joined)
        if len(offsets) != lines:
            sys.exit(f"demo: {len(offsets)} offsets for {lines} lines")
        start = 0
        for number, offset in enumerate(offsets, 1):
            joined.seek(start)
            joined.readline()
            if joined.tell() != offset:
                sys.exit(f"demo: line {number} ends at {joined.tell()}, not at {offset}")
            start = offset
        if joined.read():
            sys.exit(f"demo: the file goes on after the last offset, {start}")
    print(f"demo: {lines} lines, every offset is the end of its line")


if __name__ == "__main__":
    commands = {"build": build, "prove": prove}
    if len(sys.argv) != 3 or sys.argv[1] not in commands:
        sys.exit("usage: demo.py build|prove DIR")
    commands[sys.argv[1]](Path(sys.argv[2]))
