"""Samples for the page: a bounded choice of each cell's documents, with the question's part of the prompt."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from os.path import commonprefix
from typing import Any

from evaluation.run_folder import RunCell, RunFolder

# Documents of a cell on the page, half of them wrong and half right as far as there are so many of either.
MOST_SAMPLES = 200
# Of a prompt, the last so many characters; longer ones are RACE's articles and examples.
MOST_CHARACTERS = 2500


@dataclass(frozen=True)
class Question:
    """A sample as the page shows it; `chosen` and `right` are places in `choices`, None where not known.

    A task with one continuation has one choice, chosen where it is what the model would write itself (greedily).
    `log_likelihoods` are the sums over a choice's tokens, in nats.
    """

    prompt: str
    choices: tuple[str, ...]
    log_likelihoods: tuple[float, ...]
    chosen: int | None
    right: int | None
    correct: bool


@dataclass
class Browsable:
    """What the page's script reads: texts once each, and cells whose samples refer to them by place."""

    texts: list[str] = field(default_factory=list)
    cells: list[dict[str, Any]] = field(default_factory=list)
    _places: dict[str, int] = field(default_factory=dict)

    def add(self, cell: Mapping[str, Any], samples: list[dict[str, Any]]) -> None:
        """Append a cell."""
        self.cells.append({**cell, "samples": samples})

    def place(self, text: str) -> int:
        """Where a text stands among the texts."""
        if text not in self._places:
            self._places[text] = len(self.texts)
            self.texts.append(text)
        return self._places[text]

    def as_json(self) -> dict[str, Any]:
        """For the page."""
        return {"texts": self.texts, "cells": self.cells}


def question_of(sample: Mapping[str, Any], metric: str) -> Question:
    """Read one of lm-eval's samples of a multiple-choice or log-likelihood task."""
    arguments = [(str(pair["arg_0"]), str(pair["arg_1"])) for pair in sample["arguments"].values()]
    scores = [(float(ll), bool(greedy)) for ll, greedy in sample["filtered_resps"]]
    correct = bool(sample[metric])
    prompt, choices = _prompt_and_choices(arguments)
    lls = tuple(ll for ll, _ in scores)
    chosen: int | None
    right: int | None
    if len(choices) == 1:
        chosen, right = (0 if scores[0][1] else None), 0
    else:
        lengths = [len(ending.strip()) or 1 if metric == "acc_norm" else 1 for _, ending in arguments]
        normalised = [ll / length for ll, length in zip(lls, lengths, strict=True)]
        chosen = normalised.index(max(normalised))
        right = _right_choice(str(sample["target"]), choices, chosen, correct)
    return Question(prompt, tuple(choices), lls, chosen, right, correct)


def browsable_cell(run: RunFolder, cell: RunCell, bare: dict[int, str], found: Browsable) -> None:
    """Add a cell's samples. `bare` are the task's prompts without examples by document, filled at zero shots."""
    metric = run.metric(cell.task)
    picked = _pick(run.samples(cell), metric, bare if cell.shots == 0 else None)
    questions = [(int(sample["doc_id"]), question_of(sample, metric)) for sample in picked]
    shared = _shared_examples([question.prompt for _, question in questions]) if cell.shots else 0
    samples = []
    for document, question in questions:
        start = _question_start(question.prompt, bare.get(document), shared)
        start = max(start, len(question.prompt) - MOST_CHARACTERS)
        samples.append(
            {
                "document": document,
                "correct": question.correct,
                "prompt": found.place(question.prompt[start:]),
                "omitted": start,
                "choices": [found.place(choice) for choice in question.choices],
                "scores": [round(ll, 3) for ll in question.log_likelihoods],
                "chosen": question.chosen,
                "right": question.right,
            }
        )
    about = {"name": cell.name, "task": cell.task, "shots": cell.shots, "seed": cell.seed}
    found.add({**about, "documents": cell.record["accuracy"]["documents"]}, samples)


def _pick(samples: Iterable[dict[str, Any]], metric: str, bare: dict[int, str] | None) -> list[dict[str, Any]]:
    by_outcome: dict[bool, list[dict[str, Any]]] = {True: [], False: []}
    for sample in samples:
        if bare is not None:
            bare[int(sample["doc_id"])] = question_of(sample, metric).prompt
        kept = by_outcome[bool(sample[metric])]
        if len(kept) < MOST_SAMPLES:
            kept.append(sample)
    right, wrong = by_outcome[True], by_outcome[False]
    half = MOST_SAMPLES // 2
    picked = right[: max(half, MOST_SAMPLES - len(wrong))] + wrong[: max(half, MOST_SAMPLES - len(right))]
    return sorted(picked, key=lambda sample: int(sample["doc_id"]))


def _prompt_and_choices(arguments: Sequence[tuple[str, str]]) -> tuple[str, list[str]]:
    contexts = [context for context, _ in arguments]
    if len(set(contexts)) == 1:
        return contexts[0], [ending for _, ending in arguments]
    # The choices are in the prompt (WinoGrande): what they share is the prompt, up to a whole word.
    shared = commonprefix(contexts)  # noqa: RUF071
    shared = shared[: shared.rfind(" ") + 1]
    return shared, [context[len(shared) :] + ending for context, ending in arguments]


def _right_choice(target: str, choices: Sequence[str], chosen: int, correct: bool) -> int | None:
    """lm-eval's samples hold the right choice's place, or its text, or neither."""
    if correct:
        return chosen
    if len(choices) == 2:
        return 1 - chosen
    if target.isdecimal() and int(target) < len(choices):
        found = int(target)
    else:
        found = next((place for place, choice in enumerate(choices) if choice.strip() == target.strip()), chosen)
    return None if found == chosen else found


def _shared_examples(prompts: Sequence[str]) -> int:
    """How many first characters are examples that all prompts share; they end with an empty line."""
    shared = commonprefix(list(prompts))  # noqa: RUF071
    return shared.rfind("\n\n") + 2 if "\n\n" in shared else 0


def _question_start(prompt: str, bare: str | None, shared: int) -> int:
    return len(prompt) - len(bare) if bare and prompt.endswith(bare) else shared
