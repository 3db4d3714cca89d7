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
    for table in measured.tables().values():
        text = measured.rst(table)
        assert text.startswith(table["title"])
        assert table["chip"] in text


def test_tables_of_other_pages_are_files_of_their_own(measured, tmp_path):
    measured.write(tmp_path)
    pages = {name: table["page"] for name, table in measured.tables().items() if "page" in table}
    assert {path.stem for path in tmp_path.iterdir()} == {
        "measured",
        *(f"measured-{name}" for name in pages),
    }
    for name, page in pages.items():
        include = f".. include:: generated/measured-{name}.rst"
        assert include in (DOCS / f"{page}.rst").read_text()
        assert measured.tables()[name]["title"] not in (tmp_path / "measured.rst").read_text()


def test_a_report_of_uses(measured):
    def row(kind, name, us, share=None, clock="device_us"):
        times = {"device_us": None, "wall_us": us and {"median": 9.0}}
        return {"type": kind, "contender": name, "share": share, "spread": share and share / 10,
                "status": "timed" if us else "wrong", **times,
                clock: us and {"median": us}}  # fmt: skip

    report = {
        "chip": "a chip", "ranks": 2, "date": "2026-11-22", "repeat": 11,
        "command": "python -m distscan.bench --uses",
        "clocks": {"keys": "device_us", "offsets": "wall_us"},
        "results": [
            row("keys", "copy", 763.04, 1.0), row("keys", "distscan", 784.0, 0.97),
            row("keys", "other", 2000.0, 0.4), row("keys", "cub", 1065.0, 0.72),
            row("keys", "faulty", None), row("offsets", "distscan", 2.34, clock="wall_us"),
        ],
    }  # fmt: skip
    made = measured.uses(report)
    assert made["rows"] == [
        ["keys", 763.0, 784.0, "0.97", "cub 1065.0, other 2000.0, faulty wrong"],
        ["offsets", None, 2.3, None, ""],
    ]
    assert all(len(each) == len(made["columns"]) for each in made["rows"])
    assert made["command"] == "mpirun -n 2 python -m distscan.bench --uses"
    text = measured.rst({"title": "Uses", "says": "", **made})
    assert "     - 784.0" in text


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
