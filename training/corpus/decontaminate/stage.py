"""Stage 6: what the evaluation tasks' texts share with the documents is cut out, and every cut is written down."""

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from foundation.errors import UserError
from foundation.files import sha256_file
from training.corpus.decontaminate.config import DecontaminateConfig
from training.corpus.decontaminate.cutting import Cut, find_cuts, pieces
from training.corpus.decontaminate.matching import (
    COMMON,
    FindMatches,
    make_index,
    matches_path,
    open_index,
    read_matches,
    write_common,
)
from training.corpus.documents import DOCUMENTS, DROPPED
from training.corpus.stage import Outcome, Shard, ShardStage, Work, shard_item
from training.corpus.tables import SHOWN_CHARACTERS

if TYPE_CHECKING:
    from training.corpus.config import CorpusConfig

# A cut: of which document; whose n-grams are in it, by commas; the n-gram that caused it, and the text from the first
# n-gram found in it to the last; how many were found; characters [start, end) of the document, and what they were.
CUTS = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("task", pa.string(), nullable=False),
        pa.field("ngram", pa.string(), nullable=False),
        pa.field("matched", pa.large_string(), nullable=False),
        pa.field("matches", pa.int64(), nullable=False),
        pa.field("start", pa.int64(), nullable=False),
        pa.field("end", pa.int64(), nullable=False),
        pa.field("removed", pa.large_string(), nullable=False),
    ]
)


class Decontaminate(ShardStage):
    """Looks for the tasks' n-grams in all documents, and cuts out those that are not common."""

    name = "decontaminate"

    def __init__(self, config: "CorpusConfig") -> None:
        self._config: DecontaminateConfig = config.decontaminate

    def identity(self) -> dict[str, Any]:
        """The settings, and the SHA-256 of the texts. Raises UserError when they are not there."""
        path = self._config.texts
        if path is not None and not path.is_file():
            raise UserError(f"decontaminate.texts: no file at {path}; make it with: mtnlg evaluate texts {path}")
        settings = self._config.model_dump(mode="json", exclude={"texts"})
        return {**settings, "texts": None if path is None else sha256_file(path)}

    def prepare(self, work: Work, scratch: Path) -> None:
        """Find the n-grams in every shard, then count in how many documents each is."""
        if self._config.texts is None or (scratch / COMMON).is_file():
            return
        make_index(self._config, scratch)
        pending = [shard for shard in work.shards if not matches_path(scratch, shard).is_file()]
        items = [shard_item(shard) for shard in pending]
        done = len(work.shards) - len(pending)
        work.report("shards searched", done, len(work.shards))
        for _ in work.engine.map(FindMatches(scratch), items):
            done += 1
            work.report("shards searched", done, len(work.shards))
        write_common(scratch, work.shards, self._config.common_documents)

    def open(self, scratch: Path) -> Callable[[Shard, pa.Table], Outcome]:
        """Without texts, documents pass as they are."""
        if self._config.texts is None:
            return _unchanged
        return Cutter(self._config, scratch)


class Cutter:
    """Cuts shard by shard what `prepare` found."""

    def __init__(self, config: DecontaminateConfig, scratch: Path) -> None:
        self._config = config
        self._scratch = scratch
        self._index = open_index(scratch)
        self._common = np.load(scratch / COMMON)

    def __call__(self, shard: Shard, table: pa.Table) -> Outcome:
        """`table` has the schema DOCUMENTS; of a document that was cut, pieces go on as ID#1, ID#2, ..."""
        found = read_matches(self._scratch, shard, self._common)
        if not found:
            return _unchanged(shard, table)
        counts: Counter[str] = Counter()
        parts, cuts, dropped, after = [], [], [], 0
        for row in sorted(found):
            parts.append(table.slice(after, row - after))
            after = row + 1
            document = table.slice(row, 1).to_pylist()[0]
            document_cuts = find_cuts(document["text"], found[row], self._config.margin)
            cuts += [self._describe(document, cut) for cut in document_cuts]
            kept, verdict = self._divide(document, document_cuts, counts)
            parts.append(pa.Table.from_pylist(kept, schema=DOCUMENTS))
            dropped += verdict
        parts.append(table.slice(after))
        counts.update(task for cut in cuts for task in (f"cuts: {name}" for name in cut["task"].split(",")))
        documents = pa.concat_tables(part.select(DOCUMENTS.names).cast(DOCUMENTS) for part in parts)
        counts.update({"kept": len(documents), "cuts": len(cuts), "documents cut": len(found)})
        side = {"cuts": pa.Table.from_pylist(cuts, schema=CUTS)}
        return Outcome(documents, pa.Table.from_pylist(dropped, schema=DROPPED), dict(counts), side)

    def _divide(
        self, document: dict[str, Any], cuts: Sequence[Cut], counts: Counter[str]
    ) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """The pieces of a document that go on, and what is said of it when none do."""
        left, short = pieces(document["text"], cuts, self._config)
        rule = ""
        if len(cuts) > self._config.max_cuts:
            rule, left = "cut too often", []
        elif not left:
            rule = "nothing long is left"
        counts["short pieces"] += 0 if rule == "cut too often" else short
        counts[f"pieces: {min(len(left), 2)}{'' if len(left) < 2 else ' or more'}"] += 1
        if not rule:
            return [{**document, "id": f"{document['id']}#{n}", "text": text} for n, text in enumerate(left, 1)], []
        counts[f"rule: {rule}"] += 1
        detail = f"{len(cuts)} cut{'' if len(cuts) == 1 else 's'}: {self._describe(document, cuts[0])['ngram']}"
        shown = document["text"][:SHOWN_CHARACTERS]
        return [], [{"id": document["id"], "rule": rule, "detail": detail, "text": shown}]

    def _describe(self, document: dict[str, Any], cut: Cut) -> dict[str, Any]:
        text, numbers = document["text"], {match.ngram for match in cut.matches}
        tasks = {task for number in numbers for task in self._index.tasks_of(number)}
        return {
            "id": document["id"],
            "task": ",".join(sorted(tasks)),
            "ngram": self._index.ngram(cut.matches[0].ngram),
            "matched": text[cut.matches[0].start : max(match.end for match in cut.matches)],
            "matches": len(numbers),
            "start": cut.start,
            "end": cut.end,
            "removed": text[cut.start : cut.end],
        }


def _unchanged(shard: Shard, table: pa.Table) -> Outcome:
    side = {"cuts": CUTS.empty_table()}
    return Outcome(table, DROPPED.empty_table(), {"kept": len(table)}, side)
