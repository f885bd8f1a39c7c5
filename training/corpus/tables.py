"""Arrow tables of what a stage keeps and drops, made document by document."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from training.corpus.documents import DOCUMENTS, DROPPED
from training.corpus.stage import Outcome

# Of a dropped document's text: enough for people to see what it was.
SHOWN_CHARACTERS = 2000


class Sieve:
    """Collects a shard's documents, kept and dropped, in order, and counts them."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._kept: list[dict[str, Any]] = []
        self._dropped: list[dict[str, Any]] = []

    def keep(self, document: Mapping[str, Any], text: str) -> None:
        """`document` (a row of RAW or DOCUMENTS) goes on with this text."""
        self.counts["kept"] += 1
        self._kept.append({name: document[name] for name in ("id", "source", "url", "date")} | {"text": text})

    def drop(self, document: Mapping[str, Any], rule: str, detail: str = "", text: str | None = None) -> None:
        """`document` ends here, by `rule`; `text` is cut to what people want to see."""
        self.counts[f"rule: {rule}"] += 1
        shown = None if text is None else text[:SHOWN_CHARACTERS]
        self._dropped.append({"id": document["id"], "rule": rule, "detail": detail or None, "text": shown})

    def outcome(self, side: Mapping[str, pa.Table] | None = None) -> Outcome:
        """All of it."""
        return Outcome(
            documents=pa.Table.from_pylist(self._kept, schema=DOCUMENTS),
            dropped=pa.Table.from_pylist(self._dropped, schema=DROPPED),
            counts=dict(sorted(self.counts.items())),
            side=side or {},
        )
