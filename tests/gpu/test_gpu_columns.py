"""Scans along an axis that is not the last: tiles, strips, what goes between tiles. GPU only."""

import warnings
from itertools import product

import numpy as np
import pytest
from mpi4py import MPI

import distscan
from distscan.core import dtypes, operators
from distscan.core.form import Extents, Form
from distscan.core.operators import Operator
from support.data import CODES, OPS, exact
from support.gpu import Placed, reals
from support.operators import COMPOSE, HALVES, NIBBLES, maps
from support.steps import of_size, whole

pytestmark = [pytest.mark.gpu, pytest.mark.one_rank, pytest.mark.timeout(300)]

MOST = 1 << 22  # elements
NAMES = "exclusive", "reverse", "begins"  # an exclusive scan begins behind something
EVERY = [dict(zip(NAMES, each, strict=True)) for each in product((False, True), repeat=3)]
FORMS = [form for form in EVERY if form["begins"] or not form["exclusive"]]


def draw(rng, op, code, outer, n, inner):
    """An array [outer, n, inner] whose scans along n are exact."""
    name = op.name if op.name in OPS else "sum"
    columns = exact(rng, name, code, outer * inner * n).reshape(outer, inner, n)
    return np.ascontiguousarray(columns.swapaxes(1, 2))


def accumulated(op, x, acc):
    """Scan ``x`` [outer, n, inner] along n, in type ``acc``."""
    x = x.astype(acc)
    if op.is_ufunc:
        return op.numpy.accumulate(x, axis=1, dtype=acc)
    for i in range(1, x.shape[1]):
        x[:, i] = op.combine(x[:, i - 1], x[:, i])
    return x


def expected(op, types, x, form, offset=None):
    """The scan of ``x`` [outer, n, inner] along n, behind ``offset`` or what the form says."""
    x = x[:, ::-1] if form.reverse else x
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", np.exceptions.ComplexWarning)
        y = accumulated(op, x, types.acc)
        behind = form.seed if offset is None else offset
        if behind is not None:
            y = op.combine(np.broadcast_to(behind, y.shape), y)
        if form.exclusive:
            first = np.broadcast_to(behind, (y.shape[0], 1, y.shape[2])).astype(types.acc)
            y = np.concatenate([first, y[:, :-1]], axis=1)
        return (y[:, ::-1] if form.reverse else y).astype(types.out)


def height_of(types, op, inner):
    """Rows of a tile of a matrix that has many."""
    from distscan.cuda import columns, definitions

    registers = definitions.register_types(op, types)
    return columns.Tiling(registers, 1 << 40, Form(Extents(inner=inner))).height


def form_of(op, types, outer, inner, exclusive=False, reverse=False, begins=False):
    value = 3 if op.name in ("sum", "max") else op.identity(types.acc)
    first = np.array(value, types.acc) if begins else None
    extents = Extents(outer=outer, inner=inner)
    return Form(extents, exclusive=exclusive, reverse=reverse, seed=first)


def check(cp, op, types, x, form, shift_x=0, shift_out=0, in_place=False):
    """Scan from one address to another, twice; nothing beside the result may change."""
    from distscan.cuda import steps as cuda

    want = cp.asarray(expected(op, types, x, form).reshape(-1))
    source = Placed(cp, x.size, types.x, shift_x)
    target = source if in_place else Placed(cp, x.size, types.out, shift_out)
    steps = cuda.SinglePass(op, types, of_size(x.shape[1], form))
    for _ in range(1 if in_place else 2):
        reals(source.array)[...] = reals(cp.asarray(x.reshape(-1)))
        whole(steps, source.array, target.array)
        right = (reals(target.array) == reals(want)).all()
        right &= source.untouched() & target.untouched()
        assert bool(right), f"{x.shape}, {types}, {form}, {shift_x} and {shift_out} bytes shifted"
        reals(target.array)[...] = 0


def typed(name, *codes):
    op = name if isinstance(name, Operator) else operators.resolve(name)
    return op, dtypes.resolve(op, *codes)


@pytest.mark.parametrize(
    "inner", [2, 3, 4, 8, 31, 32, 33, 50, 96, 127, 128, 129, 530, 544, 1000, 4096, 4097]
)
@pytest.mark.parametrize("code", "fd")
def test_edges(code, inner, cp, rng):
    """One row less, as many, one more: than one, than tiles; one scan, some, many."""
    op, types = typed("sum", code)
    height = height_of(types, op, inner)
    for outer in (1, 2, 7, 3000):
        for n in (
            1,
            2,
            3,
            4,
            20,
            100,
            height - 1,
            height,
            height + 1,
            5 * height + 3,
            40 * height + 1,
        ):
            if outer * n * inner > MOST:
                continue
            x = draw(rng, op, code, outer, n, inner)
            for form in FORMS:
                check(cp, op, types, x, form_of(op, types, outer, inner, **form))


TYPES = [(op, code, dtype) for op in OPS for code in CODES for dtype in (None, code)]
TYPES += [("sum", *codes) for codes in ("ie", "Fe", "D?", "f?", "bhl", "dde", "iil", "lib", "bbl")]


@pytest.mark.parametrize("case", TYPES)
def test_types(case, cp, rng):
    op, types = typed(*case)
    # In the last one a thread walks down each vector of columns.
    for shape in ((3, 500, 20), (1, 1500, 7), (2, 700, 257), (1, 300, 1024), (400, 9, 300)):
        x = draw(rng, op, "b" if types == typed("sum", "i", "e")[1] else case[1], *shape)
        x = x.astype(types.x)  # of int32, sums in float32 would be rounded
        for form in (FORMS[0], FORMS[-1]):
            check(cp, op, types, x, form_of(op, types, shape[0], shape[2], **form))


@pytest.mark.parametrize("codes", ["bbb", "HHH", "fff", "ddd", "DDD", "bll", "efe", "lib"])
def test_addresses(codes, cp, rng):
    """Arrays that begin at any address that their type can have, and results in their place."""
    op, types = typed("sum", *codes)
    for outer, n, inner in ((1, 700, 3), (2, 500, 16), (1, 400, 64), (1, 200, 513), (400, 9, 300)):
        x = draw(rng, op, codes[0], outer, n, inner)
        form = form_of(op, types, outer, inner)
        for shift_out in range(0, 16, types.out.alignment):
            for shift_x in range(0, 16, types.x.alignment):
                if shift_x in (0, types.x.alignment) or shift_x == shift_out:
                    check(cp, op, types, x, form, shift_x, shift_out)
            if types.x == types.out:
                check(cp, op, types, x, form, shift_out, in_place=True)


@pytest.mark.parametrize(
    ("k", "op", "codes"),
    [(32, COMPOSE, "L"), (16, HALVES, "I"), (16, HALVES, "ILI"), (4, NIBBLES, "B"),
     (4, NIBBLES, "BLL")],
)  # fmt: skip
@pytest.mark.parametrize("inner", [2, 3, 16, 33, 320])
def test_order(inner, k, op, codes, cp, rng):
    """Operands may not be exchanged: in slices, warps, tiles, groups of tiles."""
    op, types = typed(op, *codes)
    height = height_of(types, op, inner)
    shapes = [(1, 3 * height + 1), (5, height // 2 + 3), (1, min(20 * height, 150_000))]
    for outer, n in [*shapes, (120_000 // inner, 19)]:
        if outer * n * inner > MOST:
            continue
        x = maps(rng, outer * n * inner, k).reshape(outer, n, inner)
        for form in (FORMS[0], FORMS[-1]):
            check(cp, op, types, x, form_of(op, types, outer, inner, **form))


@pytest.mark.parametrize("inner", [2, 4, 7, 31, 64, 250, 1024])
def test_many_tiles(inner, cp, rng):
    """Far more tiles than run at once, whose totals go through every group and window."""
    op, types = typed("sum", "i")
    height = height_of(types, op, inner)
    n = min(1700 * height, (1 << 25) // inner) + 5
    for outer, rows in ((1, n), (3, n // 3), (n // 7, 7)):
        x = rng.integers(-(2**31), 2**31, (outer, rows, inner), "i")
        for form in (FORMS[0], FORMS[-1]):
            check(cp, op, types, x, form_of(op, types, outer, inner, **form))


@pytest.mark.parametrize("inner", [2, 7, 64, 1000])
@pytest.mark.parametrize("code", "fd")
def test_same_bits(code, inner, cp, rng):
    """Roundings do not depend on which block was ahead."""
    from distscan.cuda import steps as cuda

    op, types = typed("sum", code)
    height = height_of(types, op, inner)
    n = min(1000 * height, MOST // inner)
    host = rng.random((1, n, inner)).astype(code)
    x = cp.asarray(host.reshape(-1))
    steps = cuda.SinglePass(op, types, of_size(n, inner=inner))
    results = [steps.empty() for _ in range(5)]
    for y in results:
        whole(steps, x, y)
    first = results[0].view(np.uint8)
    assert all(bool((y.view(np.uint8) == first).all()) for y in results)
    want = np.cumsum(host, axis=1, dtype="d").reshape(-1)
    np.testing.assert_allclose(results[0].get(), want, rtol=1e-5 if code == "f" else 1e-12)


@pytest.mark.parametrize("inner", [2, 5, 32, 100, 129, 4096])
@pytest.mark.parametrize(
    "case",
    [("sum", "f"), ("sum", "b"), ("max", "e"), ("prod", "D"), (COMPOSE, "L")],
    ids=["sum-f", "sum-b", "max-e", "prod-D", "compose-L"],
)
def test_totals_and_offsets(case, inner, cp, rng):
    """Two shards of one matrix: the total of the earlier one is the offset of the later."""
    from distscan.cuda import steps as cuda

    op, types = typed(*case)
    height = height_of(types, op, inner)
    for n, kind in product((1, 2, height, height + 1, 9 * height + 5), FORMS):
        if 2 * n * inner > MOST:
            continue
        if op is COMPOSE:
            x = maps(rng, 2 * n * inner).reshape(1, 2 * n, inner)
        else:
            x = draw(rng, op, case[1], 1, 2 * n, inner)
        form = form_of(op, types, 1, inner, **kind)
        want = expected(op, types, x, form)
        steps = cuda.ReduceScan(op, types, of_size(n, form))
        halves = [slice(0, n), slice(n, 2 * n)]
        offset = None
        for half in reversed(halves) if form.reverse else halves:
            shard = cp.asarray(x[0, half].reshape(-1))
            out = steps.empty()
            call = steps.begin(shard, out)
            total = call.total().copy()
            assert total.shape == (inner,)
            assert total.dtype == types.acc
            assert not call.head
            steps.finish(call, form.seed if offset is None else offset)
            np.testing.assert_array_equal(out.get().reshape(n, inner), want[0, half])
            behind = form.seed if offset is None else offset
            offset = total
            if behind is not None:
                offset = op.combine(np.broadcast_to(behind, offset.shape), offset)


def test_one_function_with_more_and_less_shared_memory(cp, rng):
    """A later plan that takes less leaves an earlier one as much as it needs."""
    plans = {}
    for inner in (32, 20):  # the longer rows of one and the same kernel come first
        plans[inner] = distscan.Plan(MPI.COMM_SELF, (999, inner), "f", axis=0, backend="cuda")
    kernels = [plan._scan.steps.work.scan for plan in plans.values()]
    assert kernels[0].function == kernels[1].function
    assert kernels[0].block > kernels[1].block
    for inner, plan in plans.items():
        x = rng.integers(-9, 9, (999, inner)).astype("f")
        np.testing.assert_array_equal(plan(cp.asarray(x)).get(), np.cumsum(x, 0))


def test_no_rows(cp):
    from distscan.cuda import steps as cuda

    op, types = typed("sum", "f")
    steps = cuda.ReduceScan(op, types, of_size(0, inner=5))
    empty = cp.empty(0, "f")
    assert whole(steps, empty, empty, np.ones(5, "f")).empty


def test_more_rows_than_32_bits_count(cp):
    from distscan.cuda import steps as cuda

    op, types = typed("max", "b")
    n, at = (1 << 31) + 9, (1 << 31) + 3
    if cp.cuda.Device().mem_info[0] < 6 * n:
        pytest.skip("too little memory")
    x = cp.zeros(2 * n, "b")
    x[2 * at + 1] = 5
    steps = cuda.SinglePass(op, types, of_size(n, inner=2))
    whole(steps, x, x)
    assert bool((x[0::2] == 0).all())
    assert bool((x[1 : 2 * at : 2] == 0).all())
    assert bool((x[2 * at + 1 :: 2] == 5).all())


def test_strides(cp, rng):
    """An array that is not contiguous is read as it stands."""
    from distscan.cuda import steps as cuda

    op, types = typed("sum", "l")
    x = draw(rng, op, "l", 1, 3000, 12)
    spread = cp.zeros(2 * x.size, "l")
    spread[::2] = cp.asarray(x.reshape(-1))
    steps = cuda.SinglePass(op, types, of_size(3000, inner=12))
    out = steps.empty()
    whole(steps, spread[::2], out)
    np.testing.assert_array_equal(out.get().reshape(x.shape), np.cumsum(x, axis=1))
