"""What measures the error of prefix sums over condition numbers, and the plot of the errors."""

import json
from fractions import Fraction
from itertools import accumulate
from pathlib import Path
from xml.etree import ElementTree

import accuracy_fsum as accuracy
import numpy as np
import pytest

pytestmark = pytest.mark.one_rank
DOCS = Path(__file__).resolve().parents[2] / "docs"
CASES = [("float64", power) for power in (0, 4, 16, 100, 300)]
CASES += [("float32", power) for power in (0, 4, 16, 70)]


@pytest.mark.parametrize(("name", "power"), CASES)
def test_condition_numbers(name, power):
    """The sum of all has it; no prefix has a much larger one; about half are above its root."""
    x = accuracy.values(accuracy.KINDS[name], power, 512, (3, 0))
    assert x.dtype == name
    assert len(x) == 512
    assert np.isfinite(x).all()
    sums = list(accumulate(map(Fraction, x.tolist())))
    sizes = list(accumulate(map(abs, map(Fraction, x.tolist()))))
    conditions = [float(size / abs(total)) for size, total in zip(sizes, sums, strict=True)]
    assert conditions[-1] == pytest.approx(10.0**power, rel=1e-4)
    assert max(conditions) <= conditions[-1] * 1.001
    assert conditions[384] == pytest.approx(10 ** (power / 2), rel=10 ** (power / 200))


def test_values_are_those_of_a_seed():
    kind = accuracy.KINDS["float64"]
    first, again, other = (accuracy.values(kind, 20, 256, (3, seed)) for seed in (0, 0, 1))
    assert (first == again).all()
    assert (first != other).any()


def test_sums_are_exact():
    x = np.array([1e300, 5e-324, -1e300, -2.5, 0.0])
    units = 2**accuracy.UNIT
    expected = [Fraction(1e300), Fraction(1e300) + Fraction(5e-324), Fraction(5e-324)]
    expected += [Fraction(5e-324) - Fraction(5, 2)] * 2
    assert accuracy.exact(x) == [value * units for value in expected]


def test_errors():
    sums = [each << accuracy.UNIT for each in (4, 4, 0, 0, 7, -4)]
    found = accuracy.errors(np.array([4.0, 5.0, 0.0, 1.0, np.nan, 4.0]), sums)
    assert list(found) == [0.0, 0.25, 0.0, np.inf, np.inf, 2.0]


def test_a_table_and_its_plot(monkeypatch, tmp_path, capsys):
    """What the file says beside the table stays."""
    pytest.importorskip("matplotlib")
    path = tmp_path / "errors.json"
    path.write_text('{"chip": "a chip", "plot": {"file": "errors.svg", "alt": "lines"}}')
    monkeypatch.setattr(accuracy, "POWERS", (0, 20))
    arguments = ["--size", "8", "--arrays", "1", "--backend", "cpu", "--json", str(path)]
    assert accuracy.main(arguments) == 0
    table = json.loads(path.read_text())
    assert table["chip"] == "a chip"
    cells = {row[0]: row[3:] for row in table["rows"]}
    assert all(float(cell) <= 2**-53 for cell in cells["distscan, fsum, float64"])
    assert float(cells["numpy.cumsum, float64"][1]) > 1
    assert "numpy.cumsum, float64 | 1 | CPU" in capsys.readouterr().out
    monkeypatch.syspath_prepend(DOCS)
    import errors

    plot = errors.write(path)
    assert ElementTree.parse(plot).getroot().tag == "{http://www.w3.org/2000/svg}svg"
    assert plot == tmp_path / "errors.svg"


@pytest.mark.parametrize("arguments", [["--size", "7"], ["--size", "21"], ["--arrays", "0"]])
def test_wrong_arguments(arguments, capsys):
    assert accuracy.main(arguments) == 2
    assert "accuracy_fsum: error: --size is from" in capsys.readouterr().err
