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
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from mpi4py import MPI

import distscan
from distscan.core.operators import BUILTIN
from support import reference
from support.data import CODES, exact
from support.host import host
from support.logic import bits, truths
from support.maps import COMPOSE, HALVES, maps
from support.seed import SEED

EXAMPLES = int(os.environ.get("DISTSCAN_EXAMPLES", "200"))
OPS = BUILTIN | {"compose": COMPOSE, "halves": HALVES}
MAPS = {"compose": 32, "halves": 16}  # bits each way
TYPES = {
    "compose": "L",
    "halves": "IL",
    "logaddexp": "efd",
    **dict.fromkeys(("bitwise_and", "bitwise_or", "bitwise_xor"), "?bBhHiIlL"),
    **dict.fromkeys(("sum", "prod", "max", "min"), CODES),
    **dict.fromkeys(("logical_and", "logical_or", "logical_xor"), CODES),
}
SEGMENTS = "?BHilefd"  # the types of flags and of keys
LAYOUTS = ["contiguous", "Fortran", "every second", "backwards", "byte-swapped", "read-only"]

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
    shape, op = draw(lengths), draw(st.sampled_from(sorted(OPS)))
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
        "layout": draw(st.sampled_from(LAYOUTS)),
        "strategy": draw(st.sampled_from(strategies)),
        "call": draw(st.sampled_from(["scan", "scan", "out", "in place", "plan", "start"])),
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


def check(case: dict[str, Any], xp: Any, comm: MPI.Intracomm) -> None:
    """Make the call, and compare this rank's part of the result."""
    rng = np.random.default_rng(case["seed"])
    op, shape, axis = OPS[case["op"]], tuple(case["shape"]), case["axis"]
    n = int(np.prod(shape))
    x = _elements(rng, case, n).reshape(shape)
    marks = heads = None
    if case["segments"]:
        marks = heads = rng.random(n) < case["density"]
        if case["segments"] != "?":
            marks = (np.cumsum(heads) % 5).astype(case["segments"])
        heads = reference.heads_of(marks)
    edges = [0, *case["cuts"], shape[0]]
    mine = slice(edges[comm.rank], edges[comm.rank + 1])
    flat = slice(*(edge * n // max(shape[0], 1) for edge in (mine.start, mine.stop)))

    # ---- what is right -----------------------------------------------------------------
    result = _result_type(op, x.dtype, case["dtype"])
    acc = np.dtype("f") if result == np.float16 else result
    initial = _initial(rng, case["op"], acc) if case["initial"] else None
    form = {name: case[name] for name in ("exclusive", "reverse")} | {"initial": initial}
    identity = op.identity(acc)
    want = reference.scan(op.numpy, x, axis=axis, acc=acc, heads=heads, identity=identity, **form)
    with np.errstate(all="ignore"):
        want = want[flat if axis is None else mine].astype(result)

    # ---- what comes out ----------------------------------------------------------------
    y = _call(case, xp, x[mine], None if marks is None else marks[flat], result, form)
    assert (y.shape, y.dtype) == (want.shape, want.dtype)
    if case["op"] == "logaddexp":
        eps = np.finfo(result).eps
        np.testing.assert_allclose(host(y).astype("d"), want.astype("d"), n * eps, n * eps)
    else:
        np.testing.assert_array_equal(host(y), want)


def _elements(rng: np.random.Generator, case: dict[str, Any], n: int) -> np.ndarray:
    op, code = case["op"], case["type"]
    if op in MAPS:
        return maps(rng, n, MAPS[op]).astype(code)
    if op == "logaddexp":
        return rng.normal(size=n).astype(code)
    draw = {"bitwise": bits, "logical": truths}.get(op.split("_")[0], exact)
    return draw(rng, op, code, n)


def _result_type(op: distscan.Operator, x: np.dtype, dtype: str | None) -> np.dtype:
    if dtype is not None:
        return np.dtype(dtype)
    if not isinstance(op.numpy, np.ufunc):
        return x
    return op.numpy.accumulate(np.zeros(0, x)).dtype


def _initial(rng: np.random.Generator, op: str, acc: np.dtype) -> Any:
    if op in MAPS:
        return int(maps(rng, 1, MAPS[op])[0])
    if acc.kind == "b":
        return bool(rng.integers(2))
    return acc.type(rng.integers(0 if acc.kind == "u" else -5, 6)).item()


def _laid_out(xp: Any, x: np.ndarray, layout: str) -> Any:
    """The same elements, one behind the other or not."""
    if layout == "byte-swapped" and xp is np:
        return x.astype(x.dtype.newbyteorder())
    if layout == "read-only" and xp is np:
        x = x.copy()
        x.flags.writeable = False
        return x
    x = xp.asarray(x)
    if layout == "Fortran":
        return xp.asfortranarray(x)
    if layout == "every second":
        return x.repeat(2, axis=-1)[..., ::2]
    if layout == "backwards":
        return x[::-1].copy()[::-1]
    return x.copy()


def _call(
    case: dict[str, Any],
    xp: Any,
    x: np.ndarray,
    marks: np.ndarray | None,
    result: np.dtype,
    form: dict[str, Any],
) -> Any:
    """Scan the shard in the way that the case says."""
    op, dtype, layout = OPS[case["op"]], case["dtype"], case["layout"]
    strategy = case["strategy"]
    if xp is not np and strategy == "scan-add" and case["axis"] is not None:
        strategy = "auto"  # on GPUs, rows of totals do not go by scan-add
    options = form | {"axis": case["axis"], "strategy": strategy}
    if case["call"] in ("plan", "start"):
        plan = distscan.Plan(
            None,
            x.shape,
            x.dtype,
            op,
            out_dtype=dtype,
            segments=None if marks is None else marks.dtype,
            backend="cpu" if xp is np else "cuda",
            **options,
        )
        given = {} if marks is None else {"segments": xp.asarray(marks.copy())}
        if case["call"] == "plan":
            return plan(xp.asarray(x.copy()), **given)
        plan.start(xp.asarray(x.copy()), **given)
        return plan.wait()
    shard = _laid_out(xp, x, layout)
    options |= {
        "dtype": dtype,
        "segments": None if marks is None else _laid_out(xp, marks, layout),
    }
    shape = x.shape if case["axis"] is not None else (x.size,)
    if case["call"] == "in place" and (shard.shape, shard.dtype) == (shape, result):
        if layout == "read-only":
            shard = shard.copy()
        return distscan.scan(shard, op, out=shard, **options)
    if case["call"] == "scan":
        return distscan.scan(shard, op, **options)
    out = _laid_out(xp, np.zeros(shape, result), layout.replace("read-only", "contiguous"))
    assert distscan.scan(shard, op, out=out, **options) is out
    return out.astype(result)


@pytest.mark.timeout(300)
def test_against_the_definition(xp: Any, comm: MPI.Intracomm) -> None:
    fault: Exception | None = None

    def run(case: dict[str, Any]) -> None:
        nonlocal fault
        own: Exception | None = None
        try:
            check(case, xp, comm)
        except Exception as error:
            own = error
        failed = [rank for rank, wrong in enumerate(comm.allgather(own is not None)) if wrong]
        fault = None
        if failed:
            again = f"DISTSCAN_CASE='{json.dumps(case)}' launch/mpirun.sh {comm.size} "
            fault = AssertionError(f"ranks {failed} fail: {again}python -m pytest {__file__}")
            fault.__cause__ = own

    if given_case := os.environ.get("DISTSCAN_CASE"):
        run(json.loads(given_case))
    elif comm.rank == 0:

        @seed(SEED)
        @settings(
            # On a GPU nearly every case is a kernel to compile.
            max_examples=EXAMPLES if xp is np else max(EXAMPLES // 5, 1),
            database=None,
            deadline=None,
            report_multiple_bugs=False,
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
        )
        @given(cases())
        def lead(case: dict[str, Any]) -> None:
            comm.bcast(case)
            run(case)
            if fault is not None:
                raise fault

        try:
            lead()
        finally:
            comm.bcast(None)
    else:
        while (case := comm.bcast(None)) is not None:
            run(case)
    if fault is not None:
        raise fault
