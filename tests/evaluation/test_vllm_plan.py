"""What is asked of an engine with a prefix cache: every score comes out, whatever the cache keeps, exactly."""

import math
import random
from collections.abc import Sequence
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from evaluation.backends.token_sequences import TokenSequence, common_prefix
from evaluation.backends.vllm_plan import Assembly, Job, JobScores, TokenScore, make_jobs
from evaluation.backends.vllm_process import pack_jobs, unpack_jobs
from evaluation.scoring import Request, Score


def token_score(before: TokenSequence, token: int) -> TokenScore:
    """A model whose scores depend on every token before."""
    drawn = random.Random(str((before, token)))
    return -drawn.random(), drawn.random() < 0.7


def expected(request: Request) -> Score:
    tokens = request.context + request.continuation
    scores = [token_score(tokens[:at], tokens[at]) for at in range(len(request.context), len(tokens))]
    return Score(math.fsum(value for value, _ in scores), all(likeliest for _, likeliest in scores))


def run_engine(jobs: Sequence[Job], block: int, forgetting: float = 0.0, seed: int = 0) -> list[JobScores]:
    """An engine with a prefix cache, as vLLM's: whole blocks, never the whole prompt; it may forget any block."""
    drawn = random.Random(seed)
    cache: set[TokenSequence] = set()
    done = []
    for job in jobs:
        cached = 0
        while cached + block < len(job.prompt) and job.prompt[: cached + block] in cache:
            cached += block
        cache |= {job.prompt[:end] for end in range(block, len(job.prompt) + 1, block)}
        cache = {prefix for prefix in cache if drawn.random() >= forgetting}
        rows = range(max(job.first_row, cached), len(job.prompt) - 1)
        done.append(
            JobScores(
                cached,
                [token_score(job.prompt, token) for token in job.targets],
                [token_score(job.prompt[: row + 1], job.prompt[row + 1]) for row in rows],
            )
        )
    return done


def assemble(requests: Sequence[Request], jobs: Sequence[Job], done: Sequence[JobScores], seed: int = 0) -> list[Score]:
    assembly = Assembly(dict(enumerate(requests)), jobs)
    order = list(range(len(jobs)))
    random.Random(seed).shuffle(order)
    found: dict[int, Score] = {}
    for index in order:
        found |= assembly.add(index, done[index])
    return [found[index] for index in range(len(requests))]


def check(requests: Sequence[Request], block: int, forgetting: float = 0.0, seed: int = 0) -> int:
    """Compare with scoring each request alone; tokens computed."""
    jobs = make_jobs(requests, block)
    done = run_engine(jobs, block, forgetting, seed)
    for request, score in zip(requests, assemble(requests, jobs, done, seed), strict=True):
        alone = expected(request)
        assert math.isclose(score.logprob, alone.logprob, abs_tol=1e-9), request
        assert score.is_greedy == alone.is_greedy, request
    return sum(len(job.prompt) - scores.cached for job, scores in zip(jobs, done, strict=True))


@st.composite
def request_lists(draw: st.DrawFn) -> list[Request]:
    """Requests over few tokens, so that contexts and continuations share beginnings of every length."""
    tokens = st.integers(0, draw(st.integers(0, 2)))
    examples = draw(st.lists(tokens, max_size=24))
    requests = []
    for _ in range(draw(st.integers(1, 7))):
        taken = draw(st.sampled_from([len(examples), len(examples) // 2, 0]))
        context = [*examples[:taken], *draw(st.lists(tokens, max_size=5))] or [0]
        requests.append(Request(tuple(context), tuple(draw(st.lists(tokens, min_size=1, max_size=9)))))
    return requests


@settings(max_examples=500, deadline=None)
@given(request_lists(), st.integers(1, 5), st.sampled_from([0.0, 0.2, 0.7]), st.integers(0, 99))
def test_every_score_is_that_of_the_request_alone(
    requests: list[Request], block: int, forgetting: float, seed: int
) -> None:
    check(requests, block, forgetting, seed)


@settings(max_examples=100, deadline=None)
@given(request_lists(), st.integers(1, 5))
def test_jobs_travel_without_what_they_share(requests: list[Request], block: int) -> None:
    jobs = make_jobs(requests, block)
    assert list(unpack_jobs(pack_jobs(jobs))) == jobs
    assert all(job.shared == common_prefix(before.prompt, job.prompt) for before, job in pairwise(jobs))


def test_shared_examples_are_computed_once() -> None:
    examples = tuple(range(160))
    requests = [Request((*examples, 200 + doc), (300, 310 + choice, 320)) for doc in range(10) for choice in range(3)]
    # 160 for the examples; for every request what is its own and, as the examples end with a block, no more.
    assert check(requests, block=16) <= 160 + 30 * 3 + 16


def test_answers_of_one_token_are_one_job() -> None:
    requests = [Request((1, 2, 3), (answer,)) for answer in (7, 8, 9)]
    assert make_jobs(requests, 16) == [Job((1, 2, 3), 0, (7, 8, 9), 2)]


def test_a_context_that_ends_with_a_block_is_asked_for_what_comes_after_it() -> None:
    context = tuple(range(32))
    requests = [Request(context, (40, 41)), Request(context, (50, 51))]
    branch, *_ = make_jobs(requests, 16)
    assert branch == Job(context, 0, (40, 50), 31)
    check(requests, block=16)


def test_a_long_beginning_is_computed_without_the_vocabulary() -> None:
    context = tuple(range(100))
    warm, scored = make_jobs([Request(context, (40, 41))], 16)
    assert (warm.prompt, warm.targets, warm.first_row) == (context[:96], (), 95)
    assert (scored.shared, scored.first_row) == (96, 99)


def test_more_answers_than_vllm_scores_after_one_prompt() -> None:
    requests = [Request((1, 2, 3, 4), (answer,)) for answer in range(300)]
    jobs = make_jobs(requests, 2)
    assert max(len(job.targets) for job in jobs) <= 128
    check(requests, block=2)
