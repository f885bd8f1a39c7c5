"""Greedy continuations from whatever computes the model, as token ids, to be compared across computations."""

from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from conversion.checkpoint import open_checkpoint
from training.model.gpt import GPT

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
    checkpoint = open_checkpoint(run)
    model = GPT(checkpoint.model)
    with torch.no_grad():
        for spec, tensor in checkpoint.tensors():
            model.table_parameters()[spec.name][: spec.shape[0]] = tensor
    return model


def transformers_logits(folder: Path) -> Logits:
    """A Hugging Face folder computed by transformers, in float32."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def logits(tokens: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = model(tokens).logits
        return result

    return logits


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
