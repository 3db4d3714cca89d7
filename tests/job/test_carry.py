"""The running value from chunk to chunk, and what it is for the exchange: against a plain loop."""

from itertools import pairwise

import numpy as np
import pytest

from distscan import build
from distscan.core import form as forms
from distscan.core import operators
from distscan.core.form import Extents, Form
from distscan.core.steps import Edges
from distscan.job.shard import Carry
from distscan.mpi.exscan import Exscan
from support import reference
from support.cuts import two_cuts
from support.maps import COMPOSE, maps
from support.pairs import pairs
from support.pending import Known
from support.words import WORDS, join, letters, words

KINDS = ["none", "flags", "keys"]


def cuts_of(rng, n, most):
    """Cut n elements at random: chunks of up to ``most``, some without elements."""
    cuts = np.cumsum(rng.integers(0, most + 1, 2 * n // most + 2))
    return [0, *cuts[cuts < n].tolist(), n]


def marks_of(kind, rng, n, density):
    """Flags or keys of the whole, or None."""
    heads = rng.random(n) < density
    if kind == "none":
        return None
    return heads if kind == "flags" else (np.cumsum(heads) * 2 + 1) % 7


class Chunks:
    """A shard in chunks: their scans by the CPU's steps, behind what the carry says."""

    def __init__(self, x, marks, rng, most, **form):
        self.x, self.marks, self.form = x, marks, form
        cuts = cuts_of(rng, len(x), most)
        self.pieces = [slice(*pair) for pair in pairwise(cuts)]
        if form["reverse"]:
            self.pieces.reverse()

    def begin(self, piece, strategy, out=None):
        x = self.x[piece]
        marks = None if self.marks is None else self.marks[piece]
        compiled = build.make(
            Extents.of(x.shape, 0 if x.ndim > 1 else None), x.dtype, None, self.form["op"],
            exclusive=self.form["exclusive"], initial=self.form["initial"],
            reverse=self.form["reverse"], segments=None if marks is None else marks.dtype,
            strategy=strategy, ranks=1,
        )  # fmt: skip
        out = np.empty(x.size, x.dtype) if out is None else out
        return compiled, compiled.steps.begin(x.reshape(-1), out, marks)

    def carry(self):
        first = build.make(
            Extents.of((0,), None), self.x.dtype, None, self.form["op"], ranks=1,
            exclusive=self.form["exclusive"], initial=self.form["initial"],
        ).form.first  # fmt: skip
        segmented = self.marks is not None
        return Carry(self.form["op"], self.x.dtype, first, segmented=segmented)

    def total(self):
        carry = self.carry()
        for piece in self.pieces:
            carry.advance(self.begin(piece, "reduce-scan")[1])
        return carry

    def scan(self, offset, strategy="reduce-scan"):
        carry, y = self.carry(), np.empty_like(self.x)
        carry.start(offset)
        for piece in self.pieces:
            compiled, pending = self.begin(piece, strategy, y[piece].reshape(-1))
            before = carry.before(pending)
            kept = None if before is None else before.copy()
            carry.advance(pending)
            if before is not None:  # the steps use it after the carry has advanced
                np.testing.assert_array_equal(before, kept)
            compiled.steps.finish(pending, before)
        return y, carry


def forms_of(rng, op, initial):
    return {
        "op": op,
        "exclusive": bool(rng.integers(2)),
        "initial": initial if rng.integers(2) else None,
        "reverse": bool(rng.integers(2)),
    }


def loop(x, marks, form, **axis):
    """The scan of the whole, element by element."""
    op = form["op"]
    keywords = {key: form[key] for key in ("exclusive", "initial", "reverse")}
    heads = None if marks is None else reference.heads_of(marks)
    identity = None if op.identity is None else op.identity(x.dtype)
    return reference.scan(op.numpy, x, identity=identity, heads=heads, **keywords, **axis)


@pytest.mark.one_rank
@pytest.mark.parametrize("strategy", ["reduce-scan", "scan-add"])
@pytest.mark.parametrize("most", [1, 2, 7, 100])
def test_words(most, strategy, rng):
    """Letters keep the order in which chunks are combined."""
    x = letters(rng, 150)
    form = {"op": WORDS, "exclusive": False, "initial": None, "reverse": False}
    y, carry = Chunks(x, None, rng, most, **form).scan(None, strategy)
    np.testing.assert_array_equal(y, words(x))
    assert carry.total()[()] == y[-1]
    assert (carry.empty, carry.head, carry.edges) == (False, False, None)


@pytest.mark.one_rank
@pairs(kind=KINDS, density=[0, 0.02, 0.3, 1], turn=range(12))
def test_segments(kind, density, turn, rng):
    """Heads lie inside chunks, at their first elements, and in the first element of all."""
    for _ in range(3):
        n, most = (int(i) for i in rng.integers(1, 60, 2))
        x, marks = maps(rng, n), marks_of(kind, rng, n, density)
        form = forms_of(rng, COMPOSE, int(maps(rng, 1)[0]))
        chunks = Chunks(x, marks, rng, most, **form)
        y, carry = chunks.scan(None)
        np.testing.assert_array_equal(y, loop(x, marks, form))
        after = loop(x, marks, form | {"exclusive": False})
        assert carry.result() == after[0 if form["reverse"] else -1]
        assert carry.head == (kind != "none" and inner_heads(marks, form["reverse"]) > 0)


def inner_heads(marks, reverse):
    """The segments that begin in a shard; at its first element only a flag says so."""
    heads = reference.heads_of(marks)
    if reverse:
        return int(heads[1:].sum())
    return int(heads.sum() if marks.dtype == bool else heads[1:].sum())


@pytest.mark.parametrize("density", [0, 0.02, 0.5])
@two_cuts
@pytest.mark.parametrize("kind", KINDS)
def test_ranks(kind, cut, density, comm, rng):
    """The carry of a shard is what the ranks exchange; some have no elements, or no chunk."""
    own = np.random.default_rng([int(rng.integers(1 << 32)), comm.rank])
    for _ in range(5):
        n, most = (int(i) for i in rng.integers(1, 80, 2))
        x, marks = maps(rng, n), marks_of(kind, rng, n, density)
        form = forms_of(rng, COMPOSE, int(maps(rng, 1)[0]))
        mine = cut(n)
        chunks = Chunks(x[mine], None if marks is None else marks[mine], own, most, **form)
        total = chunks.total()
        whole = Form(Extents(n=n), form["exclusive"], form["reverse"], marks is not None)
        edges = None if marks is None else marks.dtype
        offset = Exscan(COMPOSE, x.dtype, whole, edges=edges)(comm, total)
        y, _ = chunks.scan(offset)
        np.testing.assert_array_equal(y, loop(x, marks, form)[mine])


@two_cuts
@pytest.mark.parametrize("long", [False, True], ids=["whole", "pieces"])
@pytest.mark.parametrize("strategy", ["reduce-scan", "scan-add"])
def test_rows(strategy, long, cut, comm, rng, monkeypatch):
    """Along axis 0, the value is a row; a long one is exchanged in pieces."""
    if long:
        monkeypatch.setattr(forms, "PIECE", 40)
    own = np.random.default_rng([int(rng.integers(1 << 32)), comm.rank])
    for _ in range(5):
        n, inner, most = (int(i) for i in rng.integers(2, 30, 3))
        x = maps(rng, n * inner).reshape(n, inner)
        form = forms_of(rng, COMPOSE, int(maps(rng, 1)[0]))
        mine = cut(n)
        chunks = Chunks(x[mine], None, own, most, **form)
        total = chunks.total()
        assert total.empty == (mine.start == mine.stop)
        assert total.empty or total.total().shape == (inner,)
        extents = Extents.of((mine.stop - mine.start, inner), 0)
        exscan = Exscan(COMPOSE, x.dtype, Form(extents, reverse=form["reverse"]))
        exscan.reserve()
        y, _ = chunks.scan(exscan(comm, total), strategy)
        np.testing.assert_array_equal(y, loop(x, None, form, axis=0)[mine])


@pytest.mark.one_rank
def test_first_is_no_part_of_a_total(rng):
    """It comes before the elements of this shard, and before those of earlier ones."""
    x, (first, earlier) = letters(rng, 3), letters(rng, 2)
    carry = Carry(WORDS, x.dtype, first, segmented=False)
    assert carry.empty
    assert carry.before(Known(x[:1])) == carry.result() == first
    for i, letter in enumerate(x):
        carry.advance(Known(np.array(letter)))
        assert carry.total()[()] == words(x[: i + 1])[-1]
        assert carry.before(Known(None)) == carry.result() == words(np.array([first, *x]))[i + 1]
    carry.start(earlier)
    assert carry.before(Known(x[:1])) == carry.result() == join(first, earlier)
    none = Carry(WORDS, x.dtype, None, segmented=False)
    assert none.before(Known(x[:1])) is none.result() is None


@pytest.mark.one_rank
def test_start_forgets(rng):
    x, first = letters(rng, 4), letters(rng, 1)[0]
    carry = Carry(WORDS, x.dtype, first, segmented=True)
    pending, later = Known(np.array(x[0])), Known(np.array(x[2]))
    pending.edges, pending.head, later.edges = Edges(1, 2), True, Edges(7, 8)
    carry.advance(pending)
    assert (carry.empty, carry.head, carry.edges) == (False, True, Edges(1, 2))
    carry.start(x[1])
    assert (carry.head, carry.edges) == (False, None)
    # Without edges of earlier elements, a segment begins where the exchange has said so.
    assert carry.before(later) == join(first, x[1])
    carry.advance(later)
    assert carry.total()[()] == join(x[1], x[2])
    for edges, goes_on in ((Edges(3, 7), True), (Edges(7, 3), False)):
        carry.start(x[1], edges)
        assert carry.before(later) == (join(first, x[1]) if goes_on else first)
        carry.advance(later)
        assert carry.total()[()] == (join(x[1], x[2]) if goes_on else x[2])
        assert (carry.head, carry.edges) == (not goes_on, Edges(edges.enters, 8))
    carry.start(None)
    assert carry.empty
    assert carry.before(later) == first


@pytest.mark.one_rank
def test_values_are_its_own(rng):
    """An offset and a total are memory that others use again."""
    x = rng.integers(0, 99, (4, 5))
    offset, totals = x[0].copy(), x[1:].copy()
    carry = Carry(operators.BUILTIN["sum"], x.dtype, None, segmented=False)
    for start in (offset, None):
        carry.start(start)
        offset[:] = -1
        assert start is None or (carry.before(Known(x[1])) == x[0]).all()
        for row in totals:
            memory = row.copy()
            carry.advance(Known(memory))
            memory[:] = -1
        want = totals.sum(axis=0) + (0 if start is None else x[0])
        np.testing.assert_array_equal(carry.total(), want)
        np.testing.assert_array_equal(carry.total(slice(1, 3)), want[1:3])
        np.testing.assert_array_equal(totals, x[1:])


@pytest.mark.one_rank
def test_type_of_the_value(rng):
    """Totals of a narrow type are carried in that of the exchange."""
    x = rng.integers(-100, 100, 600).astype("i1")
    carry = Carry(operators.BUILTIN["sum"], np.dtype("i8"), np.array(x[1]), segmented=False)
    carry.start(x[0])
    for piece in np.split(x, 60):
        carry.advance(Known(piece.sum(dtype="i2").reshape(())))
    assert carry.total().dtype == "i8"
    assert carry.total()[()] == x.sum(dtype="i8") + x[0]
    assert carry.result() == x.sum(dtype="i8") + x[0] + x[1]


@pytest.mark.one_rank
def test_offsets_over_totals(rng):
    """Piece by piece, as the exchange of a long row stores them."""
    totals, offsets = rng.integers(0, 99, (2, 10))
    carry = Carry(operators.BUILTIN["sum"], totals.dtype, None, segmented=False)
    carry.advance(Known(totals.copy()))
    for piece in forms.Pieces(10, np.dtype("V300000")):
        np.testing.assert_array_equal(carry.total(piece), totals[piece])
        carry.put(piece, offsets[piece])
    np.testing.assert_array_equal(carry.offset, offsets)
