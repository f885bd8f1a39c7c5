"""What to ask of an engine with a prefix cache so that every needed log-probability is computed, and none is missing.

The engine keeps keys and values in blocks of a fixed number of tokens. It starts a prompt after its longest prefix of
whole blocks that an earlier prompt has filled, and reports log-probabilities only for tokens predicted from positions
that it computes. Prompts in lexicographic order share the most with the prompt before them, which has three uses:

- what a prompt takes from the cache is at most what it shares with the prompt before it;
- the log-probabilities of shared tokens were computed there, and are carried over;
- one can be missing: where two prompts part exactly at a block's end, the later one begins after the position that
  predicts its first own token. There the shared part becomes a prompt of its own, asked for that token.

Names: row i of a prompt is the distribution predicted from its tokens 0 to i, so it scores token i + 1.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from evaluation.backends.token_sequences import TokenSequence, common_prefix
from evaluation.scoring import Request, Score

TokenScore = tuple[float, bool]  # log-probability, and whether the token is the likeliest

# vLLM scores so many given tokens after one prompt.
_MOST_TARGETS = 128
# Blocks before the first needed row that are worth a prompt of their own: the engine computes the vocabulary
# projection for all rows of a prompt or for none.
_WARM_BLOCKS = 4


@dataclass(frozen=True)
class Job:
    """One prompt: score `targets` as its next token, and its own tokens from row `first_row` on.

    It has `shared` tokens in common with the job before it. A `first_row` of `len(prompt) - 1` asks for no row.
    """

    prompt: TokenSequence
    shared: int
    targets: TokenSequence
    first_row: int


@dataclass(frozen=True)
class JobScores:
    """A finished job: `cached` tokens came from the cache; scores of its targets and of the needed rows computed."""

    cached: int
    targets: Sequence[TokenScore]
    rows: Sequence[TokenScore]  # of rows max(first_row, cached) to len(prompt) - 2


@dataclass
class _Wanted:
    first_row: int
    targets: set[int] = field(default_factory=set)


def make_jobs(requests: Iterable[Request], block: int) -> list[Job]:
    """Jobs in lexicographic order of their prompts, to be started in this order, for a cache with this block size."""
    wanted: dict[TokenSequence, _Wanted] = {}
    for request in requests:
        prompt = prompt_of(request)
        want = wanted.setdefault(prompt, _Wanted(len(prompt) - 1))
        want.targets.add(request.continuation[-1])
        want.first_row = min(want.first_row, len(request.context) - 1)
    while True:
        prompts = sorted(wanted)
        shared = [common_prefix(one, other) for one, other in zip([(), *prompts], prompts, strict=False)]
        _hand_back(prompts, shared, wanted)
        if not _add_branches(prompts, shared, wanted, block):
            break
    return list(_jobs(prompts, shared, wanted))


def prompt_of(request: Request) -> TokenSequence:
    """What goes through the model: the last token is only predicted."""
    return (request.context + request.continuation)[:-1]


def _hand_back(prompts: Sequence[TokenSequence], shared: Sequence[int], wanted: dict[TokenSequence, _Wanted]) -> None:
    """A row that a prompt may carry over must be computed by the prompt before it."""
    for index in range(len(prompts) - 1, 0, -1):
        first_row = wanted[prompts[index]].first_row
        if first_row <= shared[index] - 2:
            before = wanted[prompts[index - 1]]
            before.first_row = min(before.first_row, first_row)


def _add_branches(
    prompts: Sequence[TokenSequence], shared: Sequence[int], wanted: dict[TokenSequence, _Wanted], block: int
) -> bool:
    """Ask for what the cache would hide, and for long beginnings without rows; whether there was anything to add."""
    added = False
    for prompt, common in zip(prompts, shared, strict=True):
        first_row = wanted[prompt].first_row
        if common and common % block == 0 and first_row < common < len(prompt):
            branch = wanted.setdefault(prompt[:common], _Wanted(common - 1))
            added |= prompt[common] not in branch.targets
            branch.targets.add(prompt[common])
        warm = first_row // block * block
        if first_row < len(prompt) - 1 and warm - common >= _WARM_BLOCKS * block:
            wanted.setdefault(prompt[:warm], _Wanted(warm - 1))
            added = True
    return added


def _jobs(
    prompts: Sequence[TokenSequence], shared: Sequence[int], wanted: dict[TokenSequence, _Wanted]
) -> Iterator[Job]:
    for prompt, common in zip(prompts, shared, strict=True):
        targets = tuple(sorted(wanted[prompt].targets))
        yield Job(prompt, common, targets[:_MOST_TARGETS], wanted[prompt].first_row)
        for start in range(_MOST_TARGETS, len(targets), _MOST_TARGETS):
            part = targets[start : start + _MOST_TARGETS]
            yield Job(prompt, len(prompt), part, wanted[prompt].first_row)


class Assembly:
    """Puts the jobs' scores together to those of the requests.

    Jobs may finish in any order; a request is scored once its job and all before it are finished.
    """

    def __init__(self, requests: dict[int, Request], jobs: Sequence[Job]) -> None:
        self._jobs = jobs
        self._requests = requests
        self._owners: dict[TokenSequence, list[int]] = {}
        for index, request in requests.items():
            self._owners.setdefault(prompt_of(request), []).append(index)
        self._early: dict[int, JobScores] = {}
        self._next = 0
        self._rows: list[TokenScore] = []  # of the job before, from its first_row on
        self._branches: dict[int, dict[int, TokenScore]] = {}  # targets of the prompts that the job begins with

    def add(self, index: int, scores: JobScores) -> dict[int, Score]:
        """Take a finished job; scores by request of those that this completes."""
        self._early[index] = scores
        complete: dict[int, Score] = {}
        while self._next in self._early:
            complete |= self._finish(self._jobs[self._next], self._early.pop(self._next))
            self._next += 1
        return complete

    def _finish(self, job: Job, scores: JobScores) -> dict[int, Score]:
        if scores.cached > job.shared:
            raise ValueError(f"{scores.cached} tokens came from the cache, where at most {job.shared} were put")
        rows = list(scores.rows)
        hidden = min(scores.cached, len(job.prompt) - 1)
        if hidden > job.first_row:
            if scores.cached == job.shared:
                hidden -= 1
                rows.insert(0, self._branches[job.shared][job.prompt[job.shared]])
            before_first = self._jobs[self._next - 1].first_row
            rows[:0] = self._rows[job.first_row - before_first : hidden - before_first]
        self._rows = rows
        self._branches = {length: found for length, found in self._branches.items() if length <= job.shared}
        after = self._branches.setdefault(len(job.prompt), {})
        after.update(zip(job.targets, scores.targets, strict=True))
        return self._completed(job, rows, after)

    def _completed(self, job: Job, rows: list[TokenScore], after: dict[int, TokenScore]) -> dict[int, Score]:
        found = {}
        for index in self._owners.get(job.prompt, ()):
            context, continuation = self._requests[index].context, self._requests[index].continuation
            if continuation[-1] in job.targets:
                tokens = [*rows[len(context) - 1 - job.first_row :], after[continuation[-1]]]
                found[index] = Score(sum(value for value, _ in tokens), all(likeliest for _, likeliest in tokens))
        return found
