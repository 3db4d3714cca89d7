"""The format Parquet, an ``interface.Format``: a column of a table, by pyarrow."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from . import files, table
from .files import File, Staging
from .interface import NUMBERS, Fill, Layout, Show, Source, imported, naming_input
from .table import Column, Output

_BUFFER = 1 << 20  # bytes of compressed pages that are read at a time

_parquet = partial(imported, "pyarrow.parquet", "parquet")


def inspect(path: Path, kinds: str = NUMBERS, member: str = "") -> Source:
    """Find a column, and check it; without a name, it is the only one of numbers."""
    with files.opened(path) as stream, naming_input(path):
        stamp = files.stamp_of(stream)
        reason = "" if stream.read(4) == b"PAR1" else files.other_format(stream)
    file = File(path, table.NO_TYPE, (0,), 0, stamp)
    with table.explained(file, reason), _open(path) as opened:
        schema, metadata = opened.schema_arrow, opened.metadata
        rows = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
    leaf = table.find(schema, path, member, kinds)
    dtype = table.check_type(leaf, path, kinds)
    file = file._replace(dtype=dtype, shape=(sum(rows),), member=leaf.name)
    files.check(file, kinds)
    return ParquetColumn(file, leaf, rows, keys="S" in kinds)


def _open(path: Path, **options: Any) -> Any:
    return _parquet().ParquetFile(path, page_checksum_verification=True, **options)


class ParquetColumn(Column):
    """A column of a Parquet file."""

    def open(self) -> Any:
        """Open the file; pages are read as they are needed."""
        return _open(self.path, buffer_size=_BUFFER)

    def decode(self, handle: Any, group: int, step: int) -> Iterator[Any]:
        """Yield the arrays of a row group, of about ``step`` rows."""
        names = self.leaf.names
        for batch in handle.iter_batches(step, [group], [self.leaf.name], use_threads=False):
            # Of structures this field alone is read. A name with a dot may match more columns.
            place = batch.schema.get_field_index(names[0])
            yield self.leaf.of(batch, (place, *(0 for _ in names[1:])))

    def schema(self) -> Any:
        """Return the schema of the whole table."""
        with _open(self.path) as file:
            return file.schema_arrow

    def tables(self) -> Iterator[Any]:
        """Yield the row groups."""
        with self.explained():
            file = _open(self.path)
        with file:
            for group in range(file.metadata.num_row_groups):
                with self.explained():
                    each = file.read_row_group(group)
                yield each

    def options(self) -> dict[str, Any]:
        """Return how the columns are stored, as a writer takes it."""
        with self.explained(), _open(self.path) as file:
            metadata = file.metadata
            if metadata.num_row_groups == 0:
                return {}
            group = metadata.row_group(0)
            stored = [group.column(i) for i in range(metadata.num_columns)]
        return {
            "compression": {each.path_in_schema: _codec(each.compression) for each in stored},
            "use_dictionary": [each.path_in_schema for each in stored if each.has_dictionary_page],
            "write_page_index": any(each.has_column_index for each in stored),
            "sorting_columns": group.sorting_columns or None,
        }


def _codec(name: str) -> str:
    return "NONE" if name == "UNCOMPRESSED" else name


# ---- output ----------------------------------------------------------------------------------


def create(path: Path, layout: Layout) -> Staging:
    """Make the part file in which results wait; one rank writes the table at the end."""
    return table.create(path, layout, write, encode)


def reopen(path: Path, layout: Layout) -> Staging | None:
    """Return the target in a part file that ``create`` has made for the same array; else None."""
    return table.reopen(path, layout, write, encode)


def encode(fill: Fill, layout: Layout, path: Path, show: Show) -> None:
    """Write the table, a row group at a time."""
    table.write_file(fill, layout, path, show, write)


def write(output: Output, stream: Any, groups: Iterator[Any]) -> None:
    """Write row groups; columns are compressed as in the first file of the input."""
    options: dict[str, Any] = {}
    schema = _without_views(output.schema)
    first = output.columns[0] if output.columns else None
    if isinstance(first, ParquetColumn) and (options := first.options()):
        codecs = options["compression"]
        codecs[output.field.name] = codecs[first.leaf.name]
    with _parquet().ParquetWriter(stream, schema, **options) as writer:
        for group in groups:
            columns = [
                column if column.type == type else _converted(column, type)
                for column, type in zip(group.columns, schema.types, strict=True)
            ]
            each = table.arrow().table(columns, schema)
            writer.write_table(each, row_group_size=max(1, each.num_rows))


def _without_views(schema: Any) -> Any:
    """Return a schema that is written: pyarrow may not write views of text, which polars has."""
    arrow = table.arrow()
    plain = {arrow.string_view(): arrow.large_string(), arrow.binary_view(): arrow.large_binary()}
    for i, field in enumerate(schema):
        type = field.type
        if type in plain:
            schema = schema.set(i, field.with_type(plain[type]))
        elif arrow.types.is_dictionary(type) and type.value_type in plain:
            recoded = arrow.dictionary(type.index_type, plain[type.value_type], type.ordered)
            schema = schema.set(i, field.with_type(recoded))
    return schema


def _converted(column: Any, type: Any) -> Any:
    """Return a column, or the values of its dictionaries, without views."""
    arrow = table.arrow()
    if not arrow.types.is_dictionary(type):
        return column.cast(type)
    chunks = [
        arrow.DictionaryArray.from_arrays(
            chunk.indices, chunk.dictionary.cast(type.value_type), ordered=type.ordered
        )
        for chunk in column.chunks
    ]
    return arrow.chunked_array(chunks, type)
