"""A lexer: which bytes of a text are code, strings or comments, by a finite automaton.

The problem: what a byte means depends on all bytes before it. A quote in a comment begins no
string, and a number sign in a string no comment. An automaton reads the text from its start, byte
after byte. So a rank cannot begin in the middle of the text: it does not know the state there.

The idea: each byte is a function, from the state before it to the state after it. The composition
of functions is associative, and not commutative, so all states are a scan of functions. With four
states, a function is four numbers of 2 bits, one byte: a table has all compositions. No rank waits
for the state at its first byte, since its total is a function of that state.

Source: Hillis and Steele, 1986, Data parallel algorithms; Stehle and Jacobsen, 2020, ParPaRaw:
massively parallel parsing of delimiter-separated raw data. The usual way is the automaton in a loop
of Python. The text is this file, again and again.

    python examples/lexer.py --picture lexer.png
    mpirun -n 2 python examples/lexer.py --n 50_000_000
    mpirun -n 4 python examples/lexer.py --n 1_000_000_000 --gpu     # CuPy, a GPU for each rank
"""

import argparse
from pathlib import Path

import numpy as np
from mpi4py import MPI

import distscan

parser = argparse.ArgumentParser(description="Find code, strings and comments of a text.")
parser.add_argument("--n", type=int, default=1_000_000, help="bytes of all ranks")
parser.add_argument("--picture", help="the file of the picture, such as lexer.png")
parser.add_argument("--gpu", action="store_true", help="with CuPy, a GPU for each rank")
arguments = parser.parse_args()
comm = MPI.COMM_WORLD
if arguments.gpu:
    import cupy as xp

    xp.cuda.Device(comm.rank % xp.cuda.runtime.getDeviceCount()).use()
else:
    import numpy as xp

# The automaton: NEXT[state, byte] is the state after the byte.
CODE, STRING, ESCAPE, COMMENT = STATES = range(4)
NAMES = "code", "string", "escape in a string", "comment"
NEXT = np.repeat(np.array(STATES, np.uint8), 256).reshape(4, 256)
NEXT[CODE, ord("#")] = COMMENT
NEXT[COMMENT, ord("\n")] = CODE
NEXT[CODE, ord("\x22")] = STRING  # a quote
NEXT[STRING, ord("\x22")] = CODE
NEXT[STRING, ord("\\")] = ESCAPE
NEXT[ESCAPE] = STRING

# The function of a byte: bits 2 s and 2 s + 1 are the state after it, if the state before it is s.
FUNCTIONS = sum(NEXT[state] << 2 * state for state in STATES).astype(np.uint8)


def compose(a, b):
    """Return the functions that are first a, then b."""
    return sum((b >> 2 * (a >> 2 * state & 3) & 3) << 2 * state for state in STATES)


COMPOSITIONS = compose(*np.ogrid[:256, :256]).astype(np.uint8).ravel()
then = distscan.Operator(
    "then",
    numpy=lambda a, b: COMPOSITIONS.take(a.astype(np.uint16) << 8 | b),
    cuda="""T c = 0;
            for (int i = 0; i < 8; i += 2) c |= (b >> 2 * (a >> i & 3) & 3) << i;
            return c;""",
    identity=0b11_10_01_00,
)


def lex(text):
    """Return the state after each byte of this rank's text; the first state of all is CODE."""
    functions = xp.asarray(FUNCTIONS)[text]
    return distscan.scan(functions, then, comm=comm) & 3  # bits 0 and 1: from CODE


def lex_as_usual(text):
    """Return the states of a whole text, by a loop."""
    table, state = [bytes(row) for row in NEXT], CODE
    return np.frombuffer(bytes([state := table[state][byte] for byte in text]), np.uint8)


def measure(function, comm):
    """Return what a function returns on the ranks of ``comm``, and its least seconds of three."""
    seconds = []
    for _ in range(3):
        comm.Barrier()
        start = MPI.Wtime()
        result = function()
        if arguments.gpu:
            xp.cuda.Device().synchronize()
        comm.Barrier()
        seconds.append(MPI.Wtime() - start)
    return result, min(seconds)


n = arguments.n
source = Path(__file__).read_bytes()
text = (source * (n // len(source) + 1))[:n]
first, end = n * comm.rank // comm.size, n * (comm.rank + 1) // comm.size
part = xp.asarray(np.frombuffer(text, np.uint8)[first:end])
states, seconds = measure(lambda: lex(part), comm)

parts = comm.gather(states.get() if arguments.gpu else states)
if comm.rank == 0:
    states = np.concatenate(parts)
    usual, usual_seconds = measure(lambda: lex_as_usual(text), MPI.COMM_SELF)
    np.testing.assert_array_equal(states, usual)
    comments = np.count_nonzero((states[1:] == COMMENT) & (states[:-1] != COMMENT))
    print(f"lexer: {n} bytes, {comments} comments, ranks: {comm.size}, {seconds:.3g} s")
    print(f"lexer: loop {usual_seconds:.3g} s, factor {usual_seconds / seconds:.2g}")

if comm.rank == 0 and arguments.picture:
    from matplotlib.colors import ListedColormap
    from matplotlib.figure import Figure

    lines = source[:n].splitlines(keepends=True)
    column = np.concatenate([np.arange(len(line)) for line in lines])
    line = np.repeat(np.arange(len(lines)), [len(line) for line in lines])
    image = np.full((len(lines), max(map(len, lines))), np.nan)
    letters = np.frombuffer(source[:n], np.uint8) > ord(" ")
    image[line[letters], column[letters]] = states[: len(line)][letters]
    figure = Figure(figsize=(7, 6.5), layout="constrained")
    axes = figure.subplots()
    colors = ListedColormap(["C0", "C1", "C3", "C2"])
    drawn = axes.imshow(image, colors, vmin=-0.5, vmax=3.5, aspect="auto", interpolation="nearest")
    bar = figure.colorbar(drawn, ticks=STATES, location="bottom", shrink=0.8)
    bar.set_ticklabels(NAMES)
    axes.set(title="The state after each byte of this file", xlabel="column", ylabel="line")
    figure.savefig(arguments.picture)
