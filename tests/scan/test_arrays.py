"""What may be passed as x and out: views, sequences, structures, tuples, foreign arrays."""

import os
import sys
import tracemalloc

import numpy as np
import pytest
from hypothesis import strategies as st
from mpi4py import MPI

import distscan
from distscan.bench.uses import MATRICES
from support.arrays import Exporter, Foreign, Library, exported_read_only, host
from support.campaigns import run_campaign
from support.cases import pairs
from support.data import exact, keys_of
from support.processes import everywhere
from support.reference import check, wanted

# ---- what may be passed as x and out: views, sequences, other libraries' arrays ------------------


def test_sequences_and_scalars(comm):
    np.testing.assert_array_equal(
        distscan.scan([1, 2]), np.cumsum(np.tile([1, 2], comm.size))[2 * comm.rank :][:2]
    )
    np.testing.assert_array_equal(distscan.scan(3), [3 * comm.rank + 3])
    assert distscan.scan(np.float32(3)).dtype == np.float32
    np.testing.assert_array_equal(distscan.scan(3, axis=0), [3 * comm.rank + 3])


def test_dlpack(cut, rng):
    x = exact(rng, "sum", "d", 100)
    mine = cut(100)
    y = distscan.scan(Foreign(x[mine]))
    assert isinstance(y, Foreign)
    np.testing.assert_array_equal(y.array, np.cumsum(x)[mine])
    out = Foreign(np.full(mine.stop - mine.start, -1.0))
    assert distscan.scan(Foreign(x[mine]), out=out) is out
    np.testing.assert_array_equal(out.array, np.cumsum(x)[mine])


def of_every_function(array, whole, mine):
    """Return the results of all public functions for this rank's part of ``whole``, by name.

    ``array`` makes this rank's array from a NumPy array.
    """
    x, mask, ones = array(whole[mine]), whole[mine] > 0, np.ones(mine.stop - mine.start)
    y, last = distscan.linear_recurrence(array(ones), x, return_last=True)
    results = {"recurrence": y, "last": last, "kept": distscan.compact(x, array(mask))[0]}
    results["selected"] = distscan.select(x, POSITIVE)[0]
    results["pairs"] = distscan.scan((x, array(ones)), PAIRS)[1]
    results["flags"] = distscan.segment_flags(array(np.array([0, 2, 2, 5])))
    results["cuts"] = distscan.partition(array(abs(whole[mine])), 3)
    results["segments"] = distscan.scan(x, segments=array(mask))
    for name in NAMES:
        results[name] = getattr(distscan, name)(x)
    results["initial"] = distscan.cumulative_sum(x, include_initial=True)
    return results


NAMES = [name for name in distscan.__all__ if name.lstrip("flogna").startswith("cum")]
POSITIVE = distscan.Predicate("positive", numpy=lambda x: x > 0, cuda="x > 0")
PAIRS = distscan.Operator(
    "pairs",
    numpy=lambda a, b: (a[0] + b[0], a[1] + b[1]),
    cuda="T{a.x0 + b.x0, a.x1 + b.x1}",
    arity=2,
)


def test_a_library_that_only_exports(xp, cut, rng):
    """As pyarrow's arrays: a scan of them gives what a scan of NumPy's and CuPy's gives."""
    x = exact(rng, "sum", "d", 60)
    mine = cut(60)
    wanted = of_every_function(xp.asarray, x, mine)
    results = of_every_function(lambda array: Exporter(xp.asarray(array)), x, mine)
    assert len(wanted) > 16
    for name, want in wanted.items():
        assert type(results[name]) is type(want), name
        xp.testing.assert_array_equal(results[name], want, name)
    out = Exporter(xp.zeros(len(x[mine])))
    assert distscan.scan(Exporter(xp.asarray(x[mine])), out=out) is out
    xp.testing.assert_array_equal(out.array, wanted["cumsum"])


@pytest.mark.parametrize(
    "x",
    [np.array([True, False, True]), np.array(3), np.zeros(0), np.arange(12)[::-3], np.eye(3).T],
    ids=["bool", "0-d", "empty", "mirrored", "transposed"],
)
@pytest.mark.parametrize("read_only", [False, True])
def test_forms_of_exports(x, read_only):
    x = x.copy(order="K") if read_only else x
    x.flags.writeable = not read_only
    for axis in (None, 0):
        y = distscan.scan(Exporter(x), axis=axis)
        assert type(y) is np.ndarray
        np.testing.assert_array_equal(y, distscan.scan(x, axis=axis), strict=True)


def test_dlpack_of_an_unknown_device():
    class Elsewhere(Foreign):
        def __dlpack_device__(self):
            return (8, 0)

    with pytest.raises(TypeError, match=r"segments is on DLPack device 8 \(Metal\); copy it to"):
        distscan.scan(np.zeros(3), segments=Elsewhere(np.zeros(3)))


def test_dlpack_of_read_only_memory(cut, rng):
    """JAX's arrays are: they are read, never written."""
    x = exact(rng, "sum", "d", 100)
    mine = cut(100)
    given = x[mine].copy()
    given.flags.writeable = False
    y = distscan.scan(Foreign(given))
    np.testing.assert_array_equal(y.array, np.cumsum(x)[mine])
    np.testing.assert_array_equal(given, x[mine])
    with pytest.raises(ValueError, match="out is read-only, as far as DLPack says"):
        distscan.scan(x[mine], out=Foreign(given))


class Unversioned(Foreign):
    """As libraries are that know no DLPack 1.0: they cannot say what may be written."""

    def __dlpack__(self, *, stream=None):
        return self.array.__dlpack__(stream=stream)


def test_dlpack_of_an_older_version(cut, rng):
    x = exact(rng, "sum", "d", 100)
    y = distscan.scan(Unversioned(x[cut(100)]))
    np.testing.assert_array_equal(y.array, np.cumsum(x)[cut(100)])
    with pytest.raises(ValueError, match="as far as DLPack says; pass its NumPy array"):
        distscan.scan(x[cut(100)], out=Unversioned(x[cut(100)].copy()))


@pytest.mark.gpu
def test_dlpack_of_read_only_memory_on_a_gpu(cp):
    """CuPy takes it as if it may be written. An earlier call of the same kind changes nothing."""

    class Frozen(Exporter):
        is_read_only = False

        def __dlpack__(self, **options):
            export = exported_read_only if self.is_read_only else type(self.array).__dlpack__
            return export(self.array, **options)

    out = Frozen(cp.zeros(3))
    assert distscan.scan(cp.ones(3), out=out) is out
    out.is_read_only = True
    with pytest.raises(ValueError, match="out is read-only, as far as DLPack says"):
        distscan.scan(cp.ones(3), out=out)


@pytest.mark.parametrize("kind", [BufferError, RuntimeError, ValueError])
def test_memory_that_is_not_shared(kind):
    """PyTorch's answer for a tensor that requires a gradient."""

    class Tensor(Foreign):
        def __dlpack__(self, **options):
            raise kind("Can't export tensors that require gradient, use tensor.detach()")

    with pytest.raises(
        TypeError, match=r"x is a Tensor that does not share its memory: .*detach\(\)"
    ):
        distscan.scan(Tensor(np.zeros(3)))


def test_immutable_output():
    array = type("ArrayImpl", (Foreign,), {"__module__": "jaxlib._jax"})(np.zeros(3))
    with pytest.raises(ValueError, match="out is a ArrayImpl of JAX"):
        distscan.scan(np.zeros(3), out=array)


def test_library_found_by_its_module(monkeypatch, cut, rng):
    """PyTorch's tensors have no ``__array_namespace__``."""
    x = exact(rng, "sum", "d", 100)
    monkeypatch.setitem(sys.modules, "tensors", Library)
    tensor = type("Tensor", (Foreign,), {"__module__": "tensors.deep", "__array_namespace__": None})
    monkeypatch.delattr(Foreign, "__array_namespace__")
    del tensor.__array_namespace__
    derived = type("Image", (tensor,), {"__module__": __name__})
    for kind in (tensor, derived):
        y = distscan.scan(kind(x[cut(100)]))
        assert isinstance(y, Foreign)
        np.testing.assert_array_equal(y.array, np.cumsum(x)[cut(100)])


def test_nothing_is_copied_on_the_way_in():
    x, out = np.arange(200_000.0), np.empty(100_000)
    for given in (x[:100_000], x[::2], x[::-2], Foreign(x[:100_000])):
        distscan.scan(given, comm=MPI.COMM_SELF, out=out)
        tracemalloc.start()
        distscan.scan(given, comm=MPI.COMM_SELF, out=out)
        assert tracemalloc.get_traced_memory()[1] < out.nbytes / 2
        tracemalloc.stop()


def test_dtype_in_another_byte_order(cut, rng):
    """As of an input that is in it: results are native, as in NumPy."""
    x = exact(rng, "sum", "d", 100).astype(">f4")
    y = distscan.cumsum(x[cut(100)], dtype=x.dtype)
    assert y.dtype == np.dtype("f") == np.cumsum(x, dtype=x.dtype).dtype
    np.testing.assert_array_equal(y, np.cumsum(x)[cut(100)])
    with pytest.raises(TypeError, match="does not accumulate in >i4, but in bool"):
        distscan.scan(x[cut(100)], "logical_or", dtype=">i4")


@pytest.mark.parametrize("shift", [-3, -1, 1, 5])
def test_output_overlaps_input(shift, xp, cut, rng):
    """As in NumPy: the result is that of the input as it was."""
    x = exact(rng, "sum", "l", 50001)
    mine = cut(x.size)
    n = mine.stop - mine.start
    base = xp.zeros(n + 10, "l")
    base[5 : 5 + n] = xp.asarray(x[mine])
    out = base[5 + shift : 5 + shift + n]
    distscan.scan(base[5 : 5 + n], out=out)
    np.testing.assert_array_equal(out.get() if xp is not np else out, np.cumsum(x)[mine])


def test_same_memory_another_type(cut, rng):
    """In place over other bits: int64 in, float64 out, one buffer."""
    x = rng.integers(-9, 9, 40001)
    mine = cut(x.size)
    buffer = x[mine].copy()
    distscan.scan(buffer, out=buffer.view("d"))
    np.testing.assert_array_equal(buffer.view("d"), np.cumsum(x.astype("d"))[mine])


# ---- pyTorch and JAX themselves, where they are installed: in without a copy, out as the same kind

N = 4001


@pytest.fixture(params=["cpu", pytest.param("gpu", marks=pytest.mark.gpu)])
def number(request):
    """The number of this rank's GPU; None for the CPU."""
    return None if request.param == "cpu" else request.getfixturevalue("cp").cuda.Device().id


def test_torch(number, cut, rng):
    torch = pytest.importorskip("torch")
    x, part = exact(rng, "sum", "f", N), cut(N)
    given = torch.tensor(x[part], device="cpu" if number is None else f"cuda:{number}")
    y = distscan.scan(given)
    assert type(y) is torch.Tensor
    assert y.device == given.device
    np.testing.assert_array_equal(y.cpu().numpy(), wanted(x)[part])
    np.testing.assert_array_equal(given.cpu().numpy(), x[part])
    assert distscan.scan(given, out=given) is given
    np.testing.assert_array_equal(given.cpu().numpy(), wanted(x)[part])


def test_jax(number, cut, rng):
    # JAX would take three quarters of the GPU's memory.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    jax = pytest.importorskip("jax")
    try:
        device = jax.devices("cpu")[0] if number is None else jax.devices("gpu")[number]
    except RuntimeError as error:
        pytest.skip(f"JAX has no such device: {error}")
    x, part = exact(rng, "sum", "f", N), cut(N)
    given = jax.device_put(x[part], device)
    y = distscan.scan(given)
    assert isinstance(y, jax.Array)
    assert y.devices() == {device}
    np.testing.assert_array_equal(np.asarray(y), wanted(x)[part])
    np.testing.assert_array_equal(np.asarray(given), x[part])
    with pytest.raises(ValueError, match="JAX"):
        distscan.scan(given, out=given)


# ---- structures with arrays and structures in their fields ---------------------------------------

# Matrices, whose product does not commute; and how many there are, in a structure of its own.
MATRIX = np.dtype([("m", "i8", (2, 2)), ("of", [("count", "u4"), ("sizes", "i2", 3)])])


def product(a, b):
    made = np.empty_like(b)
    made["m"] = a["m"] @ b["m"]
    made["of"]["count"] = a["of"]["count"] + b["of"]["count"]
    made["of"]["sizes"] = a["of"]["sizes"] + b["of"]["sizes"]
    return made


PRODUCT = distscan.Operator("product", product, identity=([[1, 0], [0, 1]], (0, (0, 0, 0))))


def matrices_of_fields(rng, n):
    x = np.empty(n, MATRIX)
    x["m"] = rng.integers(-3, 4, (n, 2, 2))
    x["of"]["count"], x["of"]["sizes"] = 1, rng.integers(0, 9, (n, 3))
    return x


def test_structures_with_arrays_and_structures_inside(strategy, cut, rng):
    for n in (0, 1, 20, 1003):
        check(matrices_of_fields(rng, n), PRODUCT, cut=cut, strategy=strategy)
    x = matrices_of_fields(rng, 100)
    for initial in (None, ([[2, 1], [1, 1]], (7, (1, 2, 3)))):
        check(x, PRODUCT, cut=cut, strategy=strategy, exclusive=True, initial=initial)
    check(x.astype(MATRIX.newbyteorder()), PRODUCT, cut=cut, strategy=strategy)


def test_structures_inside_in_segments_rows_and_plans(cut, rng):
    x = matrices_of_fields(rng, 300)
    check(x, PRODUCT, cut=cut, segments=rng.random(300) < 0.05)
    check(x, PRODUCT, cut=cut, call="plan")
    check(x.reshape(100, 3), PRODUCT, cut=cut, axis=0)


# ---- scans of tuples of arrays: each element is spread over arrays of one shape ------------------

# Words: the number that the letters are in base 5, and 5 to the power of the length; modulo 2^64.
WORDS = distscan.Operator(
    "words",
    numpy=lambda a, b: (a[0] * b[1] + b[0], a[1] * b[1]),
    cuda="{a.x0 * b.x1 + b.x0, a.x1 * b.x1}",
    identity=(0, 1),
    arity=2,
)
# The first of the largest elements, its index, and whether it was marked.
LARGEST = distscan.Operator(
    "largest",
    numpy=lambda a, b: tuple(np.where(b[0] > a[0], y, x) for x, y in zip(a, b, strict=True)),
    cuda="b.x0 > a.x0 ? b : a",
    arity=3,
)


def words(rng, n):
    return rng.integers(0, 5, n, np.uint64), np.full(n, 5, np.uint64)


def largest(rng, n):
    return rng.integers(0, 50, n).astype("f"), np.arange(n), rng.random(n) < 0.5


def matrices(rng, n):
    """Permutations with signs: their products are exact."""
    made = np.zeros((n, 4, 4), "f")
    orders = rng.permuted(np.tile(np.arange(4), (n, 1)), axis=1)
    np.put_along_axis(made, orders[..., None], rng.choice([-1, 1], (n, 4, 1)), axis=2)
    return tuple(made.reshape(n, 16).T.copy())


CASES = {"words": (WORDS, words), "largest": (LARGEST, largest), "matrices": (MATRICES, matrices)}
FIRST = {"words": (3, 5), "largest": (-9, -9, True), "matrices": tuple(np.eye(4).flat)}
FORMS = {
    "plain": {},
    "exclusive": {"exclusive": True},
    "reverse": {"reverse": True},
    "reverse, exclusive": {"reverse": True, "exclusive": True},
}
SEGMENTED = {
    "flags": lambda rng, n: rng.random(n) < 0.05,
    "int32": lambda rng, n: keys_of(rng, n, 0.05, "i4"),
    "float64": lambda rng, n: keys_of(rng, n, 0.5, "f8"),
}


@pairs(
    case=CASES,
    form=FORMS,
    segmented=[None, *SEGMENTED],
    n=[0, 1, 40, 1001],
    call=["scan", "out", "in place"],
    layout=["contiguous", "every second", "backwards"],
)
def test_every_form(case, form, segmented, n, call, layout, xp, cut, rng):
    op, make = CASES[case]
    options = FORMS[form]
    first = FIRST[case] if options.get("exclusive") or n == 40 else None
    segments = None if segmented is None else SEGMENTED[segmented](rng, n)
    check(make(rng, n), op, xp=xp, cut=cut, call=call, layout=layout, initial=first,
          segments=segments, **options)  # fmt: skip


@pairs(case=CASES, axis=[0, 1, 2], reverse=[False, True])
def test_axes(case, axis, reverse, xp, cut, rng):
    op, make = CASES[case]
    x = tuple(array.reshape(20, 7, 5) for array in make(rng, 700))
    check(x, op, xp=xp, cut=cut, axis=axis, reverse=reverse)


def test_in_place_and_in_the_place_of_another(xp, cut, rng):
    a, b = words(rng, 5000)
    b = b + rng.integers(0, 2, 5000, np.uint64) * np.uint64(2)
    want, mine = wanted((a, b), WORDS), cut(5000)
    for order in ((0, 1), (1, 0)):
        x = tuple(xp.asarray(array[mine].copy()) for array in (a, b))
        out = tuple(x[i] for i in order)
        assert distscan.scan(x, WORDS, out=out) is out
        for result, result_of_all in zip(out, want, strict=True):
            np.testing.assert_array_equal(host(result), result_of_all[mine])


def test_other_libraries(cut, rng):
    """Results are arrays of the library of each array; so they are when the call is repeated."""
    (a, b), mine = words(rng, 1000), cut(1000)
    given = Foreign(a[mine]), b[mine]
    for _ in range(2):
        first, second = distscan.scan(given, WORDS)
        assert (type(first), type(second)) == (Foreign, np.ndarray)
        for result, want in zip((first.array, second), wanted((a, b), WORDS), strict=True):
            np.testing.assert_array_equal(result, want[mine])


def test_repeated_calls_check_what_they_are_given(xp, comm):
    """A call like an earlier one is checked once; one that differs in any array, again."""
    n = 100 + comm.rank
    x = xp.arange(n, dtype=np.uint64), xp.full(n, 5, np.uint64)
    for _ in range(2):
        distscan.scan(x, WORDS, out=(xp.empty_like(x[0]), xp.empty_like(x[1])))
        with pytest.raises(ValueError, match=r"x\[1\] has shape"):
            distscan.scan((x[0], x[1][1:]), WORDS)
        with pytest.raises(ValueError, match=r"out\[1\] has shape"):
            distscan.scan(x, WORDS, out=(xp.empty_like(x[0]), xp.empty_like(x[1])[1:]))
        with pytest.raises(TypeError, match=r"out must be an array"):
            distscan.scan(x, WORDS, out=(xp.empty_like(x[0]), [0] * n))


def test_shifted_and_strided(xp, cut, rng):
    """Arrays of one memory, of which no two are aligned alike; results shifted by an element."""
    mine = cut(3000)
    n = mine.stop - mine.start
    memory = rng.integers(0, 5, 6 * n + 9, np.uint64)
    given = xp.asarray(memory.copy())
    for x, y, to in ((0, 1, 2), (1, n + 2, 3 * n), (0, 1, 1)):
        here, there = memory[x : x + n], memory[y : y + n]
        parts = distscan.scan((given[x : x + n], given[y : y + n]), WORDS)
        again = xp.asarray(memory.copy())
        out = (again[to : to + n], again[5 * n : 6 * n])
        distscan.scan((again[x : x + n], again[y : y + n]), WORDS, out=out)
        for result, other in zip(parts, out, strict=True):
            np.testing.assert_array_equal(host(result), host(other))
        strided = xp.asarray(np.stack([here, there], 1))
        for result, other in zip(distscan.scan((strided[:, 0], strided[:, 1]), WORDS), parts,
                                 strict=True):  # fmt: skip
            np.testing.assert_array_equal(host(result), host(other))


def test_any_cut_and_form(xp, comm):
    """Shards of any sizes, also empty ones."""

    def check_case(case):
        seed, sizes, form = case
        rng, start = np.random.default_rng(seed), sum(sizes[: comm.rank])
        x, mine = words(rng, sum(sizes)), slice(start, start + sizes[comm.rank])
        heads = rng.random(sum(sizes)) < 0.2
        check(x, WORDS, xp=xp, cut=lambda n: mine, initial=(0, 1), segments=heads, **FORMS[form])

    sizes = st.lists(st.integers(0, 60), min_size=comm.size, max_size=comm.size)
    run_campaign(
        comm,
        st.tuples(st.integers(0, 2**31), sizes, st.sampled_from(sorted(FORMS))),
        check_case,
        25,
    )


def test_types(xp, cut):
    """Each array keeps its own; half types accumulate in float32."""
    op = distscan.Operator(
        "sums", lambda a, b: tuple(x + y for x, y in zip(a, b, strict=True)),
        "{a.x0 + b.x0, a.x1 + b.x1, (signed char)(a.x2 + b.x2)}", arity=3,
    )  # fmt: skip
    mine = cut(5000)
    x = [np.ones(5000, code)[mine] for code in "edb"]
    got = distscan.scan(tuple(xp.asarray(array) for array in x), op)
    assert [result.dtype.char for result in got] == ["e", "d", "b"]
    for code, result in zip("edb", got, strict=True):
        want = np.arange(1, 5001).astype(code)
        np.testing.assert_array_equal(host(result), want[mine])
    out = tuple(xp.empty(mine.stop - mine.start, code) for code in "dif")
    distscan.scan(tuple(xp.asarray(array) for array in x), op, out=out)
    np.testing.assert_array_equal(host(out[0]), np.arange(1, 5001)[mine])


ONE = np.ones(3)
FAULTS = {
    "one array": (TypeError, "x is ndarray; the operator takes a tuple of 2", lambda: (ONE, {})),
    "three": (TypeError, "x is 3 arrays", lambda: ((ONE,) * 3, {})),
    "shapes": (ValueError, r"x\[1\] has shape \(2,\)", lambda: ((ONE, ONE[:2]), {})),
    "text": (TypeError, r"x\[1\] is <U1", lambda: ((ONE, np.array(["a"] * 3)), {})),
    "out": (ValueError, r"out\[1\] has shape", lambda: ((ONE, ONE), {"out": (ONE, ONE[:2])})),
    "dtype": (TypeError, "each array of a tuple keeps", lambda: ((ONE, ONE), {"dtype": "f"})),
    "segments": (ValueError, "segments has shape", lambda: ((ONE, ONE), {"segments": [True]})),
    "axis": (ValueError, "axis 1 is out of bounds", lambda: ((ONE, ONE), {"axis": 1})),
}


@pytest.mark.parametrize("case", FAULTS)
def test_faults(case, comm):
    kind, message, make = FAULTS[case]
    x, options = make() if comm.rank == comm.size - 1 else ((ONE, ONE), {})
    everywhere(comm, kind, message, lambda: distscan.scan(x, WORDS, **options))


def test_faults_of_operators(comm, cut):
    x = (np.ones(50)[cut(50)],) * 2
    for function, message in (
        (lambda a, b: a[0], "returned|must return 2 arrays"),
        (lambda a, b: (a[0], np.zeros(0)), "'mine, array 1' returned shape"),
        (lambda a, b: (a[0], b[0] * 1j), "returned complex128"),
    ):
        op = distscan.Operator("mine", function, arity=2)
        everywhere(comm, (TypeError, ValueError), message, lambda op=op: distscan.scan(x, op))
    with pytest.raises(TypeError, match="arity= must be"):
        distscan.Operator("mine", np.minimum, arity=0)
    for arity in (22, 65):
        with pytest.raises(TypeError, match="at most 168 bytes in 64 arrays are possible"):
            distscan.scan(
                (ONE.astype("f8" if arity < 65 else "i1"),) * arity,
                distscan.Operator("mine", MATRICES.numpy, arity=arity),
            )
