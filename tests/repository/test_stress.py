"""The stress test itself: the results that it expects are right, and it sees faults. On CPUs."""

import re
from types import SimpleNamespace

import numpy as np
import pytest
import stress
import stress_cases as cases
import stress_device

import distscan
from support import reference
from support.cases import few_ranks
from support.exact import scanned

ONE_STEP = ("--backend", "cpu", "--steps", "1", "--largest", "12")


class Replaying(stress_device.Cpu):
    """Host memory with CUDA graphs: each replay calls again what was captured."""

    captures = ("host",)

    def capture(self, call):
        call()
        return SimpleNamespace(launch=call)


@pytest.fixture
def run(comm, capfd):
    """Run the command line; return the status and the output of all ranks."""

    def call(*arguments):
        capfd.readouterr()
        status = stress.main((*ONE_STEP, *arguments))
        assert set(comm.allgather(status)) == {status}
        return status, "".join(comm.allgather(capfd.readouterr().out))

    return call


def counts(out, kind):
    """The counts of a kind in the table: uses, results, wrong, refused."""
    return [int(word) for word in re.search(rf"^{kind} +([\d ]+)$", out, re.M)[1].split()]


@few_ranks
def test_a_run(run, rng, comm):
    status, out = run("--seed", str(rng.integers(1000)), "--steps", "6")
    assert status == 0, out
    assert " 0 wrong" in out
    for kind in ("scan", "plan dropped", "start here, wait there"):
        uses, results, wrong, refused = counts(out, kind)
        assert results >= uses > 0
        assert wrong == refused == 0


@few_ranks
def test_a_seed_repeats_a_run(run):
    first, second, other = (run("--seed", seed)[1] for seed in ("1", "1", "2"))
    cut = re.compile(r"results in .*|[\d.]+ s: .*\n")  # the second appears every 10 seconds
    assert cut.sub("", first) == cut.sub("", second) != cut.sub("", other)


@pytest.mark.one_rank
def test_graphs(run, monkeypatch):
    monkeypatch.setattr(stress_device, "choose", lambda *_, **__: Replaying())
    status, out = run("--seed", "3", "--steps", "4")
    assert status == 0, out
    for kind in stress.GRAPHS:
        uses, results, wrong, _ = counts(out, kind)
        assert results >= 4 * uses > 0
        assert wrong == 0


def test_a_wrong_result_is_seen(run, monkeypatch, comm):
    """One bit of one result, on the last rank; the printed command repeats it."""
    scan, seen = distscan.scan, []

    def wrong(x, *args, **options):
        y = scan(x, *args, **options)
        if y.nbytes > 0 and comm.rank == comm.size - 1:
            seen.append(y)
            if len(seen) == 3:
                y.reshape(-1).view(np.uint8)[-1] ^= 1
        return y

    monkeypatch.setattr(distscan, "scan", wrong)
    status, out = run("--threads", "0", "--seed", "5")
    assert status == 1
    assert out.count("WRONG, 1 bytes") == 1, out
    assert f"rank {comm.size - 1}: WRONG" in out
    assert "--seed 5 --first 0" in out


@pytest.mark.one_rank  # it would end all
def test_what_is_raised_ends_it(monkeypatch, capfd):
    def fails(*_, **__):
        raise ArithmeticError("as it is")

    monkeypatch.setattr(distscan, "scan", fails)
    assert stress.main((*ONE_STEP, "--seed", "5")) == 1
    assert "as it is" in (err := capfd.readouterr().err)
    assert "rank 0: raised by 'scan" in err


@pytest.mark.one_rank
def test_what_it_expects_is_right(rng):
    """As the definition of a scan reads, one element at a time."""
    for number in range(150):
        form = cases.draw_form(rng, 1)
        case = cases.Case(form, [number], 7, large=False, ranks=1, rank=0)
        x, segments, want = case.data[0]
        if form.recurrence:
            h, wanted = np.full(x.shape[1:], form.initial or 0, x.dtype), want
            order = range(len(x))[::-1] if form.reverse else range(len(x))
            for i in order:
                h = segments[i] * h + x[i]
                np.testing.assert_array_equal(wanted[i], h, repr(case))
            continue
        acc = np.dtype("f" if form.out == "e" else form.out)
        heads = None if segments is None else reference.heads_of(segments)
        if form.op == "fsum":
            given = {"exclusive": form.exclusive, "initial": form.initial, "heads": heads}
            y = scanned(x, acc.name, axis=form.axis, reverse=form.reverse, **given)
            np.testing.assert_array_equal(want, y, repr(case))
            continue
        y = reference.scan(
            cases.COMBINE[form.op],
            x,
            axis=form.axis,
            acc=acc,
            exclusive=form.exclusive,
            initial=form.initial,
            identity=cases.identity(form.op, acc),
            reverse=form.reverse,
            heads=heads,
        )
        np.testing.assert_array_equal(want, y.astype(form.out), repr(case))


@pytest.mark.one_rank
def test_shards_are_parts_of_the_global_array(rng):
    """Each rank draws the same global array, and takes its part."""
    for number in range(30):
        form = cases.draw_form(rng, 3)
        shape = cases.Case(form, [number], 9, large=False, ranks=3, rank=0).global_shape
        parts = [cases.Case(form, [number], 9, large=False, ranks=3, rank=r) for r in range(3)]
        assert {part.global_shape for part in parts} == {shape}
        assert sum(part.shape[0] for part in parts) == shape[0]
        x, want = (
            np.concatenate([getattr(p.data[0], name) for p in parts]) for name in ("x", "want")
        )
        assert x.shape == shape
        segments = None
        if parts[0].data[0].segments is not None:
            segments = np.concatenate([part.data[0].segments for part in parts])
        if not form.recurrence:
            np.testing.assert_array_equal(want, cases.expected(form, x, segments))
