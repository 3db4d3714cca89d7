"""Lines of a text are found, whose bytes are spread over ranks; a line may span ranks.

Each rank reads its own bytes. The number of a byte's line is the number of line ends before it: a
sum, ``distscan.scan(is_end, exclusive=True)``. The line begins behind the last line end before the
byte: a maximum, ``distscan.scan(behind_end, "max", ...)``. With both, every rank knows line and
column of each of its bytes, and which of them begin a line. The text is this file.

The program writes lines.png into FOLDER, or else where you are. Run it with

    mpirun -n 4 python examples/lines.py [FOLDER]
"""

import sys
from itertools import accumulate
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from mpi4py import MPI

import distscan

comm = MPI.COMM_WORLD
folder = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
path = Path(__file__)

# This rank's part: bytes first to last of the file.
size = path.stat().st_size
first, last = size * comm.rank // comm.size, size * (comm.rank + 1) // comm.size
text = np.fromfile(path, np.uint8, count=last - first, offset=first)
position = np.arange(first, last)

is_end = text == ord("\n")
line = distscan.scan(is_end, exclusive=True, comm=comm)
behind_end = np.where(is_end, position + 1, 0)  # where the next line begins
begin = distscan.scan(behind_end, "max", exclusive=True, initial=0, comm=comm)
column = position - begin

begins = comm.gather(position[column == 0])
lines, columns, texts = comm.gather(line), comm.gather(column), comm.gather(text)
if comm.rank == 0:
    lengths = [len(each) for each in path.read_bytes().splitlines(keepends=True)]
    known = [0, *accumulate(lengths)][:-1]
    assert np.concatenate(begins).tolist() == known
    assert np.concatenate(columns).tolist() == [c for n in lengths for c in range(n)]
    assert np.concatenate(lines).tolist() == [i for i, n in enumerate(lengths) for _ in range(n)]
    print(f"lines: {len(known)} lines are found in {size} bytes (ranks: {comm.size})")

    figure = Figure(figsize=(7, 6), layout="constrained")
    axes = figure.subplots()
    colors = np.array(matplotlib.colormaps["tab10"].colors)
    image = np.ones((len(lengths), max(lengths), 3))
    for rank in range(comm.size):
        strength = np.where(texts[rank] > ord(" "), 1, 0.25)[:, None]  # blanks are pale
        image[lines[rank], columns[rank]] = 1 - strength * (1 - colors[rank % 10])
    axes.imshow(image, aspect="auto", interpolation="nearest")
    axes.set(title="Each byte at its line and column; color: its rank")
    axes.set(xlabel="column", ylabel="line")
    figure.savefig(folder / "lines.png")
    print(f"lines: the picture is {folder / 'lines.png'}")
