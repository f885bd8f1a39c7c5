"""Plant the evaluation tasks' texts in documents: is every one found, and is nothing cut where none is?

One text is planted in a document, between two of its sentences. What is a match is computed here by plain sets of
tuples of words, with nothing of what is being measured.
"""

import gzip
import json
import random
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import Bar
from benchmarks.corpus_build import CORPUS, SHARED, build, dataset, described
from training.corpus.parquet import read_parquet

_HOSTS = ("news.jsonl.gz", "abstracts.jsonl.gz", "reviews.jsonl.gz", "papers.jsonl.gz", "speeches.jsonl.gz")
_BOOLQ = SHARED / "benchmarks" / "boolq" / "validation.jsonl.gz"
_BOOLQ_EVERY = 2
_A_TASK = 60
_LEAST, _MOST = 8, 13
_WORD = re.compile(r"\w+")
_NOT_PLANTED = "host"

Words = tuple[str, ...]


def measure(folder: Path, texts: Path, seed: int = 0) -> dict[str, Any]:
    """Plant, run the stages from sources to decontaminate with all others passed over, and look what became of it."""
    chance = random.Random(seed)
    with texts.open(encoding="utf-8") as lines:
        tasks = [json.loads(line) for line in lines]
    known = {ngram for task in tasks for ngram in ngrams(task["text"])}
    hosts = [text for name in _HOSTS for text in _texts(CORPUS / name) if len(text) > 600]
    chance.shuffle(hosts)
    planted = list(_plants(tasks, chance))
    if len(planted) > len(hosts):
        raise ValueError(f"{len(planted)} texts to plant in {len(hosts)} documents")
    folder.mkdir(parents=True, exist_ok=True)
    documents = folder / "planted.jsonl"
    with documents.open("w", encoding="utf-8") as handle:
        for number, host in enumerate(hosts):
            text = _insert(host, planted[number]["text"], chance) if number < len(planted) else host
            name = f"{planted[number]['task']}-{number}" if number < len(planted) else f"{_NOT_PLANTED}-{number}"
            handle.write(f"{json.dumps({'id': name, 'text': text})}\n")
    skip = ["clean", "quality", "deduplicate"]
    config = {
        "out": str(folder / "out"),
        "datasets": [dataset("planted", documents, id_field="id", skip=skip)],
        "decontaminate": {"texts": str(texts)},
    }
    build(config, ("sources", "extract", "clean", "quality", "deduplicate", "decontaminate"))
    out = folder / "out" / "decontaminate"
    return {**_judge(out, planted, known), "stage": read_stage(folder / "out"), "documents": len(hosts)}


def bars(found: dict[str, Any]) -> list[Bar]:
    """Every planted text found and gone, nothing cut without a match."""
    boolq = found["planted"]["boolq passage"]
    return [
        Bar("planted task texts that were found", found["found"] / found["texts"], "share", at_least=1.0),
        Bar("cuts without a match", found["cuts_without_a_match"], "", at_most=0),
        Bar("planted BoolQ passages that were found", boolq["found"] / boolq["planted"], "share", at_least=1.0),
        Bar("planted BoolQ passages of which an n-gram is left", boolq["left"], "", at_most=0),
    ]


def read_stage(out: Path) -> dict[str, Any]:
    """Seconds, documents and bytes of the stage, as its build wrote them."""
    found: dict[str, Any] = described(out, ("decontaminate",))["decontaminate"]
    return found


def ngrams(text: str) -> Iterator[Words]:
    """What is looked for of a task's text: all its n-grams of 13 words, or itself where it has 8 to 12."""
    words = _words(text)
    if len(words) >= _LEAST:
        yield from (words[start : start + _MOST] for start in range(max(1, len(words) - _MOST + 1)))


def _plants(tasks: Sequence[dict[str, str]], chance: random.Random) -> Iterator[dict[str, str]]:
    """Of every task and field some texts, and every second of BoolQ's validation passages."""
    by_kind: dict[str, list[dict[str, str]]] = {}
    for task in tasks:
        if len(_words(task["text"])) >= _LEAST:
            by_kind.setdefault(f"{task['task']} {task['field']}", []).append(task)
    with gzip.open(_BOOLQ, "rt", encoding="utf-8") as lines:
        passages = list(dict.fromkeys(json.loads(line)["passage"] for line in lines))
    by_kind.pop("boolq passage", None)
    for kind, texts in sorted(by_kind.items()):
        for task in chance.sample(texts, min(_A_TASK, len(texts))):
            yield {"kind": kind, "task": task["task"], "text": task["text"]}
    for passage in passages[::_BOOLQ_EVERY]:
        yield {"kind": "boolq passage", "task": "boolq", "text": passage}


def _insert(host: str, text: str, chance: random.Random) -> str:
    """Between two sentences of the host."""
    places = [match.end() for match in re.finditer(r"[.!?]\s", host)] or [0]
    place = chance.choice(places)
    return f"{host[:place]}{text} {host[place:]}"


def _judge(out: Path, planted: Sequence[dict[str, str]], known: set[Words]) -> dict[str, Any]:
    cuts = [
        row for path in sorted((out / "side" / "cuts").glob("*/*.parquet")) for row in read_parquet(path).to_pylist()
    ]
    left: dict[int, list[str]] = {}
    for path in sorted(out.glob("planted/*.parquet")):
        for row in read_parquet(path, ["id", "text"]).to_pylist():
            left.setdefault(_number(row["id"]), []).append(row["text"])
    removed: dict[int, list[str]] = {}
    for cut in cuts:
        removed.setdefault(_number(cut["id"]), []).append(cut["removed"])
    by_kind: dict[str, dict[str, int]] = {}
    for number, plant in enumerate(planted):
        wanted = set(ngrams(plant["text"]))
        counts = by_kind.setdefault(plant["kind"], {"planted": 0, "found": 0, "left": 0})
        counts["planted"] += 1
        counts["found"] += any(wanted & set(_all_ngrams(text, wanted)) for text in removed.get(number, []))
        counts["left"] += any(wanted & set(_all_ngrams(text, wanted)) for text in left.get(number, []))
    lengths = {len(ngram) for ngram in known}
    matchless = [cut for cut in cuts if not any(_grams(_words(cut["removed"]), size) & known for size in lengths)]
    return {
        "texts": len(planted),
        "found": sum(counts["found"] for counts in by_kind.values()),
        "planted": by_kind,
        "cuts": len(cuts),
        "cuts_without_a_match": len(matchless),
        "cuts_in_documents_without_a_plant": sum(_number(cut["id"]) >= len(planted) for cut in cuts),
    }


def _all_ngrams(text: str, wanted: set[Words]) -> Iterator[Words]:
    words = _words(text)
    for size in {len(one) for one in wanted}:
        yield from _grams(words, size)


def _grams(words: Words, size: int) -> set[Words]:
    return {words[start : start + size] for start in range(len(words) - size + 1)}


def _number(document: str) -> int:
    """Of a document or a piece of it: planted/planted.jsonl/boolq-17#2 is 17."""
    return int(document.partition("#")[0].rpartition("-")[2])


def _words(text: str) -> Words:
    return tuple(_WORD.findall(text.lower()))


def _texts(path: Path) -> Iterator[str]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        yield from (json.loads(line)["text"] for line in lines)
