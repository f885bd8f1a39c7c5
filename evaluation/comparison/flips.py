"""The documents that one of two runs got right and the other wrong, as people read them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rich.text import Text

from evaluation.comparison.paired import PairedCell
from evaluation.run_folder import RunCell, RunFolder

_PROMPT_END = 160
_CHOICE_END = 80
_ELLIPSIS = "…"


@dataclass(frozen=True)
class Choice:
    """An answer and the sum of its tokens' log-probabilities (natural) in both runs."""

    text: str
    scores: tuple[float, float]


@dataclass(frozen=True)
class Flip:
    """A document that changed sides: `gained` when only the second run is right. `prompt` is the prompt's end."""

    document: int
    gained: bool
    prompt: str
    choices: tuple[Choice, ...]

    @property
    def change(self) -> float:
        """How far the choices' log-probabilities moved against each other; small where the runs nearly agree."""
        moves = [choice.scores[1] - choice.scores[0] for choice in self.choices]
        return max(moves) - min(moves) if len(moves) > 1 else abs(moves[0])


def find_flips(first: RunFolder, second: RunFolder, cell: PairedCell, count: int) -> list[Flip]:
    """The documents of a cell that changed sides, those whose choices moved most first, at most `count`."""
    if count <= 0:
        return []
    gained, wanted = set(cell.gained), {*cell.gained, *cell.lost}
    before, after = (_samples(run, own, wanted) for run, own in ((first, cell.first), (second, cell.second)))
    flips = [_flip(number, number in gained, before[number], after[number]) for number in sorted(wanted)]
    return sorted(flips, key=lambda flip: -flip.change)[:count]


def flip_lines(flip: Flip, cell: PairedCell) -> Text:
    """A flip as lines of text: which way, the prompt's end, and each choice with both scores."""
    way = "wrong in A, right in B" if flip.gained else "right in A, wrong in B"
    lines = [f"  document {flip.document}: {way}", f"    {flip.prompt}"]
    right = _right_choice(flip, cell.metric)
    for index, choice in enumerate(flip.choices):
        scores = "  ".join(f"{name} {score:9.3f}" for name, score in zip("AB", choice.scores, strict=True))
        lines.append(f"    {scores}  {choice.text}" + ("  <- right" if index == right else ""))
    return Text("\n".join(lines))


def _right_choice(flip: Flip, metric: str) -> int | None:
    """One run is right, and by `acc` it chose the likeliest answer; other metrics and a single answer tell nothing."""
    if metric != "acc" or len(flip.choices) < 2:
        return None
    run = 1 if flip.gained else 0
    return max(range(len(flip.choices)), key=lambda index: flip.choices[index].scores[run])


def _samples(run: RunFolder, cell: RunCell, wanted: set[int]) -> dict[int, dict[str, Any]]:
    return {sample["doc_id"]: sample for sample in run.samples(cell) if sample["doc_id"] in wanted}


def _flip(number: int, gained: bool, before: Mapping[str, Any], after: Mapping[str, Any]) -> Flip:
    arguments = list(after["arguments"].values())
    contexts, answers = ([str(argument[f"arg_{place}"]) for argument in arguments] for place in (0, 1))
    # Partial evaluation (WinoGrande): the choices stand in the contexts, what is scored is the same.
    in_context = len(arguments) > 1 and len(set(answers)) == 1
    prompt, texts = (answers[0], contexts) if in_context else (contexts[0], answers)
    choices = tuple(
        Choice(_end(text, _CHOICE_END), (float(one[0]), float(two[0])))
        for text, one, two in zip(texts, before["filtered_resps"], after["filtered_resps"], strict=True)
    )
    return Flip(number, gained, _end(prompt, _PROMPT_END), choices)


def _end(text: str, length: int) -> str:
    """The last characters on one line: prompts are long, and their end is the question."""
    line = " ".join(text.split())
    return line if len(line) <= length else _ELLIPSIS + line[-length:]
