"""Columns of Parquet and Arrow files, written by pyarrow, pandas and polars, and read by them."""

import datetime
import errno
import itertools
import json

import numpy as np
import pytest

from distscan import InputError, Operator, OutputError, scan_file
from distscan.job import formats, output, plan, restart
from distscan.job.formats import parquet, table
from distscan.job.formats.files import Staging
from support.jobs import full_after, spoil
from support.processes import python

pa = pytest.importorskip("pyarrow", reason="no pyarrow")
pandas = pytest.importorskip("pandas", reason="no pandas")
polars = pytest.importorskip("polars", reason="no polars")
pq = pytest.importorskip("pyarrow.parquet")
feather = pytest.importorskip("pyarrow.feather")


def uneven(n):
    """Where groups begin, some of which have no rows."""
    return [*sorted({0, n, n // 7, n // 2 + 1}), n]


def parquet_groups(path, t):
    with pq.ParquetWriter(path, t.schema, compression="zstd") as writer:
        for low, high in itertools.pairwise(uneven(len(t))):
            writer.write_table(t.slice(low, high - low))


def arrow_batches(path, t, **options):
    with pa.ipc.new_file(path, t.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        batches = t.combine_chunks().to_batches()
        for low, high in itertools.pairwise(uneven(len(t))):
            for batch in batches:  # one
                writer.write_batch(batch.slice(low, high - low))


WRITERS = {
    "parquet": (".parquet", lambda path, t: pq.write_table(t, path, row_group_size=64)),
    "parquet uneven": (".pq", parquet_groups),
    "parquet plain": (
        ".parquet",
        lambda path, t: pq.write_table(
            t, path, use_dictionary=False, compression="none", data_page_size=200
        ),
    ),
    "parquet by pandas": (".parquet", lambda path, t: t.to_pandas().to_parquet(path)),
    "parquet by polars": (
        ".parquet",
        lambda path, t: polars.from_arrow(t).write_parquet(path, row_group_size=50),
    ),
    "feather": (".feather", lambda path, t: feather.write_feather(t, path, chunksize=70)),
    "arrow": (".arrow", arrow_batches),
    "arrow compressed": (".ipc", lambda path, t: arrow_batches(path, t, compression="zstd")),
    "arrow by polars": (".arrow", lambda path, t: polars.from_arrow(t).write_ipc(path)),
    "arrow compressed by polars": (
        ".arrow",
        lambda path, t: polars.from_arrow(t).write_ipc(path, compression="lz4"),
    ),
}
BOTH = {"parquet": ".parquet", "arrow compressed": ".arrow"}


def written(folder, columns, kind="parquet", name="x"):
    """Write a table; return the path."""
    suffix, write = WRITERS[kind]
    path = folder / f"{name}{suffix}"
    write(path, columns if isinstance(columns, pa.Table) else pa.table(columns))
    return path


@pytest.fixture
def made(comm, folder):
    """Write a table on rank 0; return the path, the same on every rank."""

    def make(name, columns, kind="parquet"):
        path = written(folder, columns, kind, name) if comm.rank == 0 else None
        return comm.bcast(path)

    return make


@pytest.fixture
def scan(folder, comm):
    """Scan a file on CPUs; return the output as a table, or as an array of NumPy."""

    def scan(given, name="y.parquet", *, force=True, **options):
        scan_file(given, folder / name, backend="cpu", force=force, **options)
        result = read(folder / name.partition("::")[0])
        comm.Barrier()
        return result

    return scan


def read(path):
    if path.suffix == ".npy":
        return np.load(path)
    return pq.read_table(path) if path.suffix == ".parquet" else feather.read_table(path)


def values(t, name):
    return t.column(name).to_numpy()


# ---- input ---------------------------------------------------------------------------------------

FORMS = [{}, {"reverse": True}, {"exclusive": True, "op": "max"}, {"reverse": True, "op": "max"}]


def scanned(x, op="sum", *, exclusive=False, reverse=False):
    ufunc, first = (np.add, 0) if op == "sum" else (np.maximum, np.iinfo(x.dtype).min)
    x = x[::-1] if reverse else x
    y = ufunc.accumulate(x, dtype="i8" if op == "sum" else x.dtype)
    y = np.concatenate([np.full_like(y[:1], first), y[:-1]]) if exclusive else y
    return y[::-1] if reverse else y


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("kind", WRITERS)
def test_inputs(kind, form, made, scan, rng, monkeypatch):
    """Any number of rows, cut into small pieces, and with little memory."""
    monkeypatch.setattr(plan, "CPU_CHUNK", int(rng.integers(200, 3000)))
    n = int(rng.choice([1, 2, 63, 64, 65, 128, rng.integers(3, 900)]))
    x = rng.integers(-99, 99, n, dtype=rng.choice(["i1", "i4", "i8"]))
    path = made("x", {"text": [str(i) for i in range(n)], "x": x}, kind)
    memory = int(rng.choice([2_000, 20_000, 2_000_000]))
    threads = int(rng.integers(1, 5))
    y = scan(path, "y.npy", check=True, memory=memory, threads=threads, **form)
    np.testing.assert_array_equal(y, scanned(x, **form))
    t = scan(f"{path}::x", "y.arrow", memory=memory, threads=threads, **form)
    np.testing.assert_array_equal(values(t, "x.scan"), scanned(x, **form))
    assert values(t, "text").tolist() == [str(i) for i in range(n)]


@pytest.mark.parametrize("kind", WRITERS)
def test_no_rows(kind, made, scan):
    path = made("x", {"x": pa.array([], "i4"), "text": pa.array([], "str")}, kind)
    assert scan(path, "y.npy", op="max").tolist() == []
    t = scan(path, "y.parquet")
    assert t.num_rows == 0
    assert t.column_names == ["x", "text", "x.scan"]
    assert scan(path, "y.arrow").num_rows == 0


DAY = datetime.date(2025, 3, 1)
TYPES = {
    "u2": (pa.array([3, 1, 9], "u2"), "sum", [3, 4, 13], "u8"),
    "u8": (pa.array([2**63, 1, 9], "u8"), "max", [2**63] * 3, "u8"),
    "f2": (pa.array(np.array([0.5, 1, 2], "e")), "sum", [0.5, 1.5, 3.5], "f2"),
    "f4": (pa.array([0.5, 1, 2], "f4"), "sum", [0.5, 1.5, 3.5], "f4"),
    "f8": (pa.array([0.1, 0.2, 0.3]), "fsum", [0.1, 0.1 + 0.2, 0.6], "f8"),
    "bool": (pa.array([True, False, True]), "sum", [1, 1, 2], "i8"),
    "and": (pa.array([True, False, True]), "logical_and", [True, False, False], "?"),
    "timestamp": (pa.array([5, 3, 9], pa.timestamp("us")), "max", [5, 5, 9], "M8[us]"),
    "duration": (pa.array([5, 3, 9], pa.duration("ns")), "sum", [5, 8, 17], "m8[ns]"),
    "date32": (pa.array([5, 3, 9], pa.date32()), "max", [5, 5, 9], "M8[D]"),
    "dictionary": (pa.array([7, 7, 2]).dictionary_encode(), "sum", [7, 14, 16], "i8"),
}


@pytest.mark.parametrize("suffix", BOTH.values())
@pytest.mark.parametrize("kind", ["parquet", "arrow"])
@pytest.mark.parametrize("name", TYPES)
def test_types(name, kind, suffix, made, scan):
    column, op, want, dtype = TYPES[name]
    path = made("x", {"x": column}, kind)
    want = np.array(want).astype(dtype)
    result = scan(f"{path}::x", f"y{suffix}", op=op).column("x.scan")
    assert result.type == pa.from_numpy_dtype(dtype)
    np.testing.assert_array_equal(result.to_numpy(), want)
    y = scan(f"{path}::x", "y.npy", op=op)
    assert y.dtype == want.dtype
    np.testing.assert_array_equal(y, want)


def test_zones(made, scan):
    """The zone of the input, in tables; in arrays, times are UTC."""
    zone = pa.timestamp("ms", "Europe/Berlin")
    path = made("x", {"x": pa.array([5, 3, 9], zone)})
    assert scan(f"{path}::x", op="max").column("x.scan").type == zone
    assert scan(f"{path}::x", "y.npy", op="max").dtype == "M8[ms]"


@pytest.mark.parametrize("kind", BOTH)
def test_names(kind, made, scan):
    """The only numbers beside times; fields of structures; names with dots."""
    x = np.arange(5)
    fields = pa.StructArray.from_arrays([x * 2, x.astype("str")], ["p", "q"])
    path = made("x", {"t": x.astype("M8[s]"), "x": x, "s": fields.slice(0)}, kind)
    with pytest.raises(InputError, match=r"several columns of numbers: name one, such as .*::x"):
        scan(path)
    np.testing.assert_array_equal(values(scan(f"{path}::s.p"), "s.p.scan"), (2 * x).cumsum())
    np.testing.assert_array_equal(values(scan(f"{path}::x"), "x.scan"), x.cumsum())
    np.testing.assert_array_equal(values(scan(f"{path}::x", "y.parquet::z"), "z"), x.cumsum())
    path = made("dots", {"t": x.astype("M8[s]"), "a.b": x, "a": x.astype("str")}, kind)
    np.testing.assert_array_equal(values(scan(path), "a.b.scan"), x.cumsum())


def test_a_structure_without_a_value(made, scan):
    """Its fields have none, either."""
    column = pa.array([{"p": 1}, None, {"p": None}, {"p": 4}])
    path = made("x", {"s": column})
    result = scan(f"{path}::s.p", nulls="skip").column("s.p.scan")
    assert result.to_pylist() == [1, None, None, 5]


def counted(monkeypatch, comm):
    """The rows that this rank decodes, and the groups."""
    rows, groups, real = [], [], table.Column.pieces

    def pieces(column, opened, group, step):
        groups.append(group)
        for piece in real(column, opened, group, step):
            rows.append(len(piece))
            yield piece

    monkeypatch.setattr(table.Column, "pieces", pieces)
    return rows, groups


@pytest.mark.parametrize("kind", ["parquet", "feather"])
def test_a_group_is_decoded_once(kind, made, scan, comm, monkeypatch):
    """By one rank, whatever the number of threads."""
    x = np.arange(64 * 70)
    path = made("x", {"x": x}, kind)
    count = 64 if kind == "feather" else 70
    monkeypatch.setattr(plan, "CPU_CHUNK", 333)
    rows, groups = counted(monkeypatch, comm)
    y = scan(path, "y.npy", threads=4)
    np.testing.assert_array_equal(y, x.cumsum())
    if comm.size == 1:
        assert sorted(groups) == list(range(count))
    every = comm.allgather(set(groups))
    assert sum(map(len, every)) == count
    assert sum(comm.allgather(sum(rows))) == len(x)


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("reverse", [False, True])
def test_a_long_group_is_decoded_in_pieces(reverse, threads, made, scan, comm, rng, monkeypatch):
    x = rng.integers(-9, 9, 100_000)
    path = made("x", {"x": x}, "parquet plain")  # one group
    rows, groups = counted(monkeypatch, comm)
    y = scan(path, "y.npy", memory=400_000, threads=threads, reverse=reverse)
    np.testing.assert_array_equal(y, scanned(x, reverse=reverse))
    assert 0 < max(rows) * 8 <= 400_000 // 4
    if not reverse and comm.size == threads == 1:
        assert groups == [0]


# ---- keys ----------------------------------------------------------------------------------------


def by_key(x, keys):
    heads = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
    return np.concatenate([part.cumsum() for part in np.split(x, heads[1:])])


KEYS = {
    "integers": pa.array,
    "text": lambda keys: pa.array([f"key {key} \u00e9" * 3 for key in keys]),
    "bytes": lambda keys: pa.array([bytes([key % 256, 0]) for key in keys], pa.binary(2)),
    "words": lambda keys: pa.array([f"w{key}" for key in keys]).dictionary_encode(),
    "dates": lambda keys: pa.array(keys, pa.int32()).cast(pa.date32()),
}


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("kind", ["parquet", "arrow", "arrow by polars", "parquet by polars"])
@pytest.mark.parametrize("name", KEYS)
def test_segments(name, kind, reverse, made, scan, rng, monkeypatch):
    """A column of the same table, by its name alone, or of another file."""
    monkeypatch.setattr(plan, "CPU_CHUNK", 300)
    x, keys = rng.integers(-9, 9, 500), np.sort(rng.integers(0, 30, 500))
    path = made("x", {"k": KEYS[name](keys), "x": x}, kind)
    want = by_key(x[::-1], keys[::-1])[::-1] if reverse else by_key(x, keys)
    options = {"segments": "k", "reverse": reverse, "threads": 2}
    np.testing.assert_array_equal(values(scan(f"{path}::x", **options), "x.scan"), want)
    options["segments"] = f"{path}::k"
    np.testing.assert_array_equal(scan(f"{path}::x", "y.npy", **options), want)


def test_a_file_of_that_name_comes_first(made, scan, folder, run, save, comm):
    made("x", {"k": [1, 1, 2, 2], "x": [1, 2, 3, 4]})
    assert run("x.parquet::x", "-o", "y.npy", "--segments", "k", "--quiet")[0] == 0
    assert np.load(folder / "y.npy").tolist() == [1, 3, 3, 7]
    save("k.npy", np.array([False, False, False, True]))
    if comm.rank == 0:
        (folder / "k.npy").rename(folder / "k")
    comm.Barrier()
    assert run("x.parquet::x", "-o", "z.npy", "--segments", "k", "--quiet")[0] == 0
    assert np.load(folder / "z.npy").tolist() == [1, 3, 6, 4]


@pytest.mark.parametrize("keys", [["a", "a", None], [1, 1, None]], ids=["text", "numbers"])
def test_keys_without_a_value(keys, made, scan):
    path = made("x", {"k": keys, "x": [1, 2, 3]})
    with pytest.raises(InputError, match=r"x.parquet::k has no value in row 2(?!:)"):
        scan(f"{path}::x", segments="k", nulls="skip")


def test_a_state_goes_on_with_its_key(made, scan, folder):
    first = made("a", {"k": ["p", "q"], "x": [1, 2]})
    second = made("b", {"k": ["q", "q", "r"], "x": [3, 4, 5]})
    options = {"segments": "k", "state": folder / "state"}
    assert values(scan(f"{first}::x", **options), "x.scan").tolist() == [1, 2]
    assert values(scan(f"{second}::x", **options), "x.scan").tolist() == [5, 9, 5]


# ---- several files -------------------------------------------------------------------------------


def test_a_folder(made, scan, folder, comm, rng, run):
    x, keys = rng.integers(-9, 9, 700), np.arange(700) // 90
    if comm.rank == 0:
        (folder / "parts").mkdir()
        (folder / "parts" / "_SUCCESS").touch()
    comm.Barrier()
    for i, (low, high) in enumerate([(0, 300), (300, 300), (300, 500), (500, 700)]):
        made(f"parts/{i}", {"k": keys[low:high], "x": x[low:high]})
    t = scan(f"{folder}/parts/::x", segments="k", threads=3)
    np.testing.assert_array_equal(values(t, "x"), x)
    np.testing.assert_array_equal(values(t, "x.scan"), by_key(x, keys))
    assert run("parts/::x", "-o", "z.npy", "--quiet", "--force")[0] == 0
    np.testing.assert_array_equal(np.load(folder / "z.npy"), x.cumsum())
    another = made("another", {"x": x})
    inputs = [f"{folder}/parts/0.parquet::x", another]
    np.testing.assert_array_equal(scan(inputs, "y.npy"), np.concatenate([x[:300], x]).cumsum())
    with pytest.raises(OutputError, match="has other columns than"):
        scan(inputs)
    if comm.rank == 0:
        np.save(folder / "x.npy", x)
    comm.Barrier()
    with pytest.raises(OutputError, match="some inputs are tables, others are not"):
        scan([another, folder / "x.npy"])


# ---- elements without a value --------------------------------------------------------------------

X = [None, 3, None, -2, 5, None, 0]
NULLS = {
    "sum": ([None, 3, None, 1, 6, None, 6], [0, 3, 3, 1, 6, 6, 6]),
    "fsum": ([None, 3, None, 1, 6, None, 6], [0, 3, 3, 1, 6, 6, 6]),
    "prod": ([None, 3, None, -6, -30, None, 0], [0] * 7),
    "max": ([None, 3, None, 3, 5, None, 5], [0, 3, 3, 3, 5, 5, 5]),
    "min": ([None, 3, None, -2, -2, None, -2], [0, 0, 0, -2, -2, -2, -2]),
    "logical_or": ([None, True, None, True, True, None, True], [False] + [True] * 6),
    "logical_and": ([None, True, None, True, True, None, False], [False] * 7),
}


@pytest.mark.parametrize("dtype", ["i2", "f4"])
@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("op", NULLS)
def test_nulls(op, kind, dtype, made, scan):
    path = made("x", {"x": pa.array(X, dtype)}, kind)
    with pytest.raises(InputError, match=r"::x has no value in row 0: nulls='skip' leaves it out"):
        scan(path, op=op)
    skipped, zero = NULLS[op]
    for suffix in BOTH.values():
        t = scan(path, f"y{suffix}", op=op, nulls="skip", check=op != "fsum")
        assert t.column("x.scan").to_pylist() == skipped
        assert t.column("x").to_pylist() == X
        t = scan(path, f"y{suffix}", op=op, nulls="zero", check=op != "fsum")
        assert t.column("x.scan").to_pylist() == zero


def test_nulls_of_exclusive_scans(made, scan):
    path = made("x", {"x": pa.array(X, "i2")})
    t = scan(path, nulls="skip", exclusive=True, op="max")
    assert t.column("x.scan").to_pylist() == [None, -(2**15), None, 3, 3, None, 5]
    t = scan(path, nulls="skip", reverse=True)
    assert t.column("x.scan").to_pylist() == [None, 6, None, 3, 5, None, 0]
    assert scan(path, "y.npy", nulls="skip").tolist() == [0, 3, 3, 1, 6, 6, 6]


def test_the_first_null(made, run):
    made("x", {"x": pa.array([*range(100), None, 3, None])})
    status, _, err = run("x.parquet", "--quiet")
    assert status == 2
    assert "x.parquet::x has no value in row 100: --nulls skip leaves it out" in err
    assert err.count("\n") == 1


def test_nulls_of_dictionaries(made, scan):
    """An element without a value may have a place in the dictionary."""
    x = pa.DictionaryArray.from_arrays([0, 1, None, 0], [5, None])
    keys = pa.DictionaryArray.from_arrays([0, 0, 1, 0], ["a", None])
    path = made("x", {"x": x, "k": keys}, "arrow")
    with pytest.raises(InputError, match="::x has no value in row 1:"):
        scan(f"{path}::x")
    t = scan(f"{path}::x", "y.arrow", nulls="skip")
    assert t.column("x.scan").to_pylist() == [5, None, None, 10]
    with pytest.raises(InputError, match=r"::k has no value in row 2(?!:)"):
        scan(f"{path}::x", nulls="skip", segments="k")


def test_times_without_a_value(made, scan):
    path = made("x", {"x": pa.array([None, 5, None, 3], pa.timestamp("s"))}, "arrow")
    t = scan(f"{path}::x", "y.arrow", nulls="skip", op="min")
    assert t.column("x.scan").cast("i8").to_pylist() == [None, 5, None, 3]
    with pytest.raises(ValueError, match="which has no 0"):
        scan(f"{path}::x", nulls="zero", op="min")


first = Operator("first", lambda a, b: a)
halves = Operator("halves", np.add, identity=1, load=lambda x: x / 2)


@pytest.mark.parametrize(
    ("name", "options", "fault"),
    [
        ("f", {"op": first}, "operator 'first' has no identity"),
        ("f", {"op": halves}, "float32 has no value that changes nothing in 'halves'"),
        ("i", {"op": "max", "dtype": "i8"}, "int16 has no value that changes nothing"),
        ("i", {"op": "logaddexp"}, "int16 has no value that changes nothing"),
        ("i", {"nulls": "ignore"}, "unknown nulls 'ignore'; choose from refuse, skip, zero"),
    ],
)
def test_nulls_that_cannot_be_skipped(name, options, fault, made, scan):
    path = made("x", {"f": pa.array(X, "f4"), "i": pa.array(X, "i2")})
    with pytest.raises(ValueError, match=fault):
        scan(f"{path}::{name}", **{"nulls": "skip"} | options)


def test_nulls_are_of_tables(folder, save):
    save("x.npy", np.arange(3))
    with pytest.raises(ValueError, match="nulls='skip' is for Parquet and Arrow"):
        scan_file(folder / "x.npy", folder / "y.npy", nulls="skip", backend="cpu")


# ---- output --------------------------------------------------------------------------------------


def test_what_is_carried_over(made, scan, folder, comm):
    """The metadata of pandas, row groups, compression, types."""
    frame = pandas.DataFrame(
        {
            "x": [1.5, 2.5, 4.0],
            "c": pandas.Categorical(["u", "v", "u"]),
            "d": pandas.date_range("2025-01-01", periods=3, tz="UTC"),
        },
        index=pandas.Index([7, 8, 9], name="row"),
    )
    if comm.rank == 0:
        frame.to_parquet(folder / "x.parquet", row_group_size=2, compression="gzip")
    comm.Barrier()
    scan(f"{folder}/x.parquet::x")
    result = pandas.read_parquet(folder / "y.parquet")
    pandas.testing.assert_frame_equal(result.drop(columns="x.scan"), frame)
    assert result["x.scan"].tolist() == [1.5, 4, 8]
    with pq.ParquetFile(folder / "y.parquet") as file:
        groups = [file.metadata.row_group(i) for i in range(file.metadata.num_row_groups)]
    assert [group.num_rows for group in groups] == [2, 1]
    assert {groups[0].column(i).compression for i in range(5)} == {"GZIP"}
    scan(f"{folder}/x.parquet::x", "y.parquet::total")
    assert "total" in polars.read_parquet(folder / "y.parquet").columns


@pytest.mark.parametrize("codec", ["NONE", "SNAPPY", "GZIP", "BROTLI", "ZSTD", "LZ4"])
def test_compression(codec, folder, comm, scan):
    """Of each column on its own; that of the result is that of its input."""
    codecs = {"x": codec, "k": "ZSTD", "s.p": "GZIP"}
    t = pa.table({"x": [1, 2], "k": [3, 4], "s": [{"p": 5}, {"p": 6}]})
    if comm.rank == 0:
        pq.write_table(
            t,
            folder / "x.parquet",
            compression=codecs,
            use_dictionary=["k"],
            write_page_index=True,
            sorting_columns=[pq.SortingColumn(1, descending=True)],
        )
    comm.Barrier()
    scan(f"{folder}/x.parquet::x")
    group = pq.read_metadata(folder / "y.parquet").row_group(0)
    columns = {group.column(i).path_in_schema: group.column(i) for i in range(4)}
    stored = {name: each.compression for name, each in columns.items()}
    name = "UNCOMPRESSED" if codec == "NONE" else codec
    assert stored == {"x": name, "k": "ZSTD", "s.p": "GZIP", "x.scan": name}
    assert [name for name, each in columns.items() if each.has_dictionary_page] == ["k"]
    assert all(each.has_column_index for each in columns.values())
    assert group.sorting_columns == (pq.SortingColumn(1, descending=True),)


def test_batches_that_are_carried_over(made, scan, folder):
    t = pa.table({"c": pa.array(["u", "v", "u"]).dictionary_encode(), "x": [1, 2, 3]})
    t = t.replace_schema_metadata({"who": "we"})
    path = made("x", t, "arrow compressed")
    result = scan(path, "y.arrow")
    assert result.drop_columns("x.scan").equals(t, check_metadata=True)
    with pa.ipc.open_file(folder / "y.arrow") as file, pa.ipc.open_file(path) as given:
        rows = [file.get_batch(i).num_rows for i in range(file.num_record_batches)]
        want = [given.get_batch(i).num_rows for i in range(given.num_record_batches)]
        assert rows == [count for count in want if count]
    assert formats.of(path).inspect(folder / "y.arrow", member="x").codec == "zstd"
    assert formats.of(path).inspect(path, member="x").codec == "zstd"
    assert polars.read_ipc(folder / "y.arrow")["x.scan"].to_list() == [1, 3, 6]


@pytest.mark.parametrize("suffix", BOTH.values())
def test_an_input_that_is_no_table(suffix, save, folder, scan):
    """One column; several axes only if the scan flattens them."""
    save("x.npy", np.arange(12).reshape(3, 4))
    t = scan(folder / "x.npy", f"y{suffix}")
    assert t.column_names == ["scan"]
    np.testing.assert_array_equal(values(t, "scan"), np.arange(12).cumsum())
    report = scan_file(folder / "x.npy", folder / f"y{suffix}", backend="cpu", force=True)
    assert report.bounds["write"].endswith(", encoded by rank 0")
    with pytest.raises(OutputError, match=r"a column has one axis, and no shape \(3, 4\)"):
        scan(folder / "x.npy", f"y{suffix}", axis=0)
    with pytest.raises(OutputError, match="a table holds no complex64"):
        scan(folder / "x.npy", f"z{suffix}", dtype="F")


def test_a_column_of_that_name(made, scan, folder):
    path = made("x", {"x": [1, 2], "x.scan": ["a", "b"]})
    with pytest.raises(
        OutputError, match=r"y.parquet: the input has a column x.scan; name another"
    ):
        scan(path)
    assert scan(path, "y.parquet::z").column_names == ["x", "x.scan", "z"]


def test_dictionaries_that_differ(made, scan):
    """A file of Arrow has one; row groups of Parquet have one each."""
    words = pa.array(["u"] * 70 + ["v"] * 70).dictionary_encode()
    path = made("x", {"c": words, "x": np.arange(140)})
    with pytest.raises(OutputError, match="one dictionary for c, the input may have several"):
        scan(path, "y.arrow")
    np.testing.assert_array_equal(values(scan(path), "x.scan"), np.arange(140).cumsum())


@pytest.mark.parametrize("suffix", BOTH.values())
@pytest.mark.parametrize("step", ["encode", "publish"])
def test_resumed(step, suffix, made, scan, folder, comm, rng, monkeypatch):
    """A job that fails after its results are written goes on with them."""
    x = rng.integers(-9, 9, 700)
    path = made("x", {"x": x})
    options = {"resume": True, "force": False}
    with monkeypatch.context() as patch:

        def fail(*_, **__):
            raise OSError(errno.EIO, "a fault of the disk")

        patch.setattr(*(Staging, "finish") if step == "encode" else (output, "publish"), fail)
        with pytest.raises(OSError, match="a fault of the disk"):
            scan(path, f"y{suffix}", **options)
    assert not (folder / f"y{suffix}").exists()
    comm.Barrier()
    made = []
    monkeypatch.setattr(formats.of(folder / f"y{suffix}"), "create", lambda *_: made.append(1))
    t = scan(path, f"y{suffix}", **options)
    assert not made
    np.testing.assert_array_equal(values(t, "x.scan"), x.cumsum())
    assert sorted(each.name for each in folder.iterdir()) == ["x.parquet", f"y{suffix}"]


def test_stopped_on_the_way(made, scan, comm, rng, monkeypatch):
    """A job goes on after the last of its records, and decodes the rest alone."""
    x = pa.array(rng.integers(-9, 9, 2000), mask=rng.random(2000) < 0.1)
    path = made("x", {"k": np.arange(2000) // 300, "x": x})
    monkeypatch.setattr(plan, "CPU_CHUNK", 800)
    monkeypatch.setattr(restart, "PERIOD", 0)
    monkeypatch.setattr(restart, "_SHARE", 0)
    options = {"segments": "k", "nulls": "skip", "resume": True, "threads": 1, "trust_input": True}
    with monkeypatch.context() as patch:
        spoil(patch, full_after(4))
        with pytest.raises(OSError, match="no more"):
            scan(f"{path}::x", **options, force=False)
    with pytest.raises(ValueError, match="nulls was skip, and is zero"):
        scan(f"{path}::x", **options | {"nulls": "zero"}, force=False)
    rows, _ = counted(monkeypatch, comm)
    t = scan(f"{path}::x", **options, force=False).to_pandas()
    want = t.assign(x=t["x"].fillna(0)).groupby("k")["x"].cumsum().where(t["x"].notna())
    pandas.testing.assert_series_equal(t["x.scan"], want, check_names=False)
    assert 0 < sum(comm.allgather(sum(rows))) < 2 * 2000  # of two columns


@pytest.mark.one_rank
@pytest.mark.parametrize("suffix", BOTH.values())
def test_killed_while_the_table_is_written(suffix, tmp_path):
    pq.write_table(pa.table({"x": np.arange(1000)}), tmp_path / "x.parquet", row_group_size=100)
    program = """
import os, signal, sys
from distscan.job.formats import table
def killed(output, fill, show, real=table.Output.tables):
    for i, each in enumerate(real(output, fill, show)):
        yield each
        if i == 4:
            os.kill(os.getpid(), signal.SIGKILL)
table.Output.tables = killed
from distscan.cli import main
sys.exit(main([*sys.argv[1:], "--backend", "cpu", "--resume"]))
"""
    run = python(program, tmp_path / "x.parquet", "-o", tmp_path / f"y{suffix}")
    assert run.returncode == -9
    assert not (tmp_path / f"y{suffix}").exists()
    options = {"backend": "cpu", "resume": True}
    scan_file(tmp_path / "x.parquet", tmp_path / f"y{suffix}", **options)
    t = read(tmp_path / f"y{suffix}")
    np.testing.assert_array_equal(values(t, "x.scan"), np.arange(1000).cumsum())
    assert sorted(each.name for each in tmp_path.iterdir()) == ["x.parquet", f"y{suffix}"]


@pytest.mark.parametrize("suffix", BOTH.values())
def test_a_full_disk(suffix, made, scan, folder, comm):
    """While the table is written: one line, and nothing is left behind."""
    path = made("x", {"x": np.arange(700)})
    real = parquet.table.Output.tables

    def full(*arguments):
        yield from real(*arguments)
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parquet.table.Output, "tables", full)
        with pytest.raises(OSError, match=rf"cannot write .*y{suffix}: No space left"):
            scan(path, f"y{suffix}")
    assert [each.name for each in folder.iterdir()] == ["x.parquet"]


def test_one_group_at_a_time(made, scan, comm, monkeypatch):
    """No more of the input is in memory when the table is written."""
    path = made("x", {"x": np.arange(64 * 20)})
    rows, real = [], parquet.ParquetColumn.tables

    def tables(column):
        for each in real(column):
            rows.append(each.num_rows)
            yield each

    monkeypatch.setattr(parquet.ParquetColumn, "tables", tables)
    scan(path)
    assert rows == ([64] * 20 if comm.rank == 0 else [])


# ---- what is refused -----------------------------------------------------------------------------


def cut(kind, keep):
    def write(folder):
        path = written(folder, {"x": np.arange(3000) * 7919 % 1009, "s": ["a"] * 3000}, kind)
        data = path.read_bytes()
        path.write_bytes(data[: keep if keep > 0 else len(data) + keep])
        return path

    return write


def spoilt(kind, sign):
    """The bytes after a sign are others."""

    def write(folder):
        t = pa.table({"x": np.arange(3000) * 7919 % 1009})
        path = folder / f"x.{kind}"
        if kind == "parquet":
            pq.write_table(
                t, path, write_page_checksum=True, compression="none", use_dictionary=False
            )
        else:
            feather.write_feather(t, path, compression="zstd")
        data = bytearray(path.read_bytes())
        at = data.index(sign) + len(sign)
        data[at : at + 40] = b"\xff\x00" * 20
        path.write_bytes(data)
        return path

    return write


def stream(folder):
    t = pa.table({"x": [1]})
    with pa.ipc.new_stream(folder / "x.arrow", t.schema) as writer:
        writer.write_table(t)
    return folder / "x.arrow"


def text(suffix):
    def write(folder):
        (folder / f"x{suffix}").write_text("1,2,3")
        return folder / f"x{suffix}"

    return write


def of(columns, name="", kind="parquet"):
    def write(folder):
        path = written(folder, columns, kind)
        return f"{path}::{name}" if name else path

    return write


REFUSED = {
    "no file": (lambda folder: folder / "x.parquet", "cannot read .*: No such file"),
    "text": (text(".parquet"), "cannot read .*x.parquet: it is text"),
    "text.arrow": (text(".arrow"), "cannot read .*x.arrow: it is text"),
    "stream": (stream, "it is a stream of Arrow, which is read in order alone"),
    "no end": (cut("parquet", 900), "cannot read .*x.parquet: "),
    "one byte less": (cut("parquet", -1), "cannot read .*x.parquet: "),
    "one byte": (cut("parquet", 1), "cannot read .*x.parquet: "),
    "no end.arrow": (cut("feather", 900), "cannot read .*x.feather: its end is missing"),
    "one byte less.arrow": (cut("arrow", -1), "cannot read .*x.arrow: its end is missing"),
    "spoilt": (spoilt("parquet", np.int64(856).tobytes()), "cannot read .*x.parquet: "),
    "spoilt.arrow": (spoilt("arrow", b"\x28\xb5\x2f\xfd"), "cannot read .*x.arrow: "),
    "two": (of({"a": [1], "b": [2]}), "has several columns of numbers: name one, such as .*::a"),
    "none": (of({"a": ["u"]}), "has no column of numbers"),
    "unknown": (of({"a": [1], "b": [2]}, "c"), "there is no .*::c; columns: a, b"),
    "a structure": (of({"s": [{"p": 1}]}, "s"), "there is no .*::s; columns: s.p"),
    "words": (of({"a": ["u"]}, "a"), "::a holds string; a scan takes numbers"),
    "lists": (of({"a": [[1], [2]]}, "a"), "::a holds list<.*>; a scan takes numbers"),
    "decimals": (
        of({"a": pa.array([1], pa.decimal128(9, 2))}, "a"),
        "::a holds decimal128.*: cast it to float64",
    ),
    "twice": (
        of(pa.Table.from_arrays([pa.array([1])] * 2, ["a", "a"]), "a", "arrow"),
        "has 2 columns a: rename one",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", REFUSED)
def test_refused_inputs(kind, folder, comm, scan):
    """In one line, on every rank; nothing is left behind."""
    write, fault = REFUSED[kind]
    given = comm.bcast(write(folder) if comm.rank == 0 else None)
    before = sorted(folder.iterdir())
    comm.Barrier()
    with pytest.raises(InputError, match=fault) as caught:
        scan(given, "y.npy")
    assert "\n" not in str(caught.value)
    assert sorted(folder.iterdir()) == before
    comm.Barrier()


@pytest.mark.parametrize("when", ["read", "encode"])
@pytest.mark.parametrize("kind", BOTH)
def test_a_file_that_changes(kind, when, made, scan, folder, comm, monkeypatch):
    given = made("x", {"x": np.arange(1000)}, kind)
    owner, name = (plan.JobPlan, "of") if when == "read" else (Staging, "finish")
    real = getattr(owner, name)

    def change(*arguments):
        if when == "read":
            comm.Barrier()
        if comm.rank == 0:
            written(folder, {"x": np.arange(1000) + 1, "y": np.arange(1000)}, kind)
        if when == "read":
            comm.Barrier()
        return real(*arguments)

    monkeypatch.setattr(owner, name, change)
    with pytest.raises(InputError, match="was changed while it was read"):
        scan(given, "y.parquet")
    assert [each.name for each in folder.iterdir()] == [given.name]


@pytest.mark.one_rank
def test_without_pyarrow(tmp_path):
    program = """
import sys
class NoArrow:
    def find_spec(self, name, path=None, target=None):
        if name == "pyarrow":
            raise ImportError("there is none")
sys.meta_path.insert(0, NoArrow())
from distscan.cli import main
sys.exit(main([sys.argv[1], "--backend", "cpu"]))
"""
    pq.write_table(pa.table({"x": [1]}), tmp_path / "x.parquet")
    run = python(program, tmp_path / "x.parquet")
    assert run.returncode == 2
    assert "parquet needs pyarrow, which cannot be imported" in run.stderr
    assert "pip install 'distscan[parquet]'" in run.stderr


def test_the_command_line(made, run, folder):
    """By default the output is beside the input, and a table too."""
    made("x", {"k": ["a", "a", "b"], "x": pa.array([1, None, 3])})
    status, out, _ = run("x.parquet::x", "--segments", "k", "--nulls", "skip", "--json")
    assert status == 0
    assert json.loads(out)["output"] == "x.scan.parquet"
    assert read(folder / "x.scan.parquet").column("x.scan").to_pylist() == [1, None, 3]
