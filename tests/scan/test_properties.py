"""Everything with everything: cases drawn by Hypothesis, against the definition.

Rank 0 draws, and sends each case to the others, who run what they are sent: so all are in step
while Hypothesis looks for the smallest case that fails, too. A failure prints the command that
repeats its case; DISTSCAN_EXAMPLES=1000 looks longer.
"""

import json
import os
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from mpi4py import MPI

from support.arrays import LAYOUTS
from support.campaigns import run_campaign
from support.data import OPERATORS, TYPES, elements, initial_of
from support.reference import CALLS, check, types_of

EXAMPLES = int(os.environ.get("DISTSCAN_EXAMPLES", "200"))
SEGMENTS = "?BHilefd"  # the types of flags and of keys

lengths = st.one_of(
    st.tuples(st.integers(0, 40)),
    st.tuples(st.integers(0, 400)),
    st.tuples(st.sampled_from([8191, 8192, 8193, 16400])),
    st.tuples(*[st.integers(0, 9)] * 2),
    st.tuples(*[st.integers(0, 5)] * 3),
    st.sampled_from([(3, 1100), (1100, 3), (2001, 5), (300, 31), (40, 20, 11), (9, 300)]),
)


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    """Draw one call: all that a rank must know to make its part of it."""
    shape, op = draw(lengths), draw(st.sampled_from(sorted(OPERATORS)))
    axis = draw(st.sampled_from([None] * 3 + [*range(-len(shape), len(shape))]))
    across = axis is None or axis % len(shape) == 0
    segments = draw(st.sampled_from([None, *SEGMENTS])) if axis is None else None
    strategies = ["auto", "reduce-scan"]
    strategies += ["scan-add"] * (segments is None)
    strategies += ["single-pass"] * (MPI.COMM_WORLD.size == 1 or not across)
    code = draw(st.sampled_from(TYPES[op]))
    return {
        "seed": draw(st.integers(0, 99999)),
        "shape": shape,
        "cuts": draw(_cuts(shape[0])),
        "type": code,
        "op": op,
        "dtype": draw(st.sampled_from([None, *_accumulating(op, code)])),
        "axis": axis,
        "exclusive": draw(st.booleans()),
        "initial": draw(st.booleans()),
        "reverse": draw(st.booleans()),
        "segments": segments,
        "density": draw(st.sampled_from([0, 0.01, 0.05, 0.5, 1])),
        "layout": draw(st.sampled_from(sorted(LAYOUTS))),
        "strategy": draw(st.sampled_from(strategies)),
        "call": draw(st.sampled_from(CALLS)),
    }


@st.composite
def _cuts(draw: st.DrawFn, n: int) -> list[int]:
    """Draw where one rank's shard ends and the next one's begins: evenly, or at random."""
    size = MPI.COMM_WORLD.size
    if draw(st.booleans()):
        return [n * rank // size for rank in range(1, size)]
    return sorted(draw(st.lists(st.integers(0, n), min_size=size - 1, max_size=size - 1)))


def _accumulating(op: str, code: str) -> list[str]:
    """Types other than NumPy's choice that hold every partial result exactly."""
    if op == "halves":
        return ["L"]
    if op not in ("sum", "prod", "max", "min"):
        return []
    kind = np.dtype(code).kind
    return {"b": ["i", "d"], "i": ["l"], "u": ["L"], "f": ["d", "D"], "c": ["D"]}[kind]


def check_case(case: dict[str, Any], xp: Any, comm: MPI.Intracomm) -> None:
    """Make the call, and compare this rank's part of the result."""
    rng = np.random.default_rng(case["seed"])
    name, shape = case["op"], tuple(case["shape"])
    op, n = OPERATORS[name], int(np.prod(shape))
    x = elements(rng, name, case["type"], n).reshape(shape)
    options = {each: case[each] for each in ("exclusive", "reverse", "axis", "dtype", "strategy")}
    acc, result = types_of(op, x.dtype, case["dtype"])
    options["initial"] = initial_of(rng, name, acc) if case["initial"] else None
    if case["segments"]:
        marks = rng.random(n) < case["density"]
        if case["segments"] != "?":
            marks = (np.cumsum(marks) % 5).astype(case["segments"])
        options["segments"] = marks
    edges = [0, *case["cuts"], shape[0]]
    mine = slice(edges[comm.rank], edges[comm.rank + 1])
    close = n * np.finfo(result).eps if name == "logaddexp" else None
    check(x, op, xp=xp, cut=lambda rows: mine, call=case["call"], layout=case["layout"],
          close=close, **options)  # fmt: skip


def command(case: dict[str, Any]) -> str:
    """The command that repeats a case."""
    run = f"launch/mpirun.sh {MPI.COMM_WORLD.size} python -m pytest {__file__}"
    return f"DISTSCAN_CASE='{json.dumps(case)}' {run}"


@pytest.mark.timeout(300)
def test_against_the_definition(xp: Any, comm: MPI.Intracomm) -> None:
    if case := os.environ.get("DISTSCAN_CASE"):
        check_case(json.loads(case), xp, comm)
        return
    # On a GPU nearly every case is a kernel to compile.
    examples = EXAMPLES if xp is np else max(EXAMPLES // 5, 1)
    run_campaign(comm, cases(), lambda case: check_case(case, xp, comm), examples, command)
