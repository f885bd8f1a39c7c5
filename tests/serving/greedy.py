"""Greedy continuations from whatever computes the model, as token ids, to be compared across computations."""

from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from conversion.open_source import open_source
from conversion.whole import whole_tensor
from training.model.gpt import GPT
from training.model.tensors import tensor_table

Logits = Callable[[torch.Tensor], torch.Tensor]

PROMPTS = [[104, 101, 108, 108], [1], [258, 17, 99], [5, 4, 3, 2, 1, 0], [200] * 9, [42, 43], [256, 257], [77, 3, 250]]
LENGTH = 32


def greedy_tokens(logits: Logits, prompts: Sequence[Sequence[int]], length: int) -> tuple[list[list[int]], float]:
    """Continue every prompt by `length` argmax tokens; also the smallest lead of an argmax over the runner-up.

    `logits` maps token ids [1, sequence] to [1, sequence, vocabulary]. Where the lead is far above
    rounding, any correct computation gives the same tokens.
    """
    continuations, lead = [], float("inf")
    for prompt in prompts:
        tokens = list(prompt)
        for _ in range(length):
            with torch.no_grad():
                best = logits(torch.tensor([tokens]))[0, -1].float().topk(2)
            lead = min(lead, float(best.values[0] - best.values[1]))
            tokens.append(int(best.indices[0]))
        continuations.append(tokens[len(prompt) :])
    return continuations, lead


def training_logits(run: Path) -> Logits:
    """A training run's newest checkpoint, computed by the layers that trained it."""
    source = open_source(run)
    model = GPT(source.model)
    with torch.no_grad():
        for spec in tensor_table(source.model):
            model.table_parameters()[spec.name][: spec.shape[0]] = whole_tensor(source, spec)
    return model


def transformers_logits(folder: Path) -> Logits:
    """A Hugging Face folder computed by transformers, in float32."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def logits(tokens: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = model(tokens).logits
        return result

    return logits


def prompt_log_probabilities(logits: Logits, prompt: Sequence[int]) -> list[float]:
    """Log-probability of every token of the prompt but the first, given those before it, in nats."""
    with torch.no_grad():
        scores = logits(torch.tensor([list(prompt)]))[0].float().log_softmax(-1)
    return [float(scores[place, token]) for place, token in enumerate(prompt[1:])]


def served_log_probabilities(url: str, model: str, prompt: Sequence[int]) -> list[float]:
    """The same from a running server."""
    from openai import OpenAI

    with OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=120) as client:
        completion = client.completions.create(
            model=model, prompt=list(prompt), max_tokens=1, extra_body={"prompt_logprobs": 0}
        )
    found = completion.choices[0].model_dump()["prompt_logprobs"]
    return [held[str(token)]["logprob"] for held, token in zip(found[1:], prompt[1:], strict=True)]


def served_tokens(url: str, model: str, prompts: Sequence[Sequence[int]], length: int) -> list[list[int]]:
    """The same continuations from a running server, asked with OpenAI's own client."""
    from openai import OpenAI

    with OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=120) as client:
        continuations = []
        for prompt in prompts:
            completion = client.completions.create(
                model=model,
                prompt=list(prompt),
                max_tokens=length,
                temperature=0,
                extra_body={"return_token_ids": True, "ignore_eos": True},
            )
            continuations.append(completion.choices[0].model_dump()["token_ids"])
    return continuations
