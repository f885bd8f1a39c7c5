"""JSON Lines, Parquet, and files that are one document each."""

import json
from collections.abc import Iterator

from training.corpus.config import DatasetConfig
from training.corpus.readers.files import InputFile, open_file
from training.corpus.readers.records import Problem, Record, clean_text, record_of

_ROWS = 256


def read_json_lines(file: InputFile, dataset: DatasetConfig) -> Iterator[Record | Problem]:
    """An object a line; a line's number, from 1, is its place."""
    with open_file(file) as handle:
        for number, line in enumerate(handle, start=1):
            if not line.strip():
                continue
            place = str(number)
            try:
                # A stray byte in a large corpus is replaced rather than fatal.
                values = json.loads(line.decode("utf-8", errors="replace"))
            except ValueError as error:
                yield Problem(place, "bad record", f"line {place}: not valid JSON: {error}")
                continue
            if isinstance(values, dict):
                yield record_of(values, place, dataset)
            else:
                yield Problem(place, "bad record", f"line {place}: expected an object, not {type(values).__name__}")


def read_parquet_rows(file: InputFile, dataset: DatasetConfig) -> Iterator[Record | Problem]:
    """A row a record; a row's number, from 1, is its place."""
    import pyarrow.parquet as pq

    fields = (dataset.text_field, dataset.html_field, dataset.url_field, dataset.date_field, dataset.id_field or "")
    wanted = {name for field in fields for name in (field, field.split(".")[0])}
    with open_file(file, decompress=False) as handle, pq.ParquetFile(handle) as table:
        columns = [name for name in table.schema_arrow.names if name in wanted]
        number = 0
        for batch in table.iter_batches(batch_size=_ROWS, columns=columns):
            for values in batch.to_pylist():
                number += 1
                present = {name: value for name, value in values.items() if value is not None}
                yield record_of(present, str(number), dataset)


def read_text_file(file: InputFile, dataset: DatasetConfig) -> Iterator[Record | Problem]:
    """The whole file is one document."""
    with open_file(file) as handle:
        yield Record("", text=clean_text(handle.read().decode("utf-8-sig", errors="replace")))


def read_html_file(file: InputFile, dataset: DatasetConfig) -> Iterator[Record | Problem]:
    """The whole file is one page."""
    with open_file(file) as handle:
        yield Record("", html=handle.read())
