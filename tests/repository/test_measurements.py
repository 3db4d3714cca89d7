"""The scripts that measure the error and the cost of sums, on errors that are known. On CPUs."""

import json
import math
from fractions import Fraction
from itertools import accumulate
from pathlib import Path
from xml.etree import ElementTree

import accuracy
import fsum_bits
import fsum_speed
import numpy as np
import pytest

import distscan
from distscan.cpu import library
from distscan.fsum.words import ONE_WORD, TWO_WORDS, narrowest_accumulator
from support.processes import everywhere

DOCS = Path(__file__).resolve().parents[2] / "docs"


def cells(out):
    """The cells of all lines of tables, by their first cell."""
    lines = [line for line in out.splitlines() if line.startswith("| ")]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    return [(name, ranks, [float(error) for error in errors if error])
            for name, ranks, where, *errors in rows if where in ("CPU", "GPU")]  # fmt: skip


@pytest.fixture
def measure(comm, capsys):
    """Run the accuracy script; return rank 0's rows, and none on other ranks."""

    def run(*arguments):
        assert accuracy.main([*arguments, "--backend", "cpu"]) == 0
        out = capsys.readouterr().out
        assert (out == "") == (comm.rank > 0)
        return cells(out)

    return run


@pytest.mark.parametrize(
    "wrong",
    [
        *(
            "sum --size 30",
            "sum --size x",
            "conditions --size 0",
            "logs --seed -1",
            "logs --json x",
        ),
        *("fsum --size 7", "fsum --size 21", "fsum --arrays 0", ""),
    ],
)
def test_wrong_arguments_of_accuracy(wrong, comm, capsys):
    assert accuracy.main(wrong.split()) == 2
    assert capsys.readouterr().err.count("accuracy: error:") == (comm.rank == 0)


# ---- float32 sums ------------------------------------------------------------------------------


@pytest.mark.one_rank
@pytest.mark.parametrize("condition", [1, 10, 1000, 100_000, 1_000_000])
def test_values_and_their_condition_numbers(condition):
    """Float64 is exact; the sum of all has the condition number, and no prefix has a larger one."""
    x = accuracy.uniform(1 << 14, condition, 3)
    assert (x.dtype, len(x)) == (np.float32, 1 << 14)
    units = (x.astype(np.float64) * 2**24).astype(np.int64)
    np.testing.assert_array_equal(units / 2**24, x)
    assert 2**23 < np.abs(units).max() < 2**24
    assert len(np.unique(x)) > 15_000
    assert (units.min() < 0) == (condition > 1)
    conditions = np.cumsum(np.abs(units)) / np.abs(np.cumsum(units))
    assert conditions[-1] == pytest.approx(condition, rel=0.03)
    assert conditions.max() <= conditions[-1] * 1.001
    assert (accuracy.uniform(1 << 14, condition, 4) != x).any()


@pytest.mark.one_rank
@pytest.mark.parametrize("condition", [1, 100])
def test_errors_of_sums(condition, monkeypatch):
    monkeypatch.setattr(accuracy, "PIECE", 1 << 8)
    x = accuracy.uniform(1000, condition, 3)
    exact, sizes = np.cumsum(x, dtype="f8"), np.cumsum(np.abs(x), dtype="f8")
    y = exact.copy()
    assert accuracy.relative_errors(x, y) == (0, 0)
    for i, share in ((0, 2.0**-12), (999, 2.0**-10), (300, 2.0**-5)):
        y[i] += exact[i] * share
        expected = share, max(share * abs(exact[i]) / sizes[i], accuracy.relative_errors(x, y)[1])
        assert accuracy.relative_errors(x, y) == pytest.approx(expected, rel=1e-6)
    y = exact.copy()
    y[999] = 2 * exact[999]
    expected = 1, abs(exact[999]) / sizes[999]
    assert accuracy.relative_errors(x, y) == pytest.approx(expected, rel=1e-6)
    y[5] = np.nan
    assert np.isnan(accuracy.relative_errors(x, y)).all()


def test_accuracy_of_sums(measure, comm):
    rows = measure("sum", "--size", "16")
    if comm.rank > 0:
        return
    assert {ranks for name, ranks, _ in rows if name.startswith("distscan")} == {str(comm.size)}
    worst = {name: errors for name, _, errors in rows}
    assert 0 < worst["distscan.scan"][0] <= 2**-24 < worst["numpy.cumsum"][0] < 1e-3
    assert worst["distscan.scan, dtype=np.float64"] == worst["distscan.scan"]


def test_accuracy_over_condition_numbers(measure, comm):
    """Sums in float64 are rounded once; those in float32 lose digits where terms cancel."""
    rows = measure("conditions", "--size", "14")
    if comm.rank > 0:
        return
    half = len(rows) // 2
    relative, scaled = ({name: errors for name, _, errors in part}
                        for part in (rows[:half], rows[half:]))  # fmt: skip
    assert len(relative["distscan.scan"]) == len(accuracy.CONDITIONS)
    assert max(relative["distscan.scan"]) <= 2**-24
    assert relative["numpy.cumsum"][0] < 1e-4
    assert relative["numpy.cumsum"][-1] > 1e-2
    assert max(scaled["numpy.cumsum"]) < 1e-4
    for name in relative:
        assert (np.array(scaled[name]) <= relative[name]).all()


# ---- logcumsumexp ------------------------------------------------------------------------------


@pytest.mark.one_rank
def test_errors_of_logs():
    exact = np.array([0.0, -4.0, 100.0])
    assert accuracy.log_error(exact, exact.astype("f")) == 0
    for i, unit in ((0, 1), (1, 4), (2, 100)):
        wrong = exact.copy()
        wrong[i] += 3 * unit * 2**-24
        assert accuracy.log_error(exact, wrong) == pytest.approx(3, rel=1e-6)
    assert np.isnan(accuracy.log_error(exact, np.array([0, np.nan, 100])))


def test_accuracy_of_logs(measure, comm):
    rows = measure("logs", "--size", "14")
    if comm.rank > 0:
        return
    assert {ranks for name, ranks, _ in rows if name.startswith("distscan")} == {str(comm.size)}
    ours, theirs = ([errors for name, _, errors in rows if name.startswith(library_name)]
                    for library_name in ("distscan", "numpy"))  # fmt: skip
    assert np.shape(ours) == (len(accuracy.ORDERS), len(accuracy.RANGES))
    # NumPy goes from element to element, so its errors add up.
    assert np.all(ours <= np.maximum(theirs, 40))
    assert library.load() is None or np.max(ours) <= 16


# ---- exact sums --------------------------------------------------------------------------------

CASES = [("float64", power) for power in (0, 4, 16, 100, 300)]
CASES += [("float32", power) for power in (0, 4, 16, 70)]


@pytest.mark.one_rank
@pytest.mark.parametrize(("name", "power"), CASES)
def test_large_condition_numbers(name, power):
    """The sum of all has it; no prefix has a much larger one; about half are above its root."""
    x = accuracy.conditioned(accuracy.KINDS[name], power, 512, (3, 0))
    assert (x.dtype, len(x)) == (name, 512)
    assert np.isfinite(x).all()
    sums = list(accumulate(map(Fraction, x.tolist())))
    sizes = list(accumulate(map(abs, map(Fraction, x.tolist()))))
    conditions = [float(size / abs(total)) for size, total in zip(sizes, sums, strict=True)]
    assert conditions[-1] == pytest.approx(10.0**power, rel=1e-4)
    assert max(conditions) <= conditions[-1] * 1.001
    assert conditions[384] == pytest.approx(10 ** (power / 2), rel=10 ** (power / 200))
    assert (accuracy.conditioned(accuracy.KINDS[name], power, 512, (3, 0)) == x).all()
    assert (accuracy.conditioned(accuracy.KINDS[name], power, 512, (3, 1)) != x).any()


@pytest.mark.one_rank
def test_errors_of_exact_sums():
    x = np.array([1e300, 5e-324, -1e300, -2.5, 0.0])
    expected = [Fraction(1e300), Fraction(1e300) + Fraction(5e-324), Fraction(5e-324)]
    expected += [Fraction(5e-324) - Fraction(5, 2)] * 2
    assert accuracy.exact_sums(x) == [value * 2**accuracy.UNIT for value in expected]
    sums = [value << accuracy.UNIT for value in (4, 4, 0, 0, 7, -4)]
    errors = accuracy.exact_errors(sums, np.array([4.0, 5.0, 0.0, 1.0, np.nan, 4.0]))
    assert list(errors) == [0.0, 0.25, 0.0, np.inf, np.inf, 2.0]


def test_accuracy_of_exact_sums(measure, comm, monkeypatch, folder):
    """The table, and its plot. Other facts in the file stay."""
    pytest.importorskip("matplotlib")
    path = folder / "errors.json"
    if comm.rank == 0:
        path.write_text('{"chip": "a chip", "plot": {"file": "errors.svg", "alt": "lines"}}')
    monkeypatch.setattr(accuracy, "POWERS", (0, 20))
    rows = measure("fsum", "--size", "8", "--arrays", "1", "--json", str(path))
    if comm.rank > 0:
        return
    table = json.loads(path.read_text())
    assert table["chip"] == "a chip"
    assert [row[0] for row in table["rows"]] == [name for name, *_ in rows]
    errors = {name: errors for name, _, errors in rows}
    assert max(errors["distscan, fsum, float64"]) <= 2**-53
    assert errors["numpy.cumsum, float64"][1] > 1
    monkeypatch.syspath_prepend(DOCS)
    import errors as plots

    plot = plots.write(path)
    assert plot == folder / "errors.svg"
    assert ElementTree.parse(plot).getroot().tag == "{http://www.w3.org/2000/svg}svg"


SMALL = ("--size", "8", "--cuts", "3", "--backend", "cpu")


def test_one_digest(comm, capsys):
    """A line for each kind of data and number of ranks."""
    assert fsum_bits.main(SMALL) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()[1:-1]]
    assert len(lines) == (6 * comm.size if comm.rank == 0 else 0)
    assert all(len(line) == 6 for line in lines)  # one digest each
    assert len({line[5] for line in lines}) == (6 if comm.rank == 0 else 0)


def test_one_rank_fails(comm, monkeypatch):
    """All ranks raise its exception, also those that do not scan."""

    def fails(*_, **__):
        raise ArithmeticError("as it is")

    monkeypatch.setattr(distscan, "scan", fails)
    everywhere(comm, ArithmeticError, "as it is", lambda: fsum_bits.main(SMALL))


@pytest.mark.one_rank
def test_plain_sums_differ(monkeypatch, capsys):
    """Another algorithm has another digest for each direction."""

    def plain(x, op, *, reverse, **_):
        y = np.cumsum(x[::-1] if reverse else x)
        return y[::-1] * (1 + reverse)

    monkeypatch.setattr(distscan, "scan", plain)
    with np.errstate(all="ignore"):
        assert fsum_bits.main(SMALL) == 1
    assert "the digests differ" in capsys.readouterr().out


# ---- the cost of exact sums --------------------------------------------------------------------

KINDS = fsum_speed.KINDS + fsum_speed.OF_DIGITS


@pytest.mark.one_rank
@pytest.mark.parametrize("name", ["uniform", "wide", "cancelling"])
def test_errors_of_totals(name):
    """The nearest float is off by half a unit at most; its neighbours by more."""
    x = fsum_speed.DATA[name](1000, np.random.default_rng(3))
    assert len(x) == 1000
    low, high = fsum_speed.UNIFORM
    assert name != "uniform" or ((x * 2.0**-low % 1 == 0) & (abs(x) < 2.0**high)).all()
    exact = sum(map(Fraction, x.tolist()))
    for steps in (0, 1, -1, 7):
        total = float(exact) + steps * math.ulp(float(exact))
        units = abs(Fraction(total) - exact) / Fraction(math.ulp(float(exact)))
        assert fsum_speed.error(total, x.tolist()) == pytest.approx(float(units), rel=1e-12)
    assert fsum_speed.error(math.nan, [1.0]) == fsum_speed.error(1.0, [1.0, -1.0]) == math.inf
    assert fsum_speed.error(0.0, [1.0, -1.0]) == 0


@pytest.mark.one_rank
def test_cost_of_totals(tmp_path, capsys):
    path = tmp_path / "totals.json"
    assert fsum_speed.main(["totals", "--sizes", "8", "--repeat", "1", "--json", str(path)]) == 0
    table = json.loads(path.read_text())
    rows = {row[0]: row for row in table["rows"]}
    assert set(rows) >= {"math.fsum", "numpy.cumsum", "distscan.cumsum", "distscan.fcumsum"}
    for name in ("math.fsum", "distscan.fcumsum"):
        assert all(float(ulp) <= 0.5 for ulp in rows[name][4::2])
    assert float(rows["numpy.cumsum"][8]) > 1
    assert all(len(row) == len(table["columns"]) for row in table["rows"])
    assert "| math.fsum | total | 2^8 |" in capsys.readouterr().out


@pytest.mark.one_rank
@pytest.mark.parametrize("parts", [False, True], ids=["calls", "parts"])
def test_cost_of_scans(parts, tmp_path, capsys):
    path = tmp_path / "cost.json"
    path.write_text('{"chip": "a chip"}')
    arguments = ["scans", "--size", "8", "--repeat", "1", "--backend", "cpu", "--digits", "--json"]
    assert fsum_speed.main([*arguments, str(path), *["--parts"] * parts]) == 0
    table = json.loads(path.read_text())
    assert table["chip"] == "a chip"
    assert table["command"].startswith("python launch/tools/fsum_speed.py scans --size 8 ")
    assert [row[0] for row in table["rows"]] == [kind.title for kind in KINDS]
    assert all(len(row) == len(table["columns"]) for row in table["rows"])
    assert ("single-pass" in table["columns"]) == parts
    assert "| float64, two words |" in capsys.readouterr().out


@pytest.mark.one_rank
def test_wrong_sums_have_no_cost(monkeypatch):
    monkeypatch.setattr(distscan, "scan", lambda x, op, *, out, **_: np.cumsum(x + 1, out=out))
    with pytest.raises(ArithmeticError, match="float16, one word, fsum: "):
        fsum_speed.main(["scans", "--size", "8", "--repeat", "1", "--backend", "cpu"])


@pytest.mark.one_rank
@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        ("totals --reproblas .", "has no libreproblas.a"),
        ("totals --sizes 31", "--sizes are from 4"),
        ("scans --size 31", "--size is from 0"),
        ("scans --repeat 0", "--repeat is from 1"),
    ],
)
def test_wrong_arguments_of_costs(arguments, fault, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="2"):
        fsum_speed.main(arguments.split())
    assert fault in capsys.readouterr().err


@pytest.mark.one_rank
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.title)
def test_data_of_scans(kind):
    """It is in its window; its sums need as many words as its title says, also of many elements."""
    low, high = kind.window
    units = [Fraction(value) / Fraction(2) ** low for value in kind.values(500).tolist()]
    assert all(unit.denominator == 1 for unit in units)
    assert max(map(abs, units)) < 2 ** (high - low)
    op = narrowest_accumulator((*kind.window, 1 << 28), np.dtype(kind.dtype), np.dtype(kind.dtype))
    words = {ONE_WORD: "one word", TWO_WORDS: "two words"}
    assert op is None if "^" in kind.title else words[op.acc] in kind.title
