"""The file format of Arrow IPC, an ``interface.Format``: a column of a table, by pyarrow.

The end of a file lists its record batches. What they hold is read from their headers, which are
flatbuffers, without the batches themselves.
"""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from ...core.errors import InputError, OutputError
from . import files, table
from .files import File, Staging
from .interface import NUMBERS, Fill, Layout, Show, Source, naming_input
from .table import Column, Output

_MAGIC = b"ARROW1"
_CONTINUATION = 0xFFFFFFFF  # before the length of a header, in files of Arrow 0.15 and later
_CODECS = ("lz4", "zstd")


def inspect(path: Path, kinds: str = NUMBERS, member: str = "") -> Source:
    """Find a column, and check it; without a name, it is the only one of numbers."""
    with files.opened(path) as stream, naming_input(path):
        stamp = files.stamp_of(stream)
        start = stream.read(8)
        stream.seek(0)
        reason = "" if start.startswith(_MAGIC) else _other_format(start, stream)
        file = File(path, table.NO_TYPE, (0,), 0, stamp)
        with table.explained(file, reason):
            batches = _batches(stream, path)
            with _open(path) as reader:
                schema = reader.schema
    leaf = table.find(schema, path, member, kinds)
    dtype = table.check_type(leaf, path, kinds)
    rows = [batch.rows for batch in batches]
    file = file._replace(dtype=dtype, shape=(sum(rows),), member=leaf.name)
    files.check(file, kinds)
    codecs = [batch.codec for batch in batches if batch.codec is not None]
    codec = codecs[0] if codecs else None
    return ArrowColumn(file, leaf, rows, keys="S" in kinds, codec=codec)


def _other_format(start: bytes, stream: BinaryIO) -> str:
    if start.startswith(b"FEA1"):
        return (
            "it is Feather 1; write it again: pyarrow.feather.write_feather(read_table(...), ...)"
        )
    if start[:4] == b"\xff\xff\xff\xff":
        return (
            "it is a stream of Arrow, which is read in order alone; write it as a file: "
            "pyarrow.feather.write_feather(pyarrow.ipc.open_stream(...).read_all(), ...)"
        )
    return files.other_format(stream)


def _open(path: Path, **options: Any) -> Any:
    """Open a file, which is not mapped: to read a mapped file that becomes shorter kills."""
    arrow = table.arrow()
    source = arrow.OSFile(str(path))
    try:
        return arrow.ipc.open_file(source, options=arrow.ipc.IpcReadOptions(**options))
    except BaseException:
        source.close()
        raise


class ArrowColumn(Column):
    """A column of a file of record batches."""

    def __init__(
        self, file: File, leaf: table.Leaf, rows: list[int], *, keys: bool, codec: str | None
    ) -> None:
        super().__init__(file, leaf, rows, keys=keys)
        self.codec = codec

    def open(self) -> Any:
        """Open the file for this column alone."""
        return _open(self.path, included_fields=[self.leaf.places[0]], use_threads=False)

    def decode(self, handle: Any, group: int, step: int) -> Iterator[Any]:
        """Yield the arrays of a record batch, of ``step`` rows."""
        array = self.leaf.of(handle.get_batch(group), (0, *self.leaf.places[1:]))
        if not table.arrow().types.is_primitive(array.type):  # places that point elsewhere
            array.validate(full=True)
        for low in range(0, len(array), step):
            yield array.slice(low, step)

    def schema(self) -> Any:
        """Return the schema of the whole table."""
        with _open(self.path) as reader:
            return reader.schema

    def tables(self) -> Iterator[Any]:
        """Yield the record batches."""
        arrow = table.arrow()
        with self.explained():
            reader = _open(self.path)
        with reader:
            for group in range(reader.num_record_batches):
                with self.explained():
                    batch = reader.get_batch(group)
                    batch.validate(full=True)
                yield arrow.Table.from_batches([batch])


# ---- output ----------------------------------------------------------------------------------


def create(path: Path, layout: Layout) -> Staging:
    """Make the part file in which results wait; one rank writes the table at the end."""
    return table.create(path, layout, write, encode)


def reopen(path: Path, layout: Layout) -> Staging | None:
    """Return the target in a part file that ``create`` has made for the same array; else None."""
    return table.reopen(path, layout, write, encode)


def encode(fill: Fill, layout: Layout, path: Path, show: Show) -> None:
    """Write the table, a record batch at a time."""
    table.write_file(fill, layout, path, show, write)


def write(output: Output, stream: Any, groups: Iterator[Any]) -> None:
    """Write record batches, compressed as those of the first file of the input."""
    arrow = table.arrow()
    first = output.columns[0] if output.columns else None
    names = [field.name for field in output.schema if arrow.types.is_dictionary(field.type)]
    several = len(output.columns) > 1 or not isinstance(first, ArrowColumn)
    if names and several:
        raise OutputError(
            f"a file of Arrow has one dictionary for {names[0]}, the input may have several: "
            "write .parquet"
        )
    codec = first.codec if isinstance(first, ArrowColumn) else None
    options = arrow.ipc.IpcWriteOptions(compression=codec)
    with arrow.ipc.new_file(stream, output.schema, options=options) as writer:
        for group in groups:
            writer.write_table(group)


# ---- headers of record batches ---------------------------------------------------------------
#
# A table of a flatbuffer begins with the distance back to a list of its fields' places: 0, if a
# field has its default. All numbers are little-endian.


class _Batch(NamedTuple):
    rows: int
    codec: str | None


class _Table:
    """A table of a flatbuffer."""

    def __init__(self, data: bytes, at: int) -> None:
        self._data, self._at = data, at
        self._fields = at - self._number("i", at)

    def _number(self, kind: str, at: int) -> int:
        if at < 0:
            raise ValueError("a header points before its beginning")
        (value,) = struct.unpack_from(f"<{kind}", self._data, at)
        return int(value)

    def place(self, field: int) -> int:
        """Return the position of a field; 0 if it is not there."""
        at = 4 + 2 * field
        if at >= self._number("H", self._fields):
            return 0
        offset = self._number("H", self._fields + at)
        return self._at + offset if offset else 0

    def number(self, field: int, kind: str) -> int:
        """Return a field that is a number, or 0."""
        at = self.place(field)
        return self._number(kind, at) if at else 0

    def table(self, field: int) -> "_Table | None":
        """Return a field that is a table, if it is there."""
        at = self.place(field)
        return _Table(self._data, at + self._number("I", at)) if at else None

    def blocks(self, field: int) -> Iterator[tuple[int, int, int]]:
        """Yield the blocks of a list: position, bytes of the header, bytes of the body."""
        at = self.place(field)
        if at:
            at += self._number("I", at)
            for i in range(self._number("I", at)):
                yield struct.unpack_from("<qi4xq", self._data, at + 4 + 24 * i)


def _batches(stream: BinaryIO, path: Path) -> list[_Batch]:
    """Return what the headers of all record batches say; raise ValueError if they are damaged."""
    size = stream.seek(0, 2)
    try:
        stream.seek(size - 10)
        length, magic = struct.unpack("<i6s", stream.read(10))
        if magic != _MAGIC or not 0 < length <= size - 18:
            raise ValueError("its end is missing")
        stream.seek(size - 10 - length)
        footer = _root(stream.read(length))
        batches = []
        for position, header, body in footer.blocks(3):
            if min(position, header, body) < 0 or position + header + body > size:
                raise InputError(f"{path} is truncated: a record batch ends after the file")
            stream.seek(position)
            batches.append(_batch(stream.read(header)))
    except (struct.error, OverflowError) as error:
        raise ValueError(f"its headers are damaged ({error})") from error
    return batches


def _root(data: bytes) -> _Table:
    return _Table(data, struct.unpack_from("<I", data)[0])


def _batch(header: bytes) -> _Batch:
    (first,) = struct.unpack_from("<I", header)
    message = _root(header[8:] if first == _CONTINUATION else header[4:])
    batch = message.table(2)
    if batch is None:
        raise ValueError("a record batch has no header")
    rows, compression = batch.number(0, "q"), batch.table(3)
    if rows < 0:
        raise ValueError(f"a record batch has {rows} rows")
    if compression is None:
        return _Batch(rows, None)
    codec = compression.number(0, "b")
    return _Batch(rows, _CODECS[codec] if 0 <= codec < len(_CODECS) else None)
