"""The one kernel of strategy "fused", at every edge of its tiles: ranks take turns on one GPU.

A rank's kernel ends before that of the next one begins. ``test_gpu_exchange.py`` has a GPU for each
rank.
"""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest

from distscan.core import dtypes, operators
from distscan.core.form import Form
from support.arrays import host
from support.data import OPERATORS, elements

pytest.importorskip("distscan.cuda.steps", reason="no CuPy", exc_type=ImportError)
import distscan
from distscan.cuda import kernel, peers, policy
from distscan.cuda.arguments import Peers
from distscan.cuda.definitions import register_types

pytestmark = [pytest.mark.gpu, pytest.mark.one_rank]

RANKS, STAGES = 3, 3
LIMIT = 200_000_000  # nanoseconds
KINDS = ["sum f", "compose L", "nibbles B", "max b", "sum b", "logaddexp f", "prod D", "sum e"]
FORMS = [{}, {"exclusive": True, "reverse": True}]


class Ranks:
    """Inboxes on one GPU, in the order of the scan."""

    def __init__(self, cp, acc, ranks=RANKS):
        words = self.words = peers.place_words(acc, Form())
        self.inboxes = [cp.zeros(ranks * (2 * words + 1), np.uint64) for _ in range(ranks)]
        self.numbers = cp.zeros((ranks, 1), np.uint32)
        self.pointers = cp.asarray([inbox.data.ptr for inbox in self.inboxes], np.uint64)
        self.faults = [peers.FaultWord() for _ in range(ranks)]

    def inbox(self, place):
        number, fault = self.numbers[place].data.ptr, self.faults[place].pointer
        ranks = len(self.inboxes)
        arguments = self.pointers.data.ptr, number, fault, LIMIT, place, ranks, self.words
        return SimpleNamespace(arguments=Peers(*arguments))


def make(op, types, form, n):
    """The kernel of one rank, with its words."""
    found = register_types(op, types)
    words = peers.OffsetWords(found.acc, form)
    scan = peers.FusedScan(op, found, n, form, policy.fused_config(found, n, form), words=words)
    return scan, words


@pytest.fixture
def small(monkeypatch):
    """Let tiles be short and stages few."""
    chosen = policy.fused_policy
    monkeypatch.setattr(
        policy,
        "fused_policy",
        lambda *arguments: chosen(*arguments)._replace(
            threads=64, rows=1, stages=STAGES, at_once=2
        ),
    )


@pytest.mark.parametrize("options", FORMS, ids=["plain", "exclusive-reverse"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_edge(kind, options, small, cp, rng):
    """Of a tile, of what one multiprocessor keeps, of all; at any alignment, also in place."""
    name, code = kind.split()
    op = operators.resolve(OPERATORS.get(name, name))
    types = dtypes.resolve(op, code)
    if options:
        options = options | {"initial": elements(rng, name, code, 1)[0]}
    form = Form(
        exclusive="exclusive" in options,
        reverse="reverse" in options,
        seed=np.asarray(options["initial"], types.acc) if options else None,
    )
    config = policy.fused_config(register_types(op, types), 1, form)
    tile, wave = config.tile, config.tile * config.blocks
    edges = [1, tile, wave, STAGES * wave, (2 * STAGES + 1) * wave]
    for n, shift in itertools.product([e + d for e in edges for d in (-1, 0, 1)][1:], (0, 1)):
        sizes = [n, 1 + n // 2, 2 + n // 3][:: -1 if form.reverse else 1]
        shards = np.split(elements(rng, name, code, sum(sizes)), np.cumsum(sizes)[:-1])
        whole = np.concatenate(shards)
        wants = np.split(distscan.scan(whole, op=op, **options), np.cumsum(sizes)[:-1])
        ranks, made = Ranks(cp, register_types(op, types).acc), []
        for place, rank in enumerate(range(RANKS)[:: -1 if form.reverse else 1]):
            x = cp.empty(sizes[rank] + shift, types.x)[shift:]
            y = cp.empty(sizes[rank] + 2 * shift, types.out)[2 * shift :]
            scan, words = make(op, types, form, x.size)
            made.append((scan, words, x, y, ranks.inbox(place), rank))
        for in_place in (False, False, types.x == types.out):
            for scan, _, x, y, inbox, rank in made:
                x.set(shards[rank])
                y.view(np.uint8)[...] = 0xA5
                scan.prepare(x, x if in_place else y, inbox)
                kernel.launch(scan, cp.cuda.get_current_stream())
            for _, _, x, y, _, rank in made:
                result, want = host(x if in_place else y), wants[rank]
                if name == "logaddexp":
                    np.testing.assert_allclose(result, want, rtol=1e-4, atol=1e-4)
                else:
                    np.testing.assert_array_equal(result, want)


@pytest.mark.parametrize("code", "lfeFD?")
def test_no_offset(code, small, cp):
    """An earlier rank does not come: results are NaN, or zeros, with the unaligned head."""
    op = operators.resolve("max")
    types, n = dtypes.resolve(op, code), 100_001
    ranks = Ranks(cp, register_types(op, types).acc)
    scan, _ = make(op, types, Form(), n)
    x, y = cp.ones(n, code), cp.ones(n + 1, types.out)[1:]
    scan.prepare(x, y, ranks.inbox(1))
    kernel.launch(scan, cp.cuda.get_current_stream())
    result = host(y)
    lacks = np.isnan(result) if code in "feFD" else result == 0
    assert lacks.all()
    with pytest.raises(distscan.RankError, match="did not call in time"):
        ranks.faults[1].raise_fault(0.2)


def test_the_choice(cp):
    """One kernel as far as a block's totals have room; two for larger shards, and wider values."""
    op = operators.resolve("sum")
    types = dtypes.resolve(op, "f")
    assert policy.fused_config(types, 1 << 20, Form()) is not None
    assert policy.fused_config(types, 1 << 40, Form()) is None
