"""A column of text of a parquet file: strings, or bytes that are UTF-8, of any of Arrow's types for them.

Tested in tests/data/sources/test_files.py.
"""

import io
from collections.abc import Iterator
from typing import Any, BinaryIO

from slm.data.bad_records import BadRecordError
from slm.data.readers import reader
from slm.data.readers.reader import Reading, addressed

_BATCH = 64
"""Rows read at a time."""


class Parquet:
    """The reader. Positions are numbers of rows. Raw texts are bytes: pyarrow does not check that they are UTF-8."""

    def read(self, stream: BinaryIO, path: str, start: int, reading: Reading) -> Iterator[tuple[Any, int]]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        # By its name where it has one: pyarrow then reads it without this interpreter.
        is_file = isinstance(getattr(stream, "raw", None), io.FileIO)
        try:
            with pq.ParquetFile(path if is_file else stream, pre_buffer=False, buffer_size=reader.CHUNK) as file:
                columns = {reading.text_field: "data.text_field"}
                if reading.url_field:
                    columns[reading.url_field] = "data.url_field"
                to_bytes = {name: _to_bytes(file.schema_arrow, name, option) for name, option in columns.items()}
                row, group = 0, 0
                while group < file.num_row_groups and row + file.metadata.row_group(group).num_rows <= start:
                    row += file.metadata.row_group(group).num_rows
                    group += 1
                if group == file.num_row_groups:
                    return
                groups = range(group, file.num_row_groups)
                for batch in file.iter_batches(
                    batch_size=_BATCH, row_groups=groups, columns=list(columns), use_threads=False
                ):
                    skip = min(max(0, start - row), len(batch))
                    row += skip
                    values = [change(batch.column(name)[skip:]).to_pylist() for name, change in to_bytes.items()]
                    for raw in values[0] if len(values) == 1 else zip(*values, strict=True):
                        row += 1
                        yield raw, row
        except (pa.ArrowException, OSError) as error:
            raise BadRecordError("cannot be read as parquet", detail=error, advice="is the file complete?") from error

    def parse(self, raw: Any, end: int, reading: Reading) -> str:
        if isinstance(raw, tuple):
            text, url = raw
            return addressed(self.parse(text, end, reading), (url or b"").decode("utf-8", "replace"))
        return parse_text(raw, field=reading.text_field, row=end)


def parse_text(raw: bytes | None, *, field: str, row: int | None = None) -> str:
    """The text of a row's bytes; BadRecordError where they are not UTF-8."""
    try:
        return raw.decode("utf-8") if raw else ""
    except UnicodeDecodeError as error:
        raise BadRecordError(
            "not UTF-8",
            detail=f"byte 0x{error.object[error.start]:02x} at its offset {error.start}",
            place=f"column {field!r}" + ("" if row is None else f", row {row}"),
        ) from error


def raw_text(scalar: Any) -> bytes | None:
    """The bytes of one of Arrow's values of text or bytes; None for a null. TypeError for any other value."""
    import pyarrow as pa

    if isinstance(scalar, pa.DictionaryScalar):
        scalar = scalar.value
    if isinstance(scalar, pa.NullScalar):
        return None
    if not isinstance(scalar, pa.BinaryScalar):
        raise TypeError(f"{scalar.type} is not text")
    buffer = scalar.as_buffer()
    return None if buffer is None else buffer.to_pybytes()


def _to_bytes(schema: Any, field: str, option: str) -> Any:
    """A function from the column's arrays to arrays of bytes; BadRecordError where it is no column of text."""
    import pyarrow as pa

    if field not in schema.names:
        raise BadRecordError(
            f"no column {field!r}",
            detail=f"its columns are {', '.join(map(repr, schema.names))}",
            advice=f"set {option}",
        )
    if schema.names.count(field) > 1:
        raise BadRecordError(
            f"{schema.names.count(field)} columns are named {field!r}", advice="rename them, so that one is the text"
        )
    kind = schema.field(field).type
    dictionary = pa.types.is_dictionary(kind)
    value = kind.value_type if dictionary else kind
    if pa.types.is_string(value) or pa.types.is_binary(value):
        plain = pa.binary()
    elif pa.types.is_large_string(value) or pa.types.is_large_binary(value):
        plain = pa.large_binary()
    elif pa.types.is_string_view(value) or pa.types.is_binary_view(value):
        plain = pa.binary_view()
    elif pa.types.is_null(value):
        return lambda array: array
    else:
        raise BadRecordError(f"the column {field!r} is not text", detail=f"it holds {kind}", advice=f"set {option}")

    def to_bytes(array: Any) -> Any:
        values = array.dictionary_decode() if dictionary else array
        return values if values.type == plain else values.view(plain)

    return to_bytes
