"""Do two checkpoints compute the same? Both are run on the same prompts: `mtnlg convert --verify`."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from conversion.open_source import open_source
from conversion.source import WEIGHT, Source
from conversion.whole import whole_tensor
from foundation.errors import UserError
from foundation.formats import HF
from training.model.tensors import tensor_table

# Token ids [batch, sequence] to logits [batch, sequence, vocabulary].
Logits = Callable[[torch.Tensor], torch.Tensor]

_PROMPTS, _LENGTH, _GREEDY = 4, 24, 16
# Sums in another order differ by some roundings; the wrong rows of a fused projection by orders of magnitude more.
_TOLERANCE = 1e-3


@dataclass(frozen=True)
class Agreement:
    """The largest difference of a logit, the largest logit, and the share of greedy tokens that are the same."""

    largest_difference: float
    largest_logit: float
    same_tokens: int
    tokens: int

    def __str__(self) -> str:
        return (
            f"largest logit difference {self.largest_difference:.2g} (logits up to {self.largest_logit:.3g}), "
            f"{self.same_tokens} of {self.tokens} greedy tokens the same"
        )


def verify_conversion(source: Source, state: str, out: Path, dtype: torch.dtype) -> str:
    """Run `source` and the conversion in `out` in float32 on random prompts; what was found, in a line.

    The source is computed by this project's layers; a Hugging Face folder by transformers, everything else read back
    and computed by this project's layers again. Needs memory for the whole model. Raises UserError when they disagree
    although nothing was cast.
    """
    converted = open_source(out)
    reference = own_logits(source, state)
    if converted.format == HF:
        other, by = transformers_logits(out), "transformers"
    else:
        other, by = own_logits(converted, WEIGHT), "this project's layers"
    found = compare(reference, other, source.model.vocab_size, source.model.sequence_length)
    stored = source.tensors[tensor_table(source.model)[0].name, state][0].dtype
    wrong = found.largest_difference > _TOLERANCE * max(1.0, found.largest_logit)
    if stored == dtype and wrong:
        raise UserError(f"{out}, computed by {by}, is not the same model: {found}")
    cast = "" if stored == dtype else ", after a cast"
    return f"verified by {by}{cast}: {found}"


def compare(first: Logits, second: Logits, vocabulary: int, sequence_length: int) -> Agreement:
    """Both on the same random prompts, and the second along the greedy continuation of the first."""
    generator = torch.Generator().manual_seed(0)
    length = max(1, min(_LENGTH, sequence_length - _GREEDY))
    tokens = torch.randint(0, vocabulary, (_PROMPTS, length), generator=generator)
    with torch.no_grad():
        while tokens.shape[1] < min(length + _GREEDY, sequence_length):
            tokens = torch.cat((tokens, first(tokens)[:, -1:].argmax(-1)), 1)
        ours, theirs = first(tokens).float(), second(tokens).float()
    same = ours[:, length - 1 :].argmax(-1) == theirs[:, length - 1 :].argmax(-1)
    return Agreement(float((ours - theirs).abs().max()), float(ours.abs().max()), int(same.sum()), same.numel())


def own_logits(source: Source, state: str) -> Logits:
    """The checkpoint computed in float32 by the layers that train."""
    from training.model.gpt import GPT

    model = GPT(source.model).eval()
    parameters = model.table_parameters()
    with torch.no_grad():
        for spec in tensor_table(source.model):
            parameters[spec.name][: spec.shape[0]] = whole_tensor(source, spec, state)
    return model


def transformers_logits(folder: Path) -> Logits:
    """A Hugging Face folder computed in float32 by transformers."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    return lambda tokens: model(tokens).logits
