"""distscan.jax: results and gradients, beside those of JAX on the whole array."""

import doctest
import functools

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="no JAX")
import jax.numpy as jnp  # noqa: E402
from jax import lax  # noqa: E402
from jax.sharding import AxisType, Mesh, PartitionSpec  # noqa: E402

import distscan.jax as scans  # noqa: E402
from distscan.jax import functions  # noqa: E402

pytestmark = pytest.mark.timeout(120)

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_enable_x64", True)
jax.config.update("jax_num_cpu_devices", 4)


def exclusive(function, identity):
    """Return the exclusive form of a cumulative function along axis 0."""

    def scan(x, axis, *, reverse=False):
        y, edge = function(x, axis=axis, reverse=reverse), jnp.full_like(x[:1], identity)
        return jnp.concatenate([y[1:], edge] if reverse else [edge, y[:-1]])

    return scan


def solved(a, b, axis=0, *, reverse=False):
    """The recurrence, step by step."""
    a, b = (jnp.moveaxis(x, axis, 0)[:: -1 if reverse else 1] for x in (a, b))
    h = []
    for factor, term in zip(a, b, strict=True):
        h.append(term if not h else factor * h[-1] + term)
    return jnp.moveaxis(jnp.stack(h)[:: -1 if reverse else 1], 0, axis)


def one(function):
    """A function of a and b that uses a alone."""
    return lambda a, b, *args, **options: function(a, *args, **options) + 0 * b


FUNCTIONS = {
    "sum": (one(scans.cumsum), one(lax.cumsum)),
    "exclusive sum": (
        one(functools.partial(scans.cumsum, exclusive=True)),
        one(exclusive(lax.cumsum, 0)),
    ),
    "product": (one(scans.cumprod), one(lax.cumprod)),
    "exclusive product": (
        one(functools.partial(scans.cumprod, exclusive=True)),
        one(exclusive(lax.cumprod, 1)),
    ),
    "log sum": (one(scans.cumlogsumexp), one(lax.cumlogsumexp)),
    "maximum": (one(scans.cummax), one(lax.cummax)),
    "minimum": (one(scans.cummin), one(lax.cummin)),
    "recurrence": (scans.linear_recurrence, solved),
}
EACH = pytest.mark.parametrize("name", FUNCTIONS)
REVERSE = pytest.mark.parametrize("reverse", [False, True])


def loss(function, weights, *args, **options):
    return lambda a, b: (function(a, b, *args, **options) * weights).sum()


# ---- over ranks ----------------------------------------------------------------------------------


def deal(comm, shape, axis):
    """Return whole arrays, which all ranks draw alike, and the slice of this rank's shard."""
    rng = np.random.default_rng(comm.size)
    lengths = [0 if rank == 1 and comm.size > 2 else 3 + rank for rank in range(comm.size)]
    shape = list(shape)
    shape[axis] = sum(lengths)
    start = sum(lengths[: comm.rank])
    mine = [slice(None)] * len(shape)
    mine[axis] = slice(start, start + lengths[comm.rank])
    return [jnp.asarray(rng.uniform(0.2, 1, shape)) for _ in range(3)], tuple(mine)


@EACH
@REVERSE
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("compiled", [False, True])
def test_ranks(name, reverse, axis, compiled, comm):
    """Results and gradients of uneven shards, also an empty one."""
    if "exclusive" in name and axis:
        pytest.skip("the reference is for axis 0")
    ours, theirs = FUNCTIONS[name]
    (*whole, weights), mine = deal(comm, (2, 3), axis)
    options = {"reverse": reverse}
    local = loss(ours, weights[mine], axis, comm=comm, **options)
    gradient = jax.value_and_grad(local, argnums=(0, 1))
    y = ours(*(x[mine] for x in whole), axis, comm=comm, **options)
    np.testing.assert_allclose(y, theirs(*whole, axis, **options)[mine], rtol=1e-10)
    value, found = (jax.jit(gradient) if compiled else gradient)(*(x[mine] for x in whole))
    whole_loss = jax.value_and_grad(loss(theirs, weights, axis, **options), argnums=(0, 1))
    want, wanted = whole_loss(*whole)
    assert comm.allreduce(float(value)) == pytest.approx(float(want))
    for got, expected in zip(found, wanted, strict=True):
        np.testing.assert_allclose(got, expected[mine], rtol=1e-9, atol=1e-12)


def solved_from(a, b, first, axis=0, *, reverse=False):
    """The recurrence and its last state, step by step from a first state."""
    a, b = (jnp.moveaxis(x, axis, 0)[:: -1 if reverse else 1] for x in (a, b))
    h = [first]
    for factor, term in zip(a, b, strict=True):
        h.append(factor * h[-1] + term)
    return jnp.moveaxis(jnp.stack(h[1:])[:: -1 if reverse else 1], 0, axis), h[-1]


@REVERSE
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("compiled", [False, True])
def test_initial_and_last_states_of_ranks(reverse, axis, compiled, comm):
    """Each rank has the gradient of its own elements; those of a first state are added up."""
    (*whole, weights), mine = deal(comm, (2, 3), axis)
    first = jnp.linspace(1, 2, whole[0].shape[1 - axis])
    form = {"axis": axis, "reverse": reverse}

    def ours(a, b, first):
        h, last = scans.linear_recurrence(a, b, initial=first, return_last=True, comm=comm, **form)
        return (h * weights[mine]).sum() + (last**2).sum() / comm.size, (h, last)

    def theirs(a, b, first):
        h, last = solved_from(a, b, first, **form)
        return (h * weights).sum() + (last**2).sum(), (h, last)

    passes = []
    for function, arrays in ((ours, [x[mine] for x in whole]), (theirs, whole)):
        gradient = jax.value_and_grad(function, argnums=(0, 1, 2), has_aux=True)
        passes.append((jax.jit(gradient) if compiled else gradient)(*arrays, first))
    ((value, (h, last)), got), ((want, (want_h, want_last)), wanted) = passes
    assert comm.allreduce(float(value)) == pytest.approx(float(want))
    np.testing.assert_allclose(h, want_h[mine], rtol=1e-10)
    np.testing.assert_allclose(last, want_last, rtol=1e-10)
    for found, expected in zip(got[:2], wanted[:2], strict=True):
        np.testing.assert_allclose(found, expected[mine], rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(comm.allreduce(np.asarray(got[2])), wanted[2], rtol=1e-9)


OPERATORS = {
    "sum": jnp.add,
    "prod": jnp.multiply,
    "max": jnp.maximum,
    "min": jnp.minimum,
    "logaddexp": jnp.logaddexp,
}
IDENTITIES = {"sum": 0, "prod": 1, "max": -jnp.inf, "min": jnp.inf, "logaddexp": -jnp.inf}


def scanned(x, op, heads, first, axis, *, exclusive, reverse):
    """A scan, step by step."""
    x = jnp.moveaxis(x, axis, 0)
    n, results, running = len(x), {}, None
    for t in range(n)[:: -1 if reverse else 1]:
        begins = (t + 1 < n and heads[t + 1]) if reverse else heads[t]
        running = jnp.full(x.shape[1:], IDENTITIES[op]) if running is None or begins else running
        joined = OPERATORS[op](running, x[t])
        results[t] = OPERATORS[op](first, running if exclusive else joined)
        running = joined
    return jnp.moveaxis(jnp.stack([results[t] for t in range(n)]), 0, axis)


@REVERSE
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("alone", [False, True], ids=["", "exclusive"])
@pytest.mark.parametrize("op", OPERATORS)
def test_scans(op, alone, packed, reverse, comm):
    """Over ranks, and over devices, with gradients, also those of the first value."""
    if op == "logaddexp" and alone:
        pytest.skip("the gradient of the loop is NaN, of -inf and -inf")
    axis = 1
    (x, _, weights), mine = deal(comm, (2, 3), axis)
    heads = np.random.default_rng(comm.size).random(x.shape[axis]) < (0.4 if packed else 0)
    first = jnp.linspace(0.5, 1.5, x.shape[0])
    form = {"exclusive": alone, "reverse": reverse}
    options = {**form, "op": op, "initial": first}
    own = {"segments": jnp.asarray(heads[mine[axis]])} if packed else {}

    def ours(x, first):
        return scans.scan(x, axis, comm=comm, **own, **options | {"initial": first})

    def theirs(x, first):
        return scanned(x, op, heads, first, axis, **form)

    want = theirs(x, first)
    np.testing.assert_allclose(ours(x[mine], first), want[mine], rtol=1e-10)
    if np.isfinite(want).all():
        loss_of = lambda f, w: lambda *args: (f(*args) * w).sum()  # noqa: E731
        gradient = jax.jit(jax.grad(loss_of(ours, weights[mine]), argnums=(0, 1)))
        found, expected = gradient(x[mine], first), jax.grad(loss_of(theirs, weights), (0, 1))
        wanted = expected(x, first)
        np.testing.assert_allclose(found[0], wanted[0][mine], rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(comm.allreduce(np.asarray(found[1])), wanted[1], rtol=1e-9)
    integers = (10 * x).astype(int)
    if packed and op != "logaddexp":
        y = scans.scan(integers[mine], axis, op, comm=comm, reverse=reverse, **own)
        nothing = jnp.full(x.shape[0], IDENTITIES[op])
        want = scanned(
            integers.astype(float), op, heads, nothing, axis, **form | {"exclusive": False}
        )
        np.testing.assert_array_equal(y, want[mine])


@pytest.mark.one_rank
@REVERSE
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("alone", [False, True], ids=["", "exclusive"])
@pytest.mark.parametrize("op", OPERATORS)
def test_scans_of_devices(op, alone, packed, reverse, rng):
    x = jnp.asarray(rng.uniform(0.2, 1, (8, 3)))
    heads, first = rng.random(8) < (0.4 if packed else 0), jnp.linspace(0.5, 1.5, 3)
    form, line = {"exclusive": alone, "reverse": reverse}, PartitionSpec("shards")

    def solve(x, heads):
        own = {"segments": heads} if packed else {}
        return scans.scan(x, 0, op, axis_name="shards", initial=first, **own, **form)

    mesh = Mesh(np.array(jax.devices()[:4]), ("shards",), axis_types=(AxisType.Auto,))
    sharded = jax.shard_map(solve, mesh=mesh, in_specs=(line, line), out_specs=line)
    want = scanned(x, op, heads, first, 0, **form)
    np.testing.assert_allclose(jax.jit(sharded)(x, jnp.asarray(heads)), want, rtol=1e-10)


TOTALS = {
    "sum": (scans.cumsum, jnp.sum, {}),
    "exclusive sum": (scans.cumsum, jnp.sum, {"exclusive": True}),
    "exclusive product": (scans.cumprod, jnp.prod, {"exclusive": True}),
    "log sum": (scans.cumlogsumexp, jax.nn.logsumexp, {}),
}


@REVERSE
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("name", TOTALS)
def test_totals_of_ranks(name, axis, reverse, comm):
    """All ranks have them, also those without elements; their gradients are added up."""
    function, reduce, form = TOTALS[name]
    (x, *_), mine = deal(comm, (2, 3), axis)

    def ours(x):
        y, total = function(x, axis, comm=comm, reverse=reverse, return_total=True, **form)
        return (total**2).sum() / comm.size + 0 * y.sum(), total

    (_, total), found = jax.jit(jax.value_and_grad(ours, has_aux=True))(x[mine])
    np.testing.assert_allclose(total, reduce(x, axis=axis), rtol=1e-10)
    wanted = jax.grad(lambda x: (reduce(x, axis=axis) ** 2).sum())(x)
    np.testing.assert_allclose(found, wanted[mine], rtol=1e-9)


def test_totals_of_no_elements(comm):
    for function, want in ((scans.cumsum, 0), (scans.cumprod, 1), (scans.cumlogsumexp, -jnp.inf)):
        total = function(jnp.zeros((0, 2)), 0, comm=comm, return_total=True)[1]
        np.testing.assert_array_equal(total, [want, want])


def winners(x, axis, *, minimum, reverse):
    """The places of cumulative maxima or minima; of equal ones the last in scan order."""
    x = np.moveaxis(np.asarray(x), axis, 0)[:: -1 if reverse else 1]
    places, best, place = [], x[0], np.zeros(x.shape[1:], int)
    for t, row in enumerate(x):
        wins = row <= best if minimum else row >= best
        best, place = np.where(wins, row, best), np.where(wins, t, place)
        places.append(len(x) - 1 - place if reverse else place)
    return np.moveaxis(np.stack(places)[:: -1 if reverse else 1], 0, axis)


@REVERSE
@pytest.mark.parametrize("minimum", [False, True])
@pytest.mark.parametrize("axis", [0, 1])
def test_indices(axis, minimum, reverse, comm):
    (x, *_), mine = deal(comm, (2, 3), axis)
    x, function = jnp.round(4 * x), scans.cummin if minimum else scans.cummax
    form = {"reverse": reverse, "return_indices": True}
    want = winners(x, axis, minimum=minimum, reverse=reverse)
    y, places = jax.jit(lambda x: function(x, axis, comm=comm, **form))(x[mine])
    np.testing.assert_array_equal(places, want[mine])
    gradient = jax.grad(lambda x: function(x, axis, comm=comm, **form)[0].sum())(x[mine])
    assert gradient.shape == y.shape
    if comm.size == 1:
        x = jnp.tile(x, (4, 4))
        spec = PartitionSpec(*("shards" if i == axis else None for i in range(2)))
        mesh = Mesh(np.array(jax.devices()[:4]), ("shards",), axis_types=(AxisType.Auto,))
        sharded = jax.shard_map(
            lambda x: function(x, axis, axis_name="shards", **form)[1],
            mesh=mesh, in_specs=spec, out_specs=spec,
        )  # fmt: skip
        want = winners(x, axis, minimum=minimum, reverse=reverse)
        np.testing.assert_array_equal(jax.jit(sharded)(x), want)


@pytest.mark.one_rank
@REVERSE
@pytest.mark.parametrize("name", TOTALS)
def test_totals_of_devices(name, reverse, rng):
    function, reduce, form = TOTALS[name]
    x = jnp.asarray(rng.uniform(0.2, 1, (8, 3)))
    mesh = Mesh(np.array(jax.devices()[:4]), ("shards",), axis_types=(AxisType.Auto,))
    sharded = jax.shard_map(
        lambda x: function(x, 0, axis_name="shards", reverse=reverse, return_total=True, **form),
        mesh=mesh, in_specs=PartitionSpec("shards"),
        out_specs=(PartitionSpec("shards"), PartitionSpec()),
    )  # fmt: skip
    np.testing.assert_allclose(jax.jit(sharded)(x)[1], reduce(x, axis=0), rtol=1e-10)
    got = jax.jit(jax.grad(lambda x: (sharded(x)[1] ** 2).sum()))(x)
    np.testing.assert_allclose(got, jax.grad(lambda x: (reduce(x, axis=0) ** 2).sum())(x))


def solved_in_segments(a, b, heads, axis=0, *, reverse=False):
    """The recurrence of each segment for itself."""
    ends = [*np.flatnonzero(heads), len(heads)]
    parts = []
    for begin, end in zip([0, *ends], ends, strict=False):
        pair = (lax.slice_in_dim(x, begin, end, axis=axis) for x in (a, b))
        parts += [solved(*pair, axis, reverse=reverse)] if end > begin else []
    return jnp.concatenate(parts, axis)


@REVERSE
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("compiled", [False, True])
def test_segments_of_ranks(reverse, axis, compiled, comm):
    """They begin at any rank, and end at another one."""
    (*whole, weights), mine = deal(comm, (2, 3), axis)
    heads = np.random.default_rng(comm.size).random(whole[0].shape[axis]) < 0.4
    own = jnp.asarray(heads[mine[axis]])
    ours = functools.partial(scans.linear_recurrence, segments=own, comm=comm)
    form = {"axis": axis, "reverse": reverse}
    gradient = jax.value_and_grad(loss(ours, weights[mine], **form), argnums=(0, 1))
    value, found = (jax.jit(gradient) if compiled else gradient)(*(x[mine] for x in whole))
    whole_loss = lambda a, b: (solved_in_segments(a, b, heads, **form) * weights).sum()  # noqa: E731
    want, wanted = jax.value_and_grad(whole_loss, argnums=(0, 1))(*whole)
    squares = lambda f: lambda a, b: sum((g**2).sum() for g in jax.grad(f, (0, 1))(a, b))  # noqa: E731
    local = loss(ours, weights[mine], **form)
    again = jax.grad(squares(local), (0, 1))(*(x[mine] for x in whole))
    for got, expected in zip(again, jax.grad(squares(whole_loss), (0, 1))(*whole), strict=True):
        np.testing.assert_allclose(got, expected[mine], rtol=1e-9, atol=1e-12)
    assert comm.allreduce(float(value)) == pytest.approx(float(want))
    for got, expected in zip(found, wanted, strict=True):
        np.testing.assert_allclose(got, expected[mine], rtol=1e-9, atol=1e-12)


@pytest.mark.one_rank
@REVERSE
@pytest.mark.parametrize("axis", [0, 1])
def test_segments_of_devices(reverse, axis, rng):
    a, b, weights = (jnp.asarray(rng.uniform(0.2, 1, (8, 8))) for _ in range(3))
    heads = jnp.asarray([False, True, False, False, True, True, False, False])
    mesh = Mesh(np.array(jax.devices()[:4]), ("shards",), axis_types=(AxisType.Auto,))
    spec, line = PartitionSpec(*[None] * axis, "shards"), PartitionSpec("shards")

    def solve(a, b, heads):
        return scans.linear_recurrence(
            a, b, axis, segments=heads, reverse=reverse, axis_name="shards"
        )

    sharded = jax.shard_map(solve, mesh=mesh, in_specs=(spec, spec, line), out_specs=spec)
    loop = functools.partial(solved_in_segments, axis=axis, reverse=reverse)
    np.testing.assert_allclose(jax.jit(sharded)(a, b, heads), loop(a, b, heads), rtol=1e-10)
    passes = []
    for function in (jax.jit(sharded), loop):
        passes.append(jax.grad(loss(function, weights, heads), argnums=(0, 1))(a, b))
    for found, expected in zip(*passes, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


def test_the_last_state_of_no_elements(comm):
    nothing, first = jnp.zeros((0, 2)), jnp.array([3.0, 4.0])
    for initial, want in ((first, first), (None, jnp.zeros(2))):
        _, last = scans.linear_recurrence(
            nothing, nothing, initial=initial, return_last=True, comm=comm
        )
        np.testing.assert_array_equal(last, want)


@pytest.mark.one_rank
@REVERSE
@pytest.mark.parametrize("axis", [0, 1])
def test_initial_and_last_states_of_devices(reverse, axis, rng):
    a, b = (jnp.asarray(rng.uniform(0.2, 1, (8, 4))) for _ in range(2))
    first = jnp.linspace(1, 2, b.shape[1 - axis])
    mesh = Mesh(np.array(jax.devices()[:2]), ("shards",), axis_types=(AxisType.Auto,))
    spec = PartitionSpec(*[None] * axis, "shards")

    def solve(a, b, first):
        return scans.linear_recurrence(
            a, b, axis, initial=first, return_last=True, reverse=reverse, axis_name="shards"
        )

    none = PartitionSpec()
    sharded = jax.shard_map(solve, mesh=mesh, in_specs=(spec, spec, none), out_specs=(spec, none))
    loss_of = lambda function: lambda *x: sum((y**2).sum() for y in function(*x))  # noqa: E731
    loop = functools.partial(solved_from, axis=axis, reverse=reverse)
    for found, want in zip(jax.jit(sharded)(a, b, first), loop(a, b, first), strict=True):
        np.testing.assert_allclose(found, want, rtol=1e-10)
    got, wanted = (
        jax.jit(jax.grad(loss_of(function), argnums=(0, 1, 2)))(a, b, first)
        for function in (sharded, loop)
    )
    for found, want in zip(got, wanted, strict=True):
        np.testing.assert_allclose(found, want, rtol=1e-9)


@pytest.mark.parametrize("name", ["sum", "product", "recurrence"])
def test_second_derivatives(name, comm):
    ours, theirs = FUNCTIONS[name]
    (*whole, weights), mine = deal(comm, (2,), 0)

    def squared(function, weights, **options):
        def of_a(a, b):
            gradient = jax.grad(loss(function, weights, 0, **options))(a, b)
            return (gradient**2).sum()

        return jax.grad(of_a)

    got = squared(ours, weights[mine], comm=comm)(*(x[mine] for x in whole))
    want = squared(theirs, weights)(*whole)
    np.testing.assert_allclose(got, want[mine], rtol=1e-9, atol=1e-12)


def test_zeros_in_products(comm):
    (x, _, weights), mine = deal(comm, (2,), 0)
    x = x.at[::3].set(0)
    got = jax.grad(lambda x: (scans.cumprod(x, 0, comm=comm) * weights[mine]).sum())(x[mine])
    want = jax.grad(lambda x: (lax.cumprod(x) * weights).sum())(x)
    np.testing.assert_allclose(got, want[mine], rtol=1e-9, atol=1e-12)


def test_the_gradient_of_equal_maxima(comm):
    """The last one that wins gets it."""
    x = jnp.zeros(2)
    got = jax.grad(lambda x: scans.cummax(x, 0, comm=comm).sum())(x)
    np.testing.assert_array_equal(got, [1, 1])


@pytest.mark.parametrize("code", ["float32", "bfloat16", "int32", "complex128"])
def test_types(code, comm):
    """The type of the result is that of x, as in JAX."""
    x = jnp.ones((3, 2), code)
    y = scans.cumsum(x, 0, comm=comm)
    assert y.dtype == x.dtype
    np.testing.assert_array_equal(
        np.asarray(y)[:, 1].real.astype(float), np.arange(1, 4) + 3 * comm.rank
    )


def test_complex_numbers(comm):
    """Gradients have JAX's convention."""
    (a, b, weights), mine = deal(comm, (2,), 0)
    a, b = a * jnp.exp(2j * b), b * (1 + 1j)
    ours = loss(scans.linear_recurrence, weights[mine], comm=comm)
    got = jax.grad(lambda a, b: ours(a, b).real, argnums=(0, 1))(a[mine], b[mine])
    want = jax.grad(lambda a, b: loss(solved, weights)(a, b).real, argnums=(0, 1))(a, b)
    for found, expected in zip(got, want, strict=True):
        np.testing.assert_allclose(found, expected[mine], rtol=1e-9, atol=1e-12)


def test_refusals(comm, monkeypatch):
    x = jnp.ones((3, 2))
    with pytest.raises(ValueError, match="axis is 2"):
        scans.cumsum(x, 2, comm=comm)
    with pytest.raises(TypeError, match="b is int32"):
        scans.linear_recurrence(x.astype("int32"), x.astype("int32"), comm=comm)
    with pytest.raises(ValueError, match="not alike"):
        scans.linear_recurrence(x, x[:1], comm=comm)
    with pytest.raises(ValueError, match=r"not bool\[3\]"):
        scans.linear_recurrence(x, x, segments=jnp.ones(3), comm=comm)
    with pytest.raises(ValueError, match="initial is not for segments"):
        scans.linear_recurrence(x, x, initial=x[0], segments=jnp.ones(3, bool), comm=comm)
    if comm.size == 1:
        return
    last = comm.rank == comm.size - 1
    with pytest.raises(Exception, match="disagree on the shape beyond axis 0"):
        jax.block_until_ready(scans.cumsum(x if last else x[:, :1], 0, comm=comm))
    first = x[0] if last else None
    with pytest.raises(Exception, match="disagree on whether there is an initial state"):
        jax.block_until_ready(scans.scan(x, 0, exclusive=True, initial=first, comm=comm))
    y, pull = jax.vjp(lambda x: scans.cumsum(x, 0, comm=comm), x)
    if not last:
        monkeypatch.setenv("DISTSCAN_WAIT", "0.3")
        with pytest.raises(Exception, match="did not come to a backward pass"):
            jax.block_until_ready(pull(y))


# ---- over devices --------------------------------------------------------------------------------


def over_devices(function, axis, dims, **options):
    """Return the function of whole arrays whose shards lie on four devices along ``axis``."""
    spec = PartitionSpec(*("shards" if i == axis else None for i in range(dims)))
    return jax.shard_map(
        lambda a, b: function(a, b, axis, axis_name="shards", **options),
        mesh=Mesh(np.array(jax.devices()[:4]), ("shards",), axis_types=(AxisType.Auto,)),
        in_specs=(spec, spec),
        out_specs=spec,
    )


@pytest.mark.one_rank
@EACH
@REVERSE
@pytest.mark.parametrize("axis", [0, 1])
def test_devices(name, reverse, axis, rng):
    if "exclusive" in name and axis:
        pytest.skip("the reference is for axis 0")
    ours, theirs = FUNCTIONS[name]
    *whole, weights = (jnp.asarray(rng.uniform(0.2, 1, (8, 4))) for _ in range(3))
    sharded = over_devices(ours, axis, 2, reverse=reverse)
    want = theirs(*whole, axis, reverse=reverse)
    np.testing.assert_allclose(jax.jit(sharded)(*whole), want, rtol=1e-10)
    ours = lambda a, b: (sharded(a, b) * weights).sum()  # noqa: E731
    passes = ours, loss(theirs, weights, axis, reverse=reverse)
    got, wanted = (jax.jit(jax.grad(each, argnums=(0, 1)))(*whole) for each in passes)
    for found, expected in zip(got, wanted, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.one_rank
def test_shards_of_weight_zero():
    """Logarithms of zero on the first devices are no NaN."""
    x = jnp.asarray([-jnp.inf, -jnp.inf, -jnp.inf, 1.0, 2.0, -jnp.inf, 0.5, 3.0])
    log_sum = over_devices(one(scans.cumlogsumexp), 0, 1)
    np.testing.assert_allclose(jax.jit(log_sum)(x, jnp.zeros(8)), lax.cumlogsumexp(x))
    later = jax.jit(jax.grad(lambda x: log_sum(x, jnp.zeros(8))[3:].sum()))(x)
    np.testing.assert_allclose(later, jax.grad(lambda x: lax.cumlogsumexp(x)[3:].sum())(x))


@pytest.mark.one_rank
def test_docstrings():
    with jax.enable_x64(new_val=False):
        found = doctest.testmod(functions)
        assert found.failed == 0
        assert found.attempted > 5
