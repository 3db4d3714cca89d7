"""Scans of tuples of arrays: each element is spread over arrays of one shape."""

import numpy as np
import pytest
from hypothesis import strategies as st

import distscan
from distscan.bench.uses import MATRICES
from support.foreign import Foreign
from support.host import host
from support.keys import keys_of
from support.led import led
from support.pairs import pairs
from support.reference import check, wanted
from support.together import everywhere

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
        for result, expected in zip(out, want, strict=True):
            np.testing.assert_array_equal(host(result), expected[mine])


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
    led(
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
    with pytest.raises(TypeError, match="at most 64 are possible"):
        distscan.scan((ONE,) * 9, distscan.Operator("mine", MATRICES.numpy, arity=9))
