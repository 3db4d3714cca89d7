"""Operators of one's own, over numbers and structures; those that record the order of operands."""

import math

import numpy as np
import pytest

import distscan
from distscan import DistscanError
from support.host import host
from support.together import everywhere
from support.words import (
    BASE,
    FINGERPRINTS,
    PRINT,
    WORDS,
    digits,
    fingerprints,
    letters,
    printed,
    words,
)


@pytest.mark.parametrize("n", [0, 1, 5, 33, 2049, 20001])
def test_words(n, strategy, xp, cut, rng):
    x = letters(rng, n)
    y = distscan.scan(xp.asarray(x[cut(n)]), WORDS, strategy=strategy)
    np.testing.assert_array_equal(host(y), words(x)[cut(n)])


@pytest.mark.parametrize("n", [0, 1, 5, 33, 2049, 20001])
def test_structures(n, strategy, cut, rng):
    x = digits(rng, n)
    y = distscan.scan(x[cut(n)], FINGERPRINTS, strategy=strategy)
    assert y.dtype == PRINT
    np.testing.assert_array_equal(y, printed(x)[cut(n)])


def test_operators_are_associative_and_do_not_commute(rng):
    for op, (a, b, c) in ((WORDS, letters(rng, 3)), (FINGERPRINTS, digits(rng, 3))):
        assert op.combine(op.combine(a, b), c) == op.combine(a, op.combine(b, c))
        assert op.combine(a, b) != op.combine(b, a) or a == b
        identity = op.identity(a.dtype)
        assert op.combine(identity, a) == op.combine(a, identity) == a


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
def test_forms_of_structures(exclusive, reverse, cut, rng):
    x = digits(rng, 333)
    seen = x[::-1] if reverse else x
    want = (
        np.concatenate([np.array([(0, 1)], PRINT), printed(seen)])[:-1]
        if exclusive
        else printed(seen)
    )
    y = distscan.scan(x[cut(333)], FINGERPRINTS, exclusive=exclusive, reverse=reverse)
    np.testing.assert_array_equal(y, (want[::-1] if reverse else want)[cut(333)])


def test_structures_in_other_layouts(cut, rng):
    """Byte order and padding are the input's own affair; in place, and strided."""
    x = digits(rng, 500)
    mine = cut(500)
    y = distscan.scan(x.astype(PRINT.newbyteorder())[mine], FINGERPRINTS)
    np.testing.assert_array_equal(y, printed(x)[mine])
    padded = np.dtype({"names": ["digits", "power"], "formats": ["u8", "u8"], "offsets": [4, 16]})
    spread = np.zeros(2 * (mine.stop - mine.start), padded)[::2]
    spread["digits"], spread["power"] = x["digits"][mine], BASE
    operator = distscan.Operator("padded", lambda a, b: fingerprints(a, b).astype(padded))
    y = distscan.scan(spread, operator)
    np.testing.assert_array_equal(y["digits"], printed(x)["digits"][mine])
    y = x[mine].copy()
    distscan.scan(y, FINGERPRINTS, out=y)
    np.testing.assert_array_equal(y, printed(x)[mine])


def test_identity_is_a_value_a_function_or_absent(comm):
    x = np.arange(1, 4) + comm.rank
    whole = np.concatenate(comm.allgather(x))
    want = np.concatenate([[0], np.cumsum(whole)[:-1]])[3 * comm.rank :][:3]
    for identity in (0, lambda dtype: dtype.type(0), np.int8(0)):
        op = distscan.Operator("mine", lambda a, b: a + b, identity=identity)
        np.testing.assert_array_equal(distscan.scan(x, op, exclusive=True), want)
    op = distscan.Operator("mine", lambda a, b: a + b)
    np.testing.assert_array_equal(distscan.scan(x, op, exclusive=True, initial=0), want)
    everywhere(comm, ValueError, "operator 'mine' has no identity",
               lambda: distscan.scan(x, op, exclusive=True))  # fmt: skip


@pytest.mark.parametrize(
    ("code", "identity", "kind", "text"),
    [
        ("l", 1.5, ValueError, "has 1.5, which int64 does not have"),
        ("l", lambda dtype: 1.5, ValueError, "has 1.5, which int64 does not have"),
        ("l", np.nan, ValueError, "has nan, which int64 does not have"),
        ("b", 300, OverflowError, "has 300, which is out of bounds for int8"),
        ("d", 1j, TypeError, "has 1j, which is complex"),
        ("d", np.ma.masked, ValueError, "is masked"),
        ("l,d", (0, np.ma.masked), ValueError, "is masked"),
        ("l,d", (0.5, 0), ValueError, "has 0.5, which int64 does not have"),
    ],
)
def test_an_identity_that_the_type_does_not_have(code, identity, kind, text, comm):
    op = distscan.Operator("mine", lambda a, b: b, identity=identity)
    everywhere(comm, kind, f"identity of operator 'mine' {text}",
               lambda: distscan.scan(np.zeros(3, code), op, exclusive=True))  # fmt: skip


@pytest.mark.parametrize("identity", [None, lambda dtype: 1 // 0])
def test_an_identity_that_no_shard_needs(identity, comm):
    """Only an empty shard, and an exclusive scan without ``initial``, need it."""
    op = distscan.Operator("mine", np.add, identity=identity, mpi="SUM", mpi_kinds="i")
    np.testing.assert_array_equal(distscan.scan([1, 1], op), 2 * comm.rank + np.arange(1, 3))


def test_ufuncs_of_ones_own(comm):
    """The ufunc's accumulate decides the types, of whosever operator."""
    x = np.arange(3, 7, dtype="b") + comm.rank
    whole = np.concatenate(comm.allgather(x))
    op = distscan.Operator("hypot", np.hypot, cuda="hypot(a, b)", identity=0)
    y = distscan.scan(x, op)
    want = np.hypot.accumulate(whole)
    assert y.dtype == want.dtype
    np.testing.assert_allclose(y, want[4 * comm.rank :][:4], rtol=1e-3)


@pytest.mark.parametrize(
    ("dtype", "op", "message"),
    [
        ([("a", "f8")], "sum", r"x is \[\('a', '<f8'\)\]; .*structures"),
        ([("a", "f8", 2)], "sum", "x is .*structures"),
        ([("a", "f8"), ("b", "O")], WORDS, "x is .*, in which field 'b' is object"),
        ([("a", "U3", 2)], WORDS, "x is .*, in which field 'a' is "),
        ([("a", [("b", "f8"), ("c", "M8[s]")])], WORDS, r"in which field 'a.c' is datetime64\[s\]"),
        ([("a", [("b", "f8")], 2), ("d", [("e", [("f", "S1")], 3)])], WORDS, "field 'd.e.f' is"),
        ([("a", "f8", 0)], WORDS, "x is .*, in which field 'a' is "),
        ([], WORDS, r"x is \[\]; a scan takes"),
    ],
)
def test_structures_that_are_refused(dtype, op, message, comm):
    everywhere(comm, TypeError, message, lambda: distscan.scan(np.zeros(3, dtype), op))


def test_one_structure_throughout(comm):
    x, other = np.zeros(3, PRINT), np.dtype([("a", "f8"), ("b", "f8")])
    for options in ({"dtype": other}, {"out": np.zeros(3, other)}, {"dtype": "f8"}):
        everywhere(comm, TypeError, "same structured type",
                   lambda given=options: distscan.scan(x, FINGERPRINTS, **given))  # fmt: skip


def chosen(a, b):
    """The latest that is not 0, as one writes it in NumPy; a view of nothing would not do."""
    assert a.shape == b.shape
    assert b.size
    made = a.copy()
    made[b != 0] = b[b != 0]
    return made


@pytest.mark.parametrize("reverse", [False, True])
def test_functions_are_given_arrays_of_one_shape(reverse, strategy, cut, rng):
    op = distscan.Operator("chosen", chosen, identity=0)
    want = np.frompyfunc(lambda a, b: b or a, 2, 1).accumulate
    for shape in ((1,), (3000,), (40, 3)):
        x, mine = rng.choice([0, 0, 5, 7], shape), cut(shape[0])
        y = distscan.scan(x[mine], op, axis=0, initial=2, reverse=reverse, strategy=strategy)
        seen = np.concatenate([np.full((1, *shape[1:]), 2), x[::-1] if reverse else x])
        whole = want(seen.astype(object), axis=0)[1:]
        np.testing.assert_array_equal(y, (whole[::-1] if reverse else whole)[mine])
    x, heads = rng.choice([0, 5, 7], 3000), rng.random(3000) < 0.1
    y = distscan.scan(x[cut(3000)], op, segments=heads[cut(3000)], exclusive=True)
    runs = [
        want(np.append(0, run).astype(object))[:-1] for run in np.split(x, np.flatnonzero(heads))
    ]
    np.testing.assert_array_equal(y, np.concatenate(runs)[cut(3000)])


FOR_NUMBERS = {
    "gcd": (math.gcd, TypeError),
    "hypot": (math.hypot, TypeError),
    "max": (max, ValueError),
    "later": (lambda a, b: b if b else a, ValueError),
}


@pytest.mark.parametrize("name", FOR_NUMBERS)
@pytest.mark.parametrize("who", ["last", "every"])
def test_functions_of_numbers_are_told_so(name, who, strategy, comm):
    """On every rank; few elements are combined one by one, and then Python's max may do."""
    function, kind = FOR_NUMBERS[name]
    op = distscan.Operator(name, function)
    x = np.arange(99) if who == "every" or comm.rank == comm.size - 1 else np.arange(0)
    message = f"operator '{name}': its numpy= function does not take arrays (.*); numpy.vectorize"
    text = everywhere(comm, kind, message, lambda: distscan.scan(x, op, strategy=strategy))
    assert who == "every" or comm.size == 1 or text.startswith(f"rank {comm.size - 1}: ")


@pytest.mark.parametrize("made", [np.vectorize, lambda f: np.frompyfunc(f, 2, 1)])
def test_functions_of_numbers_made_for_arrays(made, strategy, cut, rng):
    x = rng.choice([60, 90, 84, 1 << 40], 2000)
    op = distscan.Operator("gcd", made(math.gcd))
    y = distscan.scan(x[cut(2000)], op, strategy=strategy)
    np.testing.assert_array_equal(y, np.gcd.accumulate(x)[cut(2000)])


def test_other_faults_of_functions_are_their_own(comm):
    def fails(a, b):
        raise ValueError("a bad day")

    op = distscan.Operator("mine", fails)
    text = everywhere(comm, ValueError, "a bad day", lambda: distscan.scan(np.arange(3), op))
    assert "vectorize" not in text


def test_operators_that_cannot_be():
    with pytest.raises(TypeError, match="numpy= must be a function"):
        distscan.Operator("mine", "a + b")
    with pytest.raises(TypeError, match="cuda= must be text"):
        distscan.Operator("mine", np.add, lambda a, b: a + b)


def test_initial_is_one_value(comm, cut, rng):
    x = digits(rng, 200)
    y = distscan.scan(x[cut(200)], FINGERPRINTS, initial=[(0, 1)])
    np.testing.assert_array_equal(y, printed(x)[cut(200)])
    everywhere(comm, ValueError, r"not an array of shape \(2,\)",
               lambda: distscan.scan(x, FINGERPRINTS, initial=[(0, 1), (0, 1)]))  # fmt: skip


def test_plans_of_structures(comm, cut, rng):
    x = digits(rng, 200)
    mine = cut(200)
    shape = mine.stop - mine.start
    plan = distscan.Plan(comm, shape, PRINT, FINGERPRINTS, backend="cpu")
    np.testing.assert_array_equal(plan(x[mine]), printed(x)[mine])


@pytest.mark.gpu
def test_no_plans_of_structures_on_a_gpu(cp, comm):
    everywhere(comm, TypeError, "CuPy has no structured arrays",
               lambda: distscan.Plan(comm, 3, PRINT, FINGERPRINTS, backend="cuda"))  # fmt: skip


@pytest.mark.gpu
def test_on_a_gpu_without_a_cuda_form(cp, comm):
    op = distscan.Operator("mine", lambda a, b: a + b)
    everywhere(comm, TypeError, "operator 'mine' has no CUDA form",
               lambda: distscan.scan(cp.zeros(3), op))  # fmt: skip


@pytest.mark.gpu
def test_compile_errors_on_every_rank(cp, comm):
    op = distscan.Operator("mine", lambda a, b: a + b, "const T c = a;\nreturn c + nonsense;")
    text = everywhere(comm, DistscanError, "nonsense", lambda: distscan.scan(cp.zeros(3), op))
    assert "operator mine(2): error" in text
    assert "return c + nonsense;" in text
