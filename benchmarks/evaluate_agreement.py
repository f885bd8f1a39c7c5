"""Do our backends find what lm-eval finds? SmolLM2-135M in fp32, the same prompts, request by request.

`vllm` and `hf` against lm-eval's own `hf`: the largest difference of a log-likelihood, and the documents whose chosen
answer differs. Such a document must be a tie: the two answers' scores lie within the tolerance of each other. What has
been scored is kept in the work folder, so a run that was stopped goes on, and tasks can be added.

    python -m benchmarks.evaluate_agreement                          # an hour and a half on two cores;
                                                                     # writes benchmarks/results/evaluate_agreement.json
    python -m benchmarks.evaluate_agreement --tasks piqa@0 --quick   # a try, without examples; into another file
"""

import argparse
import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.progress import track

from benchmarks.common import Bar, write_result
from benchmarks.evaluate import load
from benchmarks.evaluation_ways import OURS, Cell, Scored, make_cell, opened
from benchmarks.smollm2 import smollm2_folder
from foundation.cache import cache_folder
from foundation.files import read_json, write_json

_REFERENCE = "lm-eval hf"
# RACE's few-shot prompts alone would take lm-eval an hour.
_TASKS = "boolq,piqa,hellaswag,winogrande,wic,lambada,lambada_cloze,anli_r2,hans,race_h_last@0"
_SHOTS = "0,2"
_TOLERANCE = 1e-3
# Requests scored before the work folder is written: what a stopped run loses.
_PART = 100


@dataclass(frozen=True)
class Agreement:
    """Of one cell. `choices` are documents whose chosen answer differs, `ties` those of them within tolerance."""

    documents: int
    requests: int
    largest_difference: float
    greedy_differences: int
    choices: list[int]
    ties: list[int]


def main() -> None:
    """Score what is missing, compare, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--tasks", default=_TASKS, help=f"comma-separated, TASK or TASK@SHOTS for one number only; default {_TASKS}"
    )
    parser.add_argument("--shots", default=_SHOTS, help=f"comma-separated; default {_SHOTS}")
    parser.add_argument("--documents", type=int, help="documents a task, from the first on; default 200")
    parser.add_argument("--data", type=Path, help="task data, as for mtnlg evaluate")
    parser.add_argument("--work", type=Path, help="where scores are kept; default: in the cache")
    parser.add_argument("--quick", action="store_true", help="a few documents, into another file")
    arguments = parser.parse_args()
    documents = arguments.documents or (4 if arguments.quick else 200)
    table = _table(arguments.tasks, arguments.shots)
    shots = sorted({count for counts in table.values() for count in counts})
    tasks = load(list(table), shots, arguments.data)
    cells = [make_cell(tasks[name], name, count, documents) for name, counts in table.items() for count in counts]
    work = arguments.work or cache_folder() / "agreement"
    scores = {way: _scores(way, cells, smollm2_folder(), work / way.replace(" ", "-")) for way in (*OURS, _REFERENCE)}
    found = {
        way: {cell.name: _compare(cell, scores[way][cell.name], scores[_REFERENCE][cell.name]) for cell in cells}
        for way in OURS
    }
    result = {
        "model": "SmolLM2-135M-Instruct",
        "dtype": "float32",
        "reference": "lm-eval's HFLM",
        "tolerance": _TOLERANCE,
        "documents_a_task": documents,
        "ways": {way: {name: asdict(agreement) for name, agreement in every.items()} for way, every in found.items()},
    }
    write_result("evaluate_agreement.quick" if arguments.quick else "evaluate_agreement", result, _bars(found))


def _table(tasks: str, shots: str) -> dict[str, list[int]]:
    """Numbers of examples by task."""
    split = [item.partition("@") for item in tasks.split(",")]
    return {name: [int(count) for count in (own or shots).split(",")] for name, _, own in split}


def _scores(way: str, cells: Sequence[Cell], folder: Path, work: Path) -> dict[str, list[tuple[float, bool]]]:
    """Log-likelihoods by cell, computed where the work folder lacks them."""
    parts = [(cell, part) for cell in cells for part in _parts(cell)]
    missing = [(cell, part) for cell, part in parts if not (work / _key(part)).is_file()]
    if missing:
        with opened(way, folder, "float32") as score:
            for cell, part in track(missing, f"{way}"):
                scored: Scored = score(Cell(cell.task, cell.shots, part, ()))
                write_json(work / _key(part), scored.scores)
    found: dict[str, list[tuple[float, bool]]] = {cell.name: [] for cell in cells}
    for cell, part in parts:
        found[cell.name] += [(logprob, greedy) for logprob, greedy in read_json(work / _key(part))]
    return found


def _parts(cell: Cell) -> list[tuple[tuple[str, str], ...]]:
    return [cell.prompts[start : start + _PART] for start in range(0, len(cell.prompts), _PART)]


def _key(part: tuple[tuple[str, str], ...]) -> str:
    return f"{hashlib.sha256(json.dumps(part).encode()).hexdigest()[:24]}.json"


def _compare(cell: Cell, mine: Sequence[tuple[float, bool]], reference: Sequence[tuple[float, bool]]) -> Agreement:
    choices, ties, start = [], [], 0
    for index, (_, prompts) in enumerate(cell.documents):
        answers = slice(start, start + prompts)
        start += prompts
        if _chosen(mine[answers]) != _chosen(reference[answers]):
            choices.append(index)
            if _is_tie([value for value, _ in reference[answers]]):
                ties.append(index)
    return Agreement(
        documents=len(cell.documents),
        requests=len(cell.prompts),
        largest_difference=max(abs(one - other) for (one, _), (other, _) in zip(mine, reference, strict=True)),
        greedy_differences=sum(one != other for (_, one), (_, other) in zip(mine, reference, strict=True)),
        choices=choices,
        ties=ties,
    )


def _chosen(answers: Sequence[tuple[float, bool]]) -> int | bool:
    """The likeliest answer; of a single one, whether greedy decoding writes it."""
    if len(answers) == 1:
        return answers[0][1]
    return max(range(len(answers)), key=lambda answer: answers[answer][0])


def _is_tie(logprobs: Sequence[float]) -> bool:
    """Whether the two likeliest answers are apart by no more than both may be wrong."""
    best, *others = sorted(logprobs, reverse=True)
    return bool(others) and best - others[0] <= 2 * _TOLERANCE


def _bars(found: dict[str, dict[str, Agreement]]) -> list[Bar]:
    bars = []
    for way, cells in found.items():
        largest = max(agreement.largest_difference for agreement in cells.values())
        bars.append(Bar(f"{way}: largest difference of a log-likelihood", largest, "nat", at_most=_TOLERANCE))
        apart = sum(len(set(agreement.choices) - set(agreement.ties)) for agreement in cells.values())
        bars.append(Bar(f"{way}: answers chosen otherwise that are no ties", apart, "", at_most=0))
    return bars


if __name__ == "__main__":
    main()
