"""Log-likelihoods on the disk as they come: a killed run loses a batch at most, and metrics need no model again."""

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from foundation.errors import UserError


@dataclass(frozen=True)
class StoredScore:
    """One request's score, and what it took.

    `tokens_asked` is what the request takes alone, `tokens_computed` and `seconds` are of its whole batch and stand at
    the batch's first request, 0 at the others; `context_cut` says that the context lost its beginning.
    """

    logprob: float
    is_greedy: bool
    tokens_asked: int
    context_cut: bool
    tokens_computed: int = 0
    seconds: float = 0.0


def request_key(context: str, continuation: str) -> str:
    """What a request is found by: SHA-256 of both texts."""
    return hashlib.sha256(json.dumps([context, continuation]).encode()).hexdigest()


class ScoreStore:
    """`scores/<cell>.jsonl`: a first line that says what scores depend on, then a line a request.

    Scores depend on the model and how it computes, not on the task's metrics or on how many documents are asked, so a
    run with more documents goes on where a smaller one ended. A store of other `determinants` is begun anew.
    Raises UserError naming the line when the file is damaged otherwise than by a torn last line.
    """

    def __init__(self, path: Path, determinants: dict[str, Any]) -> None:
        self._path = path
        self._scores: dict[str, StoredScore] = {}
        whole = self._read(determinants) if path.is_file() else 0
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: TextIO = path.open("r+" if whole else "w", encoding="utf-8")
        if whole:
            self._file.seek(whole)
            self._file.truncate()
        else:
            self._write({"determinants": determinants})
            self._file.flush()

    def __enter__(self) -> "ScoreStore":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def get(self, key: str) -> StoredScore | None:
        """The request's score, None if it was never scored."""
        return self._scores.get(key)

    def add(self, scores: dict[str, StoredScore]) -> None:
        """Keep a batch, by key."""
        for key, score in scores.items():
            self._scores[key] = score
            self._write({"request": key, **asdict(score)})
        self._file.flush()

    def _read(self, determinants: dict[str, Any]) -> int:
        """Read the scores; the length in bytes of what is whole, 0 for another model's."""
        end = 0
        with self._path.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                if not line.endswith(b"\n"):
                    break  # torn by a kill
                try:
                    entry = json.loads(line)
                    if number == 1:
                        if entry["determinants"] != determinants:
                            return 0
                    else:
                        key = entry.pop("request")
                        self._scores[key] = StoredScore(**entry)
                except (ValueError, KeyError, TypeError, AttributeError):
                    raise UserError(
                        f"{self._path}, line {number}, is no score: the file was changed or the disk failed; "
                        "remove the file to score its cell again"
                    ) from None
                end += len(line)
        return end

    def _write(self, entry: dict[str, Any]) -> None:
        self._file.write(json.dumps(entry) + "\n")
