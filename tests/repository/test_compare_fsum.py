"""The scripts that compare exact sums: with other libraries, and with plain ones."""

import json
import math
from fractions import Fraction

import compare_fsum as compare
import fsum_speed
import numpy as np
import pytest

import distscan
from distscan.fsum.words import ONE_WORD, TWO_WORDS, narrowest_accumulator

pytestmark = pytest.mark.one_rank
KINDS = fsum_speed.KINDS + fsum_speed.OF_DIGITS
kinds = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.title)


@pytest.mark.parametrize("name", ["uniform", "wide", "cancelling"])
def test_sums_are_exact(name):
    x = compare.DATA[name](1000, np.random.default_rng(3))
    assert len(x) == 1000
    assert Fraction(compare.exact(x), 2**compare.UNIT) == sum(map(Fraction, x.tolist()))
    low, high = compare.UNIFORM
    assert name != "uniform" or ((x * 2.0**-low % 1 == 0) & (abs(x) < 2.0**high)).all()


def test_errors():
    one = 1 << compare.UNIT
    assert compare.error(1.0, one) == 0
    assert compare.error(1.0, one + (one >> 53)) == 0.5
    assert compare.error(1 + 2**-50, one) == 4
    assert compare.error(math.nan, one) == compare.error(1.0, 0) == math.inf


def test_a_table(tmp_path, capsys):
    path = tmp_path / "totals.json"
    assert compare.main(["--sizes", "8", "--repeat", "1", "--json", str(path)]) == 0
    table = json.loads(path.read_text())
    rows = {row[0]: row for row in table["rows"]}
    assert set(rows) >= {"math.fsum", "numpy.cumsum", "distscan.cumsum", "distscan.fcumsum"}
    for name in ("math.fsum", "distscan.fcumsum"):
        assert all(float(ulp) <= 0.5 for ulp in rows[name][4::2])
    assert float(rows["numpy.cumsum"][8]) > 1
    assert all(len(row) == len(table["columns"]) for row in table["rows"])
    assert "| math.fsum | total | 2^8 |" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [(["--reproblas", "."], "has no libreproblas.a"), (["--sizes", "27"], "--sizes are from 4")],
    ids=["no-build", "size"],
)
def test_wrong_arguments(arguments, fault, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="2"):
        compare.main(arguments)
    assert fault in capsys.readouterr().err


@pytest.mark.parametrize("parts", [False, True], ids=["whole", "parts"])
def test_costs(parts, tmp_path, capsys):
    path = tmp_path / "cost.json"
    path.write_text('{"chip": "a chip"}')
    arguments = [
        "--size",
        "8",
        "--repeat",
        "1",
        "--backend",
        "cpu",
        "--digits",
        "--json",
        str(path),
    ]
    assert fsum_speed.main(arguments + ["--parts"] * parts) == 0
    table = json.loads(path.read_text())
    assert table["chip"] == "a chip"
    assert [row[0] for row in table["rows"]] == [kind.title for kind in KINDS]
    assert all(len(row) == len(table["columns"]) for row in table["rows"])
    assert ("single-pass" in table["columns"]) == parts
    assert "| float64, two words |" in capsys.readouterr().out


def test_costs_of_wrong_sums(monkeypatch):
    monkeypatch.setattr(distscan, "scan", lambda x, op, *, out, **_: np.cumsum(x + 1, out=out))
    with pytest.raises(ArithmeticError, match="float16, one word, fsum: "):
        fsum_speed.main(["--size", "8", "--repeat", "1", "--backend", "cpu"])


@kinds
def test_data_is_in_its_window(kind):
    low, high = kind.window
    units = [Fraction(value) / Fraction(2) ** low for value in kind.values(500).tolist()]
    assert all(each.denominator == 1 for each in units)
    assert max(map(abs, units)) < 2 ** (high - low)


@kinds
def test_words(kind):
    """The sums of the data need what its title says, also where there are many."""
    op = narrowest_accumulator((*kind.window, 1 << 28), np.dtype(kind.dtype), np.dtype(kind.dtype))
    words = {ONE_WORD: "one word", TWO_WORDS: "two words"}
    assert op is None if "^" in kind.title else words[op.acc] in kind.title
