"""What a run came to: figures, a table of them, and a file with every request."""

import collections
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from foundation.errors import UserError
from foundation.files import write_json
from serving.load.answer import Answer, Outcome
from serving.load.run import Run

_SHARES = (50, 90, 99)
_DIGITS = 6
_MOST_REASONS = 5
_LATE_SECONDS = 0.1


def percentile(values: Sequence[float], percent: float) -> float | None:
    """The smallest of `values` that at least so many percent of them do not exceed; None of none."""
    if not values:
        return None
    return sorted(values)[max(0, math.ceil(len(values) * percent / 100) - 1)]


def summarise(run: Run) -> dict[str, Any]:
    """The run's figures; times in seconds, of answered requests alone."""
    answered = [answer for answer in run.answers if answer.outcome is Outcome.answered]
    prompt = sum(answer.prompt_tokens or 0 for answer in answered)
    generated = sum(answer.completion_tokens or 0 for answer in answered)
    return {
        "requests": {outcome.value: run.outcomes[outcome] for outcome in Outcome},
        "statuses": dict(collections.Counter(_status(answer) for answer in run.answers)),
        "unfinished": run.unfinished,
        "seconds": run.seconds,
        "requests_per_second": len(answered) / run.seconds if run.seconds else 0.0,
        "prompt_tokens": prompt,
        "completion_tokens": generated,
        "tokens_per_second": generated / run.seconds if run.seconds else 0.0,
        "time_to_first_token": _shares(answer.first for answer in answered),
        "time_per_token": _shares(answer.seconds_per_token for answer in answered),
        "latency": _shares(answer.seconds for answer in answered),
        "refusal_latency": _shares(a.seconds for a in run.answers if a.outcome is Outcome.refused),
        "retry_after": _retries(run.answers),
        "late": _shares(answer.late for answer in run.answers),
    }


def print_report(run: Run, console: Console) -> None:
    """The table: requests by status, speed, and times at the usual shares of requests."""
    figures = summarise(run)
    requests = Table("requests", "status", "number", "said", box=None, pad_edge=False)
    for (outcome, status), answers in _groups(run.answers):
        for place, (said, count) in enumerate(_reasons(answers)):
            requests.add_row(*((outcome, status) if place == 0 else ("", "")), str(count), said)
    console.print(requests)
    console.print()
    times = Table("seconds", *(f"p{share}" for share in _SHARES), box=None, pad_edge=False)
    names = ("time to first token", "time per token", "latency", "refusal latency")
    for name in names:
        shares = figures[name.replace(" ", "_")]
        if shares is not None:
            times.add_row(name, *(f"{shares[f'p{share}']:.4f}" for share in _SHARES))
    console.print(times)
    console.print()
    for line in _lines(run, figures):
        console.print(line)


def write_run(path: Path, run: Run, settings: dict[str, Any]) -> None:
    """Write what was asked, the figures, and every request in the order in which they were sent.

    Raises UserError where the file cannot be written.
    """
    answers = sorted(run.answers, key=lambda answer: answer.sent)
    document = {
        "settings": settings,
        "started": run.started,
        "interrupted": run.interrupted,
        "summary": summarise(run),
        "requests": [_entry(answer) for answer in answers],
    }
    try:
        write_json(path, document)
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}") from None


def _entry(answer: Answer) -> dict[str, Any]:
    fields = {**vars(answer), "seconds_per_token": answer.seconds_per_token}
    return {
        name: round(value, _DIGITS) if isinstance(value, float) else value
        for name, value in fields.items()
        if value is not None and value != []
    }


def _lines(run: Run, figures: dict[str, Any]) -> Iterable[str]:
    yield (
        f"{figures['tokens_per_second']:.1f} tokens/s, {figures['requests_per_second']:.2f} requests/s answered, "
        f"in {figures['seconds']:.1f} s; {figures['completion_tokens']} tokens generated, "
        f"{figures['prompt_tokens']} of prompts"
    )
    retries = figures["retry_after"]
    if retries["refusals"]:
        seconds = f": {retries['least']:g} to {retries['most']:g} s" if retries["named"] else ""
        yield f"Retry-After on {retries['named']} of {retries['refusals']} refusals for overload{seconds}"
    if retries["came_back"]:
        yield f"came back after it: {retries['came_back']}, of which {retries['then_taken']} were then taken"
    late = figures["late"]
    if late is not None and late["p99"] > _LATE_SECONDS:
        yield f"this machine was late in sending: {late['p99']:.2f} s at p99; the server had it easier than asked"
    if run.interrupted:
        left = run.total - len(run.answers)
        yield f"interrupted: {left} of {run.total} requests are not in these figures, {run.unfinished} of them sent"


def _retries(answers: Sequence[Answer]) -> dict[str, Any]:
    """Whether the server said when to come back, and whether those who did were taken then."""
    overloaded = [answer for answer in answers if answer.status in (429, 503)]
    waits = [wait for answer in answers for wait in answer.retry_afters]
    waits += [answer.retry_after for answer in overloaded if answer.retry_after is not None]
    came_back = [answer for answer in answers if answer.retry_afters]
    return {
        "refusals": len(overloaded) + sum(len(answer.retry_afters) for answer in answers),
        "named": len(waits),
        "least": min(waits, default=0.0),
        "most": max(waits, default=0.0),
        "came_back": sum(len(answer.retry_afters) for answer in came_back),
        "then_taken": sum(answer.status not in (429, 503) for answer in came_back),
    }


def _groups(answers: Sequence[Answer]) -> list[tuple[tuple[str, str], list[Answer]]]:
    order = list(Outcome)
    groups: dict[tuple[str, str], list[Answer]] = {}
    for answer in sorted(answers, key=lambda answer: (order.index(answer.outcome), answer.status or 0)):
        groups.setdefault((answer.outcome.value, _status(answer)), []).append(answer)
    return list(groups.items())


def _reasons(answers: Sequence[Answer]) -> list[tuple[str, int]]:
    counted = collections.Counter(answer.error or "" for answer in answers)
    shown = counted.most_common(_MOST_REASONS)
    rest = len(answers) - sum(count for _, count in shown)
    return shown + ([("other reasons", rest)] if rest else [])


def _status(answer: Answer) -> str:
    return "-" if answer.status is None else str(answer.status)


def _shares(values: Iterable[float | None]) -> dict[str, float | None] | None:
    known = [value for value in values if value is not None]
    return {f"p{share}": percentile(known, share) for share in _SHARES} if known else None
