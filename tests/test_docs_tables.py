"""The tables of the page "Measured": each file is whole, and a report of forms becomes a table."""

import importlib.util
from pathlib import Path

import pytest

pytestmark = pytest.mark.one_rank
DOCS = Path(__file__).resolve().parents[1] / "docs"


@pytest.fixture(scope="module")
def measured():
    spec = importlib.util.spec_from_file_location("docs_measured", DOCS / "measured.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_file_is_a_table(measured):
    for table in measured.tables():
        text = measured.rst(table)
        assert text.startswith(table["title"])
        assert table["chip"] in text


def test_a_report_of_forms(measured):
    def row(name, share, times=None, **more):
        return {"type": "sum float64", "contender": name, "share": share, "times": times,
                "spread": share and share / 10, **more}  # fmt: skip

    report = {
        "chip": "a chip", "ranks": 1, "date": "2026-11-22", "repeat": 11,
        "command": "python -m distscan.bench", "idioms": {"sum float64": "np.cumsum(x)"},
        "results": [
            row("copy", 1.0, wall_us={"median": 1e3}, moved=10**7, status="timed"),
            row("single-pass", 0.914, 7.26, status="timed"),
            row("numpy", 0.126, 1.0, status="timed"),
            row("torch", None, status="error"),
        ],
    }  # fmt: skip
    made = measured.forms(report)
    assert made["columns"] == ["", "copy, GB/s", "numpy", "single-pass", "torch"]
    assert made["rows"] == [["sum float64", 10.0, "0.13", "0.91, 7.3 x", "error"]]
    assert made["notes"][-1] == "* sum float64: ``np.cumsum(x)``"
    assert made["spread"].endswith("apart: 1% of it as a rule, at most 9%")
    report["ranks"] = 2
    assert measured.forms(report)["command"] == "mpirun -n 2 python -m distscan.bench"
