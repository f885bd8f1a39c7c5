"""How fast documents are scored: our backends `vllm` and `hf` beside lm-eval's own, the same model and prompts.

The model is SmolLM2-135M (benchmarks/smollm2.py). All four see the same texts, with the same examples before every
question, and tokenise them themselves; only that and the scoring is timed, no start-up. Where an accuracy differs, the
dtype or a mistake shows, so fp32 is the default. lm-eval's vLLM is compiled, as it comes; its `hf` gets batches of
about as many tokens as ours. The ways take turns, a round each; cells with examples, which take lm-eval many minutes,
are scored by lm-eval in the first round only.

    python -m benchmarks.evaluate            # some hours on two cores; writes benchmarks/results/evaluate.json
    python -m benchmarks.evaluate --quick    # a try; writes benchmarks/results/evaluate.quick.json
"""

import argparse
import os
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.progress import track

from benchmarks.common import Bar, write_result
from benchmarks.evaluation_ways import OURS, PEERS, WAYS, Cell, Scored, document_metrics, make_cell, opened
from benchmarks.smollm2 import smollm2_folder

_TASKS = ("piqa", "hellaswag", "boolq")
_SHARED_DATA = Path(__file__).resolve().parents[2] / "shared" / "benchmarks"
_MANY = 20
_FASTER_MANY, _FASTER_ZERO = 10.0, 1.3

Timings = dict[str, dict[str, list[Scored]]]  # cell, way, turns


def main() -> None:
    """Score every cell every way and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few documents, into another file")
    parser.add_argument("--documents", type=int, help="documents a task, from the first on; default 100")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each way; with examples one of lm-eval")
    parser.add_argument("--dtype", default="float32", help="of all four; accuracies may differ in bfloat16")
    parser.add_argument("--tasks", default=",".join(_TASKS), help="comma-separated")
    parser.add_argument("--shots", default=f"0,5,{_MANY}", help="comma-separated")
    parser.add_argument("--data", type=Path, help="task data, as for mtnlg evaluate")
    arguments = parser.parse_args()
    documents = arguments.documents or (3 if arguments.quick else 100)
    rounds = 1 if arguments.quick else arguments.rounds
    shots = [int(count) for count in arguments.shots.split(",")]
    tasks = load(arguments.tasks.split(","), shots, arguments.data)
    cells = [make_cell(task, name, count, documents) for name, task in tasks.items() for count in shots]
    timings = _take_turns(cells, smollm2_folder(), arguments.dtype, rounds)
    result = {
        "model": "SmolLM2-135M-Instruct, weights of 4 bits expanded to bfloat16",
        "dtype": arguments.dtype,
        "documents_a_task": documents,
        "threads": len(os.sched_getaffinity(0)),
        "examples": "fixed: the same before every question",
        "timed": "tokenisation and scoring; no start-up, and a warm-up of two prompts before",
        "turns": f"{rounds} of each way; of lm-eval's with examples 1",
        "cells": {cell.name: _report(cell, tasks[cell.task], timings[cell.name]) for cell in cells},
    }
    write_result("evaluate.quick" if arguments.quick else "evaluate", result, _bars(result["cells"]))


def load(names: Sequence[str], shots: Sequence[int], data: Path | None) -> dict[str, Any]:
    """lm-eval's task objects by name, from a data folder or the normal sources."""
    from evaluation.libraries import prepare_libraries
    from evaluation.task_set import check_task_names, load_tasks

    folder = data or (_SHARED_DATA if _SHARED_DATA.is_dir() else None)
    prepare_libraries(offline=folder is not None)
    return load_tasks([(name, max(shots)) for name in check_task_names(list(names))], folder)


def _take_turns(cells: Sequence[Cell], folder: Path, dtype: str, rounds: int) -> Timings:
    timings: Timings = {cell.name: {way: [] for way in WAYS} for cell in cells}
    turns = [(turn, way) for turn in range(rounds) for way in WAYS]
    for turn, way in track(turns, "Scoring"):
        with opened(way, folder, dtype) as score:
            for cell in cells:
                if turn == 0 or way in OURS or cell.shots == 0:
                    timings[cell.name][way].append(score(cell))
    return timings


def _report(cell: Cell, task: Any, ways: dict[str, list[Scored]]) -> dict[str, Any]:
    reference = ways["lm-eval hf"][0].scores
    report: dict[str, Any] = {"documents": len(cell.documents), "requests": len(cell.prompts), "ways": {}}
    for way, turns in ways.items():
        first = turns[0]
        metrics = document_metrics(task, cell, first.scores)
        report["ways"][way] = {
            "seconds": statistics.median(turn.seconds for turn in turns),
            "turns_seconds": [turn.seconds for turn in turns],
            "tokens_computed": first.tokens_computed,
            "accuracies": {
                name: sum(found[name] for found in metrics) / len(metrics) for name in metrics[0] if "acc" in name
            },
            "largest_difference_to_lm_eval_hf": max(
                abs(mine - theirs) for (mine, _), (theirs, _) in zip(first.scores, reference, strict=True)
            ),
        }
    return report


def _bars(cells: dict[str, dict[str, Any]]) -> list[Bar]:
    bars = []
    for name, cell in cells.items():
        seconds = {way: found["seconds"] for way, found in cell["ways"].items()}
        for way in OURS:
            cell["ways"][way]["times_faster_than"] = {peer: seconds[peer] / seconds[way] for peer in PEERS}
        best = min(seconds[way] for way in OURS)
        if name.endswith(f"-{_MANY}shot"):
            bars += [
                Bar(f"{name}: speed over {peer}", seconds[peer] / best, "x", at_least=_FASTER_MANY) for peer in PEERS
            ]
        if name.endswith("-0shot"):
            faster = min(seconds[peer] for peer in PEERS)
            bars.append(Bar(f"{name}: speed over the faster of lm-eval's", faster / best, "x", at_least=_FASTER_ZERO))
    differing = [
        name
        for name, cell in cells.items()
        if any(way["accuracies"] != cell["ways"][PEERS[0]]["accuracies"] for way in cell["ways"].values())
    ]
    bars.append(Bar(f"cells whose accuracies differ ({', '.join(differing) or 'none'})", len(differing), "", at_most=0))
    return bars


if __name__ == "__main__":
    main()
