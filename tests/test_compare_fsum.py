"""The scripts that compare exact sums: with other libraries, and with plain ones."""

import importlib.util
import json
import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.one_rank
LAUNCH = Path(__file__).resolve().parents[1] / "launch"


def module(name, monkeypatch):
    """A script as a module."""
    monkeypatch.syspath_prepend(LAUNCH)  # as for a script: it imports its neighbours
    spec = importlib.util.spec_from_file_location(name, LAUNCH / f"{name}.py")
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


@pytest.fixture
def compare(monkeypatch):
    return module("compare_fsum", monkeypatch)


@pytest.mark.parametrize("name", ["uniform", "wide", "cancelling"])
def test_sums_are_exact(name, compare):
    x = compare.DATA[name](1000, np.random.default_rng(3))
    assert len(x) == 1000
    assert Fraction(compare.exact(x), 2**compare.UNIT) == sum(map(Fraction, x.tolist()))
    low, high = compare.UNIFORM
    assert name != "uniform" or ((x * 2.0**-low % 1 == 0) & (abs(x) < 2.0**high)).all()


def test_errors(compare):
    one = 1 << compare.UNIT
    assert compare.error(1.0, one) == 0
    assert compare.error(1.0, one + (one >> 53)) == 0.5
    assert compare.error(1 + 2**-50, one) == 4
    assert compare.error(math.nan, one) == compare.error(1.0, 0) == math.inf


def test_a_table(compare, tmp_path, capsys):
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
def test_wrong_arguments(arguments, fault, compare, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="2"):
        compare.main(arguments)
    assert fault in capsys.readouterr().err


def test_costs(monkeypatch, tmp_path, capsys):
    cost = module("cost_fsum", monkeypatch)
    path = tmp_path / "cost.json"
    path.write_text('{"chip": "a chip"}')
    assert cost.main(["--size", "8", "--repeat", "1", "--json", str(path)]) == 0
    table = json.loads(path.read_text())
    assert table["chip"] == "a chip"
    assert [row[0] for row in table["rows"]] == [kind.title for kind in cost.KINDS]
    assert all(len(row) == len(table["columns"]) for row in table["rows"])
    assert "| float64, two words |" in capsys.readouterr().out


def test_data_is_in_its_window(monkeypatch):
    for kind in module("cost_fsum", monkeypatch).KINDS:
        low, high = kind.window
        units = [Fraction(value) / Fraction(2) ** low for value in kind.values(500).tolist()]
        assert all(each.denominator == 1 for each in units)
        assert max(map(abs, units)) < 2 ** (high - low)
