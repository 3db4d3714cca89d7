"""A line index of a large text: the place of each line, found while the file streams by.

The problem: to read line k of a file of 10 GB, one must know where it begins. An index has these
places. Neither file nor index fits into memory.

The idea: ranks read the file in rounds, a chunk for each rank. A rank does not know the numbers of
its lines: they depend on all chunks before its own. ``distscan.offsets``, an exclusive sum of the
ranks' counts, says where its places belong in the index, and how many lines the round has. Each
rank writes its places there. Line k of the text is then the bytes ``index[k - 1]`` to ``index[k]``.

The usual way is a loop over the lines of the file, here by functions that are written in C.

The program writes lines.txt and the index, lines.i8, into FOLDER.

    mpirun -n 2 python examples/lines.py --picture lines.png
    mpirun -n 2 python examples/lines.py --gib 10 --folder /tmp
"""

import argparse
from itertools import accumulate
from pathlib import Path

import numpy as np
from mpi4py import MPI

import distscan

parser = argparse.ArgumentParser(description="Make an index of the lines of a text.")
parser.add_argument("--gib", type=float, default=0.01, help="size of the text, in GiB")
parser.add_argument("--folder", default=".", help="where the text and the index are written")
parser.add_argument("--picture", help="the file of the picture, such as lines.png")
arguments = parser.parse_args()
comm = MPI.COMM_WORLD
text_path = Path(arguments.folder) / "lines.txt"
index_path = Path(arguments.folder) / "lines.i8"
CHUNK = 2 << 20  # bytes


def write_text():
    """Write lines of 1 to 159 letters, the same random 4 MiB again and again."""
    rng = np.random.default_rng(7)
    letters = rng.integers(ord("a"), ord("z") + 1, 4 << 20, np.uint8)
    ends = np.cumsum(rng.integers(2, 161, len(letters) // 50))
    letters[[*ends[ends < len(letters)], -1]] = ord("\n")
    with text_path.open("wb") as file:
        for _ in range(max(int(arguments.gib * 2**30) // len(letters), 1)):
            file.write(letters)


def index_lines():
    """Write the index; return the number of lines, and which rank wrote which of them."""
    size, lines, history = text_path.stat().st_size, 0, []
    with text_path.open("rb") as text, index_path.open("r+b") as index:
        for first in range(comm.rank * CHUNK, size + comm.rank * CHUNK, comm.size * CHUNK):
            text.seek(first)
            chunk = np.fromfile(text, np.uint8, CHUNK)
            ends = first + 1 + np.flatnonzero(chunk == ord("\n"))
            start, total = distscan.offsets(len(ends), comm=comm)
            index.seek(8 * (lines + start))
            index.write(ends)
            history.append((lines + start, len(ends)))
            lines += total
    return lines, history


def index_as_usual():
    """Return the index, by a loop over lines in one process."""
    with text_path.open("rb") as text:
        return np.fromiter(accumulate(map(len, text)), np.int64)


def measure(function, comm):
    """Return what a function returns on the ranks of ``comm``, and its least seconds of three."""
    seconds = []
    for _ in range(3):
        comm.Barrier()
        start = MPI.Wtime()
        result = function()
        comm.Barrier()
        seconds.append(MPI.Wtime() - start)
    return result, min(seconds)


if comm.rank == 0:
    write_text()
    index_path.write_bytes(b"")
(lines, history), seconds = measure(index_lines, comm)

histories = comm.gather(history)
if comm.rank == 0:
    index = np.memmap(index_path, np.int64)
    usual, usual_seconds = measure(index_as_usual, MPI.COMM_SELF)
    np.testing.assert_array_equal(index, usual)
    with text_path.open("rb") as text:  # the index at work: a line in the middle
        text.seek(index[lines // 2 - 1])
        assert len(text.readline()) == index[lines // 2] - index[lines // 2 - 1]
    size = text_path.stat().st_size
    print(f"lines: {lines} lines, {size / 1e9:.3g} GB, ranks: {comm.size}, {seconds:.3g} s")
    print(f"lines: loop {usual_seconds:.3g} s, factor {usual_seconds / seconds:.2g}")

if comm.rank == 0 and arguments.picture:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    for rank, pieces in enumerate(histories):
        for start, count in pieces:
            stretch = slice(start, start + count, 100)
            line = np.arange(start, start + count)[::100]
            left.plot(line, index[stretch] / 1e6, color=f"C{rank % 10}", linewidth=3)
        left.plot([], color=f"C{rank % 10}", label=f"rank {rank}")
    left.set(title="The index, and which rank found it", xlabel="line", ylabel="place in MB")
    left.legend()
    right.hist(np.diff(index[:100_000]), bins=np.arange(0, 170, 5), color="C7")
    right.set(title="Lengths of lines, by the index", xlabel="bytes", ylabel="lines")
    figure.savefig(arguments.picture)
