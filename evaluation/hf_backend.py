"""The backend `hf`: a causal language model of transformers, its head computed at scored positions only."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from evaluation.packing import Pack, TokenSequence, make_packs, row_tensors
from evaluation.scoring import Request, Score, ScoredBatch
from foundation.errors import UserError

# Tokens in a batch: enough to fill the arithmetic units, few enough for the activations to fit.
_BATCH_TOKENS = {"cpu": 4096, "cuda": 32768}
# Rows of the head's output in memory at a time: 0.2 GB with GPT-2's vocabulary in fp32.
_HEAD_ROWS = 1024


class HFBackend:
    """Scores with `AutoModelForCausalLM`, on the GPU where there is one.

    `dtype` is that of weights and activations; log-softmax is always fp32. Raises UserError when the folder
    cannot be loaded, or its architecture does more after the last layer than one projection.
    """

    def __init__(self, folder: Path, dtype: str) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        try:
            self.tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
            model = AutoModelForCausalLM.from_pretrained(
                folder, dtype=getattr(torch, dtype), attn_implementation="sdpa", local_files_only=True
            )
        except (OSError, ValueError, RuntimeError) as error:
            raise UserError(f"{folder} could not be loaded: {' '.join(str(error).split())}") from None
        if self.tokenizer.eos_token_id is None:
            raise UserError(f"{folder}: the tokenizer names no end-of-text token (eos_token)")
        self._model = model.to(self.device).eval()
        self.max_length = _max_length(model.config, self.tokenizer)
        self._check_head(folder)

    def score(self, requests: Sequence[Request]) -> Iterator[ScoredBatch]:
        """Score in batches of equal-length rows, longest first; each distinct sequence is computed once."""
        # The last token is only predicted: answers of one token after the same context are one sequence.
        wanted: dict[TokenSequence, list[int]] = {}
        for index, request in enumerate(requests):
            wanted.setdefault((request.context + request.continuation)[:-1], []).append(index)
        sequences = list(wanted)
        packs = make_packs(sequences, longest=2 * self.max_length)
        for batch in self._batches(packs):
            hidden = self._hidden(batch)
            rows: list[torch.Tensor] = []
            owners: list[int] = []
            for row, pack in enumerate(batch):
                for branch, member in enumerate(pack.members):
                    for index in wanted[sequences[member]]:
                        scored = len(requests[index].continuation)
                        end = len(sequences[member])
                        rows.append(hidden[row, pack.columns(branch, end - scored, end)])
                        owners.append(index)
            scores = self._head(rows, [requests[index].continuation for index in owners])
            yield ScoredBatch(dict(zip(owners, scores, strict=True)), sum(map(len, batch)))

    def _batches(self, packs: list[Pack]) -> Iterator[list[Pack]]:
        budget = _BATCH_TOKENS[self.device.type]
        batch: list[Pack] = []
        for pack in sorted(packs, key=len, reverse=True):
            if batch and len(batch[0]) * (len(batch) + 1) > budget:
                yield batch
                batch = []
            batch.append(pack)
        if batch:
            yield batch

    @torch.inference_mode()
    def _hidden(self, packs: Sequence[Pack]) -> torch.Tensor:
        """The last layer's output, [b, t, h]."""
        tokens, positions, mask = (tensor.to(self.device) for tensor in row_tensors(packs))
        output = self._model.base_model(input_ids=tokens, position_ids=positions, attention_mask=mask, use_cache=False)
        hidden: torch.Tensor = output.last_hidden_state
        return hidden

    @torch.inference_mode()
    def _head(self, rows: Sequence[torch.Tensor], continuations: Sequence[TokenSequence]) -> list[Score]:
        """Scores of continuations whose tokens are predicted from hidden states `rows`, [tokens, h] each."""
        targets = torch.tensor([token for tokens in continuations for token in tokens], device=self.device)
        logprobs: list[torch.Tensor] = []
        greedy: list[torch.Tensor] = []
        head = self._model.get_output_embeddings()
        for states, goal in zip(
            torch.split(torch.cat(list(rows)), _HEAD_ROWS), torch.split(targets, _HEAD_ROWS), strict=True
        ):
            table = torch.log_softmax(head(states), dim=-1, dtype=torch.float32)
            logprobs.append(table.gather(1, goal[:, None])[:, 0])
            greedy.append(table.argmax(dim=-1) == goal)
        lengths = [len(tokens) for tokens in continuations]
        return [
            Score(float(part.sum()), bool(hits.all()))
            for part, hits in zip(
                torch.split(torch.cat(logprobs).cpu(), lengths),
                torch.split(torch.cat(greedy).cpu(), lengths),
                strict=True,
            )
        ]

    @torch.inference_mode()
    def _check_head(self, folder: Path) -> None:
        """Some architectures scale or cap their logits; leaving that out would be a silent error."""
        probe = torch.tensor([[self.tokenizer.eos_token_id]], device=self.device)
        logits = self._model(input_ids=probe).logits
        hidden = self._model.base_model(input_ids=probe).last_hidden_state
        if not torch.allclose(self._model.get_output_embeddings()(hidden).float(), logits.float(), atol=1e-3):
            raise UserError(
                f"{folder}: the architecture {type(self._model).__name__} changes its logits after the output "
                "projection, which this backend does not know"
            )


def _max_length(config: Any, tokenizer: Any) -> int:
    """The longest input, in tokens, as lm-eval's HFLM resolves it."""
    from lm_eval.models.utils import resolve_max_length

    return int(resolve_max_length(config, tokenizer))
