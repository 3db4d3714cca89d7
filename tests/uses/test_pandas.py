"""distscan.pandas: as pandas' own functions of the whole."""

import numpy as np
import pytest

pandas = pytest.importorskip("pandas", reason="no pandas")
import distscan.pandas as scans  # noqa: E402

NAMES = ["cumsum", "cumprod", "cummax", "cummin"]


def frame(rng, n=60):
    floats = rng.integers(-3, 4, n).astype("f8")
    floats[rng.integers(0, n, 5)] = np.nan
    index = pandas.date_range("2025-01-01", periods=n, name="day")
    columns = {"f": floats, "i": rng.integers(-1, 3, n), "half": rng.integers(1, 3, n).astype("f4")}
    return pandas.DataFrame(columns, index)


@pytest.mark.parametrize("skipna", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_as_pandas(name, skipna, cut, rng):
    x = frame(rng)
    mine = cut(len(x))
    want = getattr(x, name)(skipna=skipna)
    pandas.testing.assert_frame_equal(getattr(scans, name)(x[mine], skipna=skipna), want[mine])
    got = getattr(scans, name)(x["f"][mine], skipna=skipna)
    pandas.testing.assert_series_equal(got, want["f"][mine])


@pytest.mark.parametrize("name", NAMES)
def test_groups(name, cut, rng):
    x = frame(rng)
    mine, month = cut(len(x)), x.index.month
    want = getattr(x.groupby(month), name)()
    got = getattr(scans, name)(x[mine], segments=month[mine])
    pandas.testing.assert_frame_equal(got, want[mine])


def test_times(cut, rng):
    x = pandas.Series(rng.integers(0, 99, 40).astype("m8[s]"), name="t")
    x[7] = pandas.NaT
    mine = cut(40)
    pandas.testing.assert_series_equal(scans.cumsum(x[mine]), x.cumsum()[mine])
    dates = x + pandas.Timestamp("2025-01-01")
    pandas.testing.assert_series_equal(scans.cummax(dates[mine]), dates.cummax()[mine])


def test_refusals(comm):
    x, last = pandas.DataFrame({"a": [1, 2], "b": [3, 4]}), comm.rank == comm.size - 1
    with pytest.raises(TypeError, match="no Series or DataFrame"):
        scans.cumsum([1, 2] if last else x)
    with pytest.raises(TypeError, match="not in NumPy's memory"):
        scans.cumsum(x["a"].astype("Int64") if last else x["a"])
    if comm.size > 1:
        with pytest.raises(Exception, match="disagree on columns"):
            scans.cumsum(x[["b", "a"]] if last else x)
