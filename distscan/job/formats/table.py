"""Columns of tables as input, and tables with one more column as output: for Parquet and Arrow.

A table lies in groups of rows, one after the other. A group is decoded in pieces, as they are
needed, and the latest pieces stay in memory. The output has all columns of the input, and the
results as one more::

    input   -> groups -> pieces of one column -> elements     each rank, its part
    output  <- groups <- groups of the input, and results     rank 0 alone, one group at a time
"""

import threading
from abc import abstractmethod
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from itertools import accumulate
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...core import dtypes
from ...core.errors import InputError, OutputError
from ...core.operators import BUILTIN
from ...options import ScanOptions
from . import files, npy
from .files import Encode, File, Indirect, Staging
from .interface import (
    READERS,
    WINDOW,
    Fill,
    Layout,
    Location,
    Show,
    Source,
    imported,
    option,
)

_ROWS = 1 << 20  # rows of a group of an output whose input is no table
_DIGEST = np.dtype("u8")  # of the digests that stand for keys of text

NO_TYPE = np.dtype(np.void)  # of a column that is not known yet

arrow = partial(imported, "pyarrow", "parquet")


# ---- columns, and their types ----------------------------------------------------------------


class Leaf(NamedTuple):
    """A column, or a field inside a column of structures."""

    names: tuple[str, ...]
    places: tuple[int, ...]  # among the columns, and among the fields
    type: Any  # of Arrow

    @property
    def name(self) -> str:
        """The name, with dots before fields."""
        return ".".join(self.names)

    def of(self, batch: Any, places: Sequence[int]) -> Any:
        """Return the column in a batch; ``places`` are those in this batch."""
        array = batch.column(places[0])
        for place in places[1:]:
            array = imported("pyarrow.compute", "parquet").struct_field(array, [place])
        return array


def _leaves(fields: Any, names: tuple[str, ...] = (), places: tuple[int, ...] = ()) -> Any:
    """Yield all columns of a schema, and all fields of its structures."""
    is_struct = arrow().types.is_struct
    for i, field in enumerate(fields):
        leaf = Leaf((*names, field.name), (*places, i), field.type)
        if is_struct(field.type):
            yield from _leaves(field.type, leaf.names, leaf.places)
        else:
            yield leaf


def find(schema: Any, path: Path, member: str, kinds: str) -> Leaf:
    """Return the column of a name, or the only one of numbers; raise ``InputError``."""
    leaves: list[Leaf] = [*_leaves(schema)]
    listed = ", ".join(leaf.name for leaf in leaves[:8]) + ", ..." * (len(leaves) > 8)
    if member:
        matches = [leaf for leaf in leaves if leaf.name == member]
    else:
        pairs = [(leaf, dtype_of(leaf.type, kinds)) for leaf in leaves]
        others = [leaf for leaf, dtype in pairs if dtype is not None]
        matches = [leaf for leaf, dtype in pairs if dtype is not None and dtype.kind in "iuf"]
        matches = matches or others  # most tables have times beside the numbers of interest
    if len(matches) == 1:
        return matches[0]
    if not leaves:
        raise InputError(f"{path} has no columns")
    if not member:
        what = "several columns" if matches else "no column"
        example = Location(path, (matches or leaves)[0].name)
        raise InputError(
            f"{path} has {what} of numbers: name one, such as {example}; it has {listed}"
        )
    name = Location(path, member)
    if matches:
        raise InputError(f"{path} has {len(matches)} columns {member}: rename one")
    raise InputError(f"there is no {name}; columns: {listed}")


def dtype_of(type: Any, kinds: str) -> np.dtype[Any] | None:
    """Return NumPy's type of the elements of a column; None if it has none of these kinds.

    Text, which keys may be, is a digest: so GPUs and compiled kernels take it.
    """
    types = arrow().types
    if types.is_dictionary(type):
        return dtype_of(type.value_type, kinds)
    name: Any = None
    if types.is_boolean(type) or types.is_integer(type) or types.is_floating(type):
        name = type.to_pandas_dtype()
    elif types.is_timestamp(type):  # with a zone: in UTC
        name = f"M8[{type.unit}]"
    elif types.is_duration(type):
        name = f"m8[{type.unit}]"
    elif types.is_date(type):
        name = "M8[D]" if types.is_date32(type) else "M8[ms]"
    elif _is_text(type) and "S" in kinds:
        name = _DIGEST
    dtype = None if name is None else np.dtype(name)
    return None if dtype is None or dtype.kind not in kinds else dtype


def _is_text(type: Any) -> bool:
    types = arrow().types
    return any(
        is_type(type)
        for is_type in (
            types.is_string,
            types.is_large_string,
            types.is_string_view,
            types.is_binary,
            types.is_large_binary,
            types.is_binary_view,
            types.is_fixed_size_binary,
        )
    )


def check_type(leaf: Leaf, path: Path, kinds: str) -> np.dtype[Any]:
    """Return NumPy's type of a column; raise ``InputError`` for what is not of these kinds."""
    dtype = dtype_of(leaf.type, kinds)
    if dtype is None:
        remedy = ""
        if arrow().types.is_decimal(leaf.type):
            remedy = ": cast it to float64, or to an integer of its smallest unit"
        raise InputError(
            f"{Location(path, leaf.name)} holds {leaf.type}; a scan takes numbers{remedy}"
        )
    return dtype


# ---- from Arrow to NumPy ---------------------------------------------------------------------


def _without_dictionary(array: Any) -> Any:
    """Return an array without its dictionary, unless it is of text; nulls may be in either."""
    if not arrow().types.is_dictionary(array.type):
        return array
    values = array.type.value_type
    chunks = getattr(array, "chunks", [array])
    if _is_text(values) and not any(chunk.dictionary.null_count for chunk in chunks):
        return array
    return array.cast(values)


def _elements(array: Any, dtype: np.dtype[Any], null: Any) -> NDArray[Any]:
    """Return the elements of an array of Arrow; ``null`` takes the place of those without one."""
    types, pyarrow = arrow().types, arrow()
    if types.is_dictionary(array.type) or _is_text(array.type):
        return _digests(array)
    mask = np.asarray(array.is_null()) if array.null_count else None
    if types.is_boolean(array.type):
        array = array.cast(pyarrow.uint8())
    width = array.type.bit_width // 8
    stored = np.dtype(f"i{width}") if dtype.kind in "bmM" else dtype
    data, first = array.buffers()[1], array.offset
    if data is None or len(array) == 0:
        values: NDArray[Any] = np.zeros(len(array), stored)
    else:
        values = np.frombuffer(data, stored, len(array), first * width)
    if stored != dtype:
        values = values.astype(np.bool_) if dtype.kind == "b" else values.astype("i8").view(dtype)
    if mask is None:
        return values
    return np.where(mask, null, values).astype(dtype, copy=False)


def _digests(array: Any) -> NDArray[Any]:
    """Return digests of texts, which are equal if the texts are."""
    from hashlib import blake2b  # noqa: PLC0415 - it takes 3 ms

    pyarrow = arrow()
    if not pyarrow.types.is_dictionary(array.type):
        array = array.cast(pyarrow.large_binary()).dictionary_encode()
    codes, inverse = np.unique(np.asarray(array.indices), return_inverse=True)
    texts = array.dictionary
    if texts.type in (pyarrow.string_view(), pyarrow.binary_view()):  # which ``take`` does not know
        texts = texts.cast(pyarrow.large_binary())
    texts = texts.take(pyarrow.array(codes)).cast(pyarrow.large_binary())
    size = _DIGEST.itemsize
    digests = b"".join(
        blake2b(text or b"", digest_size=size).digest() for text in texts.to_pylist()
    )
    return np.frombuffer(digests, _DIGEST)[inverse]


# ---- input -----------------------------------------------------------------------------------


class Column(Indirect):
    """A column of a table; a subclass for each format decodes it.

    Attributes
    ----------
    leaf
        Its name and type.
    nulls
        Whether elements without a value are refused, skipped, or 0.
    """

    def __init__(self, file: File, leaf: Leaf, rows: Sequence[int], *, keys: bool) -> None:
        """``rows`` are those of each group; ``keys`` says that the elements may be keys."""
        super().__init__(file)
        self.leaf, self._keys = leaf, keys
        self._rows, self._starts = list(rows), [0, *accumulate(rows)]
        self.nulls, self._null = "refuse", None
        longest = max(rows, default=0)
        if longest > 0 and {*rows[:-1]} <= {longest}:  # no group is decoded by two ranks
            self.tile = (longest,)

    @abstractmethod
    def open(self) -> Any:
        """Open the file for one thread at a time, and return what ``decode`` needs."""

    @abstractmethod
    def decode(self, handle: Any, group: int, step: int) -> Iterator[Any]:
        """Yield the arrays of a group, of about ``step`` rows."""

    @abstractmethod
    def schema(self) -> Any:
        """Return the schema of the whole table."""

    @abstractmethod
    def tables(self) -> Iterator[Any]:
        """Yield the whole table, group by group."""

    def replace_nulls(self, scan: ScanOptions) -> None:
        """Let elements without a value count for what the options say."""
        self.nulls, self._null = scan.nulls, _null(self, scan)

    def needs_window(self, *, flattened: bool) -> bool:
        """Return whether pieces stay in memory."""
        return True

    @contextmanager
    def reading(self, *, flattened: bool = False, window: int = WINDOW) -> Iterator[Fill]:
        """Open the file, and yield a function that fills arrays."""
        pieces = _Pieces(self, window or WINDOW)
        try:
            yield pieces.fill
        finally:
            pieces.close()
        self.check_unchanged()

    def check_unchanged(self) -> None:
        """Raise ``InputError`` if the file has changed since it was inspected."""
        assert self.file.stamp is not None
        files.check_unchanged(self.path, self.file.stamp)

    def group_of(self, row: int) -> tuple[int, int]:
        """Return the group of a row, and its first row."""
        group = bisect_right(self._starts, row) - 1
        return group, self._starts[group]

    def count(self, group: int, step: int) -> int:
        """Return the number of pieces of a group."""
        return -(-self._rows[group] // step)

    def pieces(self, handle: Any, group: int, step: int) -> Generator[NDArray[Any], None, None]:
        """Yield the elements of a group in pieces of ``step`` rows; the last may have fewer."""
        rest: list[NDArray[Any]] = []
        at, count = self._starts[group], 0
        for array in self._arrays(handle, group, step):
            if array.null_count and self._null is None:
                self._refuse_null(at + int(np.asarray(array.is_null()).argmax()))
            at += len(array)
            with self.explained():
                rest.append(_elements(array, self.dtype, self._null))
            count += len(array)
            while count >= step:
                joined = rest[0] if len(rest) == 1 else np.concatenate(rest)
                yield joined[:step]
                rest, count = [joined[step:]], count - step
        if at != self._starts[group + 1]:
            raise InputError(f"{self.path} is damaged: it has not as many rows as it says")
        if count:
            yield np.concatenate(rest)

    def _arrays(self, handle: Any, group: int, step: int) -> Iterator[Any]:
        """Yield what ``decode`` does, without dictionaries of numbers; explain its errors."""
        arrays = self.decode(handle, group, step)
        while True:
            with self.explained():
                array = next(arrays, None)
                array = None if array is None else _without_dictionary(array)
            if array is None:
                return
            yield array

    def _refuse_null(self, row: int) -> None:
        remedy = ""
        if not self._keys:
            skip, zero = (option("nulls", name, repr(name)) for name in ("skip", "zero"))
            remedy = f": {skip} leaves it out, {zero} counts it as 0"
        raise InputError(f"{self.name} has no value in row {row}{remedy}")

    def explained(self) -> AbstractContextManager[None]:
        """Turn the errors of pyarrow for what is damaged into an ``InputError``."""
        return explained(self.file)


@contextmanager
def explained(file: File, reason: str = "") -> Iterator[None]:
    """Turn the errors of pyarrow for what is damaged into an ``InputError``."""
    pyarrow = arrow()
    try:
        yield
    except InputError:
        raise
    except (pyarrow.ArrowException, OSError, ValueError, OverflowError) as error:
        assert file.stamp is not None
        files.check_unchanged(file.path, file.stamp)
        raise InputError(f"cannot read {file.path}: {reason or first_line(error)}") from error


def first_line(error: Exception) -> str:
    """Return the first line of an error's text."""
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")


def _null(column: Column, scan: ScanOptions) -> Any:
    """Return the element that takes the place of one without a value; raise ValueError."""
    dtype = column.dtype
    if scan.nulls == "zero":
        if dtype.kind == "M":
            raise ValueError(f"{column.name} holds {dtype}, which has no 0: nulls cannot be 0")
        return np.zeros((), dtype)[()]
    op, wanted = (BUILTIN["sum"], None) if scan.op == "fsum" else (scan.op, scan.dtype)
    refused = f"nulls of {column.name} cannot be skipped: "
    if op.identity is None:
        raise ValueError(f"{refused}operator {op.name!r} has no identity")
    acc = dtypes.resolve(op, dtype, wanted).acc
    neutral = np.asarray(op.identity(acc)).astype(acc).reshape(1)
    null = dtypes.cast(neutral, dtype)
    read = dtypes.cast(null, acc)
    if op.load is not None:
        read = np.asarray(op.load(read))
    if read.tobytes() != neutral.tobytes():
        raise ValueError(f"{refused}{dtype} has no value that changes nothing in {op.name!r}")
    return null[0]


class _Pieces:
    """The latest pieces of a column, in some bytes of memory; several threads may ask at once.

    A group is decoded by one thread at a time, from its beginning on. Whoever needs a later piece
    of it goes on where another thread has stopped. Of several threads that wait, the one that needs
    the earliest piece comes first: so no thread runs far ahead of others, which would need pieces
    that are no longer in memory.
    """

    def __init__(self, column: Column, window: int) -> None:
        self._column = column
        # A quarter of the window is for pieces on their way, one of each thread.
        self._step = max(1, window // (4 * READERS) // column.dtype.itemsize)
        self._room, self._nbytes = window * 3 // 4, 0
        # All that follows is changed by one thread at a time.
        self._changed = threading.Condition()
        self._latest: OrderedDict[tuple[int, int], NDArray[Any]] = OrderedDict()
        self._waiting: dict[int, list[int]] = {}  # the pieces of groups that threads wait for
        self._busy: set[int] = set()  # groups
        self._cursors: OrderedDict[int, _Cursor] = OrderedDict()
        self._idle: list[Any] = []  # handles that no thread uses

    def fill(self, elements: NDArray[Any], low: int) -> None:
        """Fill an array with the elements from a row on."""
        at, high = low, low + elements.size
        while at < high:
            group, first = self._column.group_of(at)
            number, begin = divmod(at - first, self._step)
            piece = self._piece(group, number)
            count = min(len(piece) - begin, high - at)
            elements[at - low : at - low + count] = piece[begin : begin + count]
            at += count

    def close(self) -> None:
        """Free the memory, and close the file."""
        for cursor in self._cursors.values():
            cursor.pieces.close()
        self._cursors.clear()
        self._idle.clear()
        self._latest.clear()

    def _piece(self, group: int, number: int) -> NDArray[Any]:
        with self._changed:
            waiting = self._waiting.setdefault(group, [])
            waiting.append(number)
            self._changed.wait_for(lambda: group not in self._busy and number == min(waiting))
            waiting.remove(number)
            piece = self._latest.get((group, number))
            if piece is not None:
                self._latest.move_to_end((group, number))
                self._changed.notify_all()
                return piece
            self._busy.add(group)
            cursor = self._cursors.pop(group, None)
        try:
            return self._decode(group, number, cursor)
        finally:
            with self._changed:
                self._busy.remove(group)
                self._changed.notify_all()

    def _decode(self, group: int, number: int, cursor: "_Cursor | None") -> NDArray[Any]:
        if cursor is not None and cursor.number > number:
            self._close(cursor)
            cursor = None
        cursor = cursor or self._begin(group)
        while True:
            piece = next(cursor.pieces)
            self._keep(group, cursor.number, piece)
            cursor.number += 1
            if cursor.number > number:
                self._put_back(group, cursor)
                return piece

    def _begin(self, group: int) -> "_Cursor":
        with self._changed:
            handle = self._idle.pop() if self._idle else None
        if handle is None:
            with self._column.explained():
                handle = self._column.open()
        return _Cursor(handle, self._column.pieces(handle, group, self._step))

    def _keep(self, group: int, number: int, piece: NDArray[Any]) -> None:
        with self._changed:
            before = self._latest.pop((group, number), None)
            self._latest[group, number] = piece
            self._nbytes += piece.nbytes - (0 if before is None else before.nbytes)
            while self._nbytes > self._room and len(self._latest) > 1:
                _, oldest = self._latest.popitem(last=False)
                self._nbytes -= oldest.nbytes

    def _put_back(self, group: int, cursor: "_Cursor") -> None:
        """Keep a group that is decoded in part, or else its open file."""
        if cursor.number == self._column.count(group, self._step):
            for _ in cursor.pieces:  # there is none; this checks the number of rows
                pass
            self._close(cursor)
            return
        with self._changed:
            self._cursors[group] = cursor
            oldest = self._cursors.popitem(last=False)[1] if len(self._cursors) > READERS else None
        if oldest is not None:
            self._close(oldest)

    def _close(self, cursor: "_Cursor") -> None:
        """Let others use the file."""
        cursor.pieces.close()
        with self._changed:
            self._idle.append(cursor.handle)


class _Cursor:
    """A place in a group: the pieces that are left to decode, and the number of the next one."""

    def __init__(self, handle: Any, pieces: Generator[NDArray[Any], None, None]) -> None:
        self.handle, self.pieces, self.number = handle, pieces, 0


# ---- output ----------------------------------------------------------------------------------


def columns_of(source: Source | None) -> list[Column]:
    """Return the columns that a source consists of; [] if any part of it is no table."""
    parts: Sequence[Any] = getattr(source, "parts", (source,))
    return list(parts) if all(isinstance(part, Column) for part in parts) else []


class Output(NamedTuple):
    """A table that is written: the schema, and how its groups come about."""

    schema: Any
    columns: list[Column]  # of the input, one for each of its files
    field: Any  # of the results
    layout: Layout

    @classmethod
    def of(cls, path: Path, layout: Layout) -> "Output":
        """Return the table of a layout; raise ``OutputError`` for what no table holds."""
        pyarrow, columns = arrow(), columns_of(layout.like)
        if len(layout.shape) != 1:
            raise OutputError(f"{path}: a column has one axis, and no shape {layout.shape}")
        parts = getattr(layout.like, "parts", (layout.like,))
        if not columns and any(isinstance(part, Column) for part in parts):
            raise OutputError(f"{path}: some inputs are tables, others are not; write .npy")
        name = layout.member or _name_of(parts[0])
        type = _type_of(path, layout, columns)
        field = pyarrow.field(name, type)
        if not columns:
            return cls(pyarrow.schema([field]), columns, field, layout)
        with columns[0].explained():
            schema = columns[0].schema()
        for column in columns[1:]:
            with column.explained():
                same = schema.equals(column.schema())
            if not same:
                raise OutputError(
                    f"{path}: {column.path} has other columns than {columns[0].path}; write .npy"
                )
        if name in schema.names:
            raise OutputError(
                f"{path}: the input has a column {name}; name another for the output, FILE::NAME"
            )
        return cls(schema.append(field), columns, field, layout)

    def tables(self, fill: Fill, show: Show) -> Iterator[Any]:
        """Yield the table, group by group."""
        pyarrow, dtype = arrow(), self.layout.dtype
        n, at = self.layout.shape[0], 0

        def results(rows: int, mask: NDArray[Any] | None = None) -> Any:
            nonlocal at
            values = np.empty(rows, dtype)
            fill(values, at)
            at += rows
            show("encode", at * dtype.itemsize, n * dtype.itemsize)
            return pyarrow.array(values, self.field.type, mask)

        if not self.columns:
            while at < n:
                yield pyarrow.table([results(min(_ROWS, n - at))], self.schema)
        for column in self.columns:
            for table in column.tables():
                mask = None
                if column.nulls == "skip":
                    x = _without_dictionary(column.leaf.of(table, column.leaf.places))
                    mask = np.asarray(x.is_null()) if x.null_count else None
                result = results(table.num_rows, mask)
                yield pyarrow.table([*table.columns, result], self.schema)
            column.check_unchanged()


def _name_of(source: Any) -> str:
    member = PurePosixPath(getattr(source, "member", "")).name
    return f"{member}.scan" if member else "scan"


def _type_of(path: Path, layout: Layout, columns: list[Column]) -> Any:
    """Return Arrow's type of the results: for the dates of a column its own, which has its zone."""
    pyarrow, dtype = arrow(), layout.dtype
    if columns and dtype.kind == "M" and dtype == columns[0].dtype:
        type = columns[0].leaf.type
        return type.value_type if pyarrow.types.is_dictionary(type) else type
    try:
        return pyarrow.from_numpy_dtype(dtype)
    except (pyarrow.ArrowException, TypeError, ValueError):
        raise OutputError(f"{path}: a table holds no {dtype}: choose another dtype") from None


Write = Callable[[Output, Any, Iterator[Any]], None]  # writes a table's groups into an open file


def create(path: Path, layout: Layout, write: Write, encode: Encode) -> Staging:
    """Check that a table can be written, and make the part file in which its results wait."""
    check(path, layout, write)
    return Staging(npy.create(path, layout), layout, encode)


def reopen(path: Path, layout: Layout, write: Write, encode: Encode) -> Staging | None:
    """Return the target in a part file that ``create`` has made for the same array; else None."""
    check(path, layout, write)
    file = npy.reopen(path, layout)
    return None if file is None else Staging(file, layout, encode)


def check(path: Path, layout: Layout, write: Write) -> None:
    """Write the table without its rows, into memory; raise ``OutputError`` if that fails."""
    table = Output.of(path, layout)
    with explaining(path):
        write(table, arrow().BufferOutputStream(), iter([table.schema.empty_table()]))


def write_file(fill: Fill, layout: Layout, path: Path, show: Show, write: Write) -> None:
    """Write a table, group by group, into an empty file."""
    table = Output.of(path, layout)
    with path.open("r+b") as stream, explaining(path):
        write(table, stream, table.tables(fill, show))


@contextmanager
def explaining(path: Path) -> Iterator[None]:
    """Turn the errors of pyarrow for what a format cannot hold into an ``OutputError``."""
    try:
        yield
    except (InputError, OutputError, OSError):
        raise
    except (arrow().ArrowException, ValueError, TypeError) as error:
        raise OutputError(f"cannot write {path} as a table: {first_line(error)}") from error
