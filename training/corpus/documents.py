"""The tables that stages hand to each other: Arrow tables, one Parquet file a shard."""

import pyarrow as pa

# As read: either `html` or `text` is there.
RAW = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),  # unique in the corpus, the same however it is cut into shards
        pa.field("source", pa.string(), nullable=False),  # the file (or object) that it was read from
        pa.field("url", pa.string()),
        pa.field("date", pa.string()),  # ISO 8601
        pa.field("html", pa.large_binary()),
        pa.field("text", pa.large_string()),
    ]
)

# From extraction on.
DOCUMENTS = pa.schema(
    [
        *(RAW.field(name) for name in ("id", "source", "url", "date")),
        pa.field("text", pa.large_string(), nullable=False),
    ]
)

# What a stage took out: of which document, by which rule, and the text (its beginning) or what is worth knowing.
DROPPED = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("rule", pa.string(), nullable=False),
        pa.field("detail", pa.string()),
        pa.field("text", pa.large_string()),
    ]
)
