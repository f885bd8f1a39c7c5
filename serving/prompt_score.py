"""Log-probabilities of given tokens from a running engine."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from serving.engine import replica_of


class ScoringRefusedError(Exception):
    """A text cannot be scored; says why."""


@dataclass(frozen=True)
class PromptScore:
    """Log-probabilities of a continuation's tokens, whether each is the likeliest, and tokens from the cache."""

    logprobs: list[float]
    is_greedy: bool
    cached: int


def tokens_of(
    engine: Any, context: str | list[int], continuations: Sequence[str | list[int]]
) -> tuple[list[int], list[list[int]]]:
    """Token ids of a context, which is begun with the end of text where it is empty, and of what stands behind it.

    Texts are tokenised together and cut behind the context's tokens; token ids stay as they are.
    """
    tokenizer = engine.get_tokenizer()
    head = tokenizer.encode(context) if isinstance(context, str) else context
    parts = []
    for continuation in continuations:
        if isinstance(context, str) and isinstance(continuation, str):
            parts.append(tokenizer.encode(context + continuation)[len(head) :])
        elif not isinstance(context, str) and not isinstance(continuation, str):
            parts.append(continuation)
        else:
            raise ScoringRefusedError("context and continuations must both be texts, or both token ids")
    head = head or [tokenizer.eos_token_id]
    if not all(parts):
        raise ScoringRefusedError("a continuation has no token of its own")
    longest, room = len(head) + max(map(len, parts)), engine.model_config.max_model_len - 1
    if longest > room:
        raise ScoringRefusedError(f"context and continuation are {longest} tokens together, more than {room}")
    vocabulary = engine.model_config.get_vocab_size()
    if max(map(max, [head, *parts])) >= vocabulary:
        raise ScoringRefusedError(f"a token id is not below the size of the vocabulary, {vocabulary}")
    return head, parts


async def prompt_score(
    engine: Any, context: Sequence[int], continuation: Sequence[int], *, cached: bool = True
) -> PromptScore:
    """Score `continuation` after `context`, reading what the prefix cache has of the context.

    vLLM has no log-probability of tokens that it took from the cache, nor of the first one behind them where the
    cache ends before it; a request in which that touches the continuation is computed once more without the cache.
    """
    from vllm import SamplingParams

    prompt = [*context, *continuation]
    # Without `detokenize` the rows of cached tokens, which hold anything, would be turned into text.
    parameters = SamplingParams(
        max_tokens=1, temperature=0, prompt_logprobs=0, detokenize=False, skip_reading_prefix_cache=not cached
    )
    request_id = f"score-{uuid.uuid4()}"
    replica = replica_of(engine, context)  # the one whose cache has the context
    outputs = [
        output
        async for output in engine.generate(
            {"prompt_token_ids": prompt}, parameters, request_id, data_parallel_rank=replica
        )
    ]
    taken = outputs[-1].num_cached_tokens or 0
    if cached and taken > len(context) - 1:
        return await prompt_score(engine, context, continuation, cached=False)
    rows = outputs[-1].prompt_logprobs[len(context) :]
    found = [row[token] for row, token in zip(rows, continuation, strict=True)]
    return PromptScore([entry.logprob for entry in found], all(entry.rank == 1 for entry in found), taken)
