"""The backend `hf`: a causal language model of transformers, its head computed at scored positions only."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from evaluation.backends.packing import Pack, make_packs, pack_alone
from evaluation.backends.prefix_tree import Trunk, plan_trunks
from evaluation.backends.token_sequences import TokenSequence
from evaluation.scoring import Request, Score, ScoredBatch
from foundation.errors import UserError

if TYPE_CHECKING:
    from evaluation.backends.hf_forward import Memory

# Tokens in a batch: enough to fill the arithmetic units, few enough for rows of nearly equal length, and to fit.
_BATCH_TOKENS = {"cpu": 512, "cuda": 32768}
# Tokens that a batch attends to, a copy of the trunk for each row counted, may be so many times more.
_KEYS_A_TOKEN = 4
# A row's longest packing: wider rows spend more on attention between tokens that do not see each other.
_ROW_TOKENS = {"cpu": 1024, "cuda": 4096}
# Rows of the head's output in memory at a time: 0.2 GB with GPT-2's vocabulary in fp32.
_HEAD_ROWS = 1024


@dataclass
class _Job:
    """The distinct sequences of one call, and which requests each of them answers."""

    requests: Sequence[Request]
    sequences: list[TokenSequence]
    asked_by: list[list[int]]
    tokens_pending: int = 0


class HFBackend:
    """Scores with `AutoModelForCausalLM`, on the GPU where there is one.

    `dtype` is that of weights and activations; log-softmax is always fp32. Raises UserError when the folder
    cannot be loaded, or its architecture does more after the last layer than one projection.
    """

    def __init__(self, folder: Path, dtype: str) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        from evaluation.backends.hf_forward import PackedForward

        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        try:
            self.tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
            model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype), local_files_only=True)
        except (OSError, ValueError, RuntimeError) as error:
            raise UserError(f"{folder} could not be loaded: {' '.join(str(error).split())}") from None
        if self.tokenizer.eos_token_id is None:
            raise UserError(f"{folder}: the tokenizer names no end-of-text token (eos_token)")
        self._model = model.to(self.device).eval()
        self.max_length = _max_length(model.config, self.tokenizer)
        self._check_head(folder)
        text = model.config.get_text_config(decoder=True)
        self._forward = PackedForward(self._model, int(text.vocab_size), self.max_length)
        # Of a layer's 24 h^2 operations a token and 4 h a token in sight, the latter are computed at half the speed.
        self._attention_parity = 3 * int(text.hidden_size)

    def close(self) -> None:
        """Give back the model's memory."""
        del self._model, self._forward
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def score(self, requests: Sequence[Request]) -> Iterator[ScoredBatch]:
        """Score in batches of equal-length rows; long shared prefixes and each distinct sequence are computed once."""
        # The last token is only predicted: answers of one token after the same context are one sequence.
        wanted: dict[TokenSequence, list[int]] = {}
        for index, request in enumerate(requests):
            wanted.setdefault((request.context + request.continuation)[:-1], []).append(index)
        job = _Job(requests, list(wanted), list(wanted.values()))
        if not self._forward.packs_allowed:
            for batch in self._batches(pack_alone(job.sequences), past=0):
                yield self._scored(job, batch, self._forward.plain(batch), range(len(job.sequences)), past=0)
            return
        needed = [min(len(requests[index].context) for index in indices) - 1 for indices in job.asked_by]
        yield from self._below(job, plan_trunks(job.sequences, needed, _ROW_TOKENS[self.device.type]), None)

    def _below(self, job: _Job, trunk: Trunk, memory: "Memory | None") -> Iterator[ScoredBatch]:
        """Score what stands behind a trunk whose keys and values are `memory`."""

        def cost(tokens: int) -> float:
            # Attention reads a copy of the trunk's keys and values for every row: measured, 1/40 of its tokens.
            return tokens * (1 + (trunk.length + tokens) / self._attention_parity) + trunk.length / 40

        leaves = [job.sequences[leaf] for leaf in trunk.leaves]
        packs = make_packs(leaves, _ROW_TOKENS[self.device.type], cost, after=trunk.length)
        for batch in self._batches(packs, trunk.length):
            yield self._scored(job, batch, self._forward.packed(batch, memory), trunk.leaves, trunk.length)
        for child in trunk.children:
            tokens = job.sequences[child.example][trunk.length : child.length]
            job.tokens_pending += len(tokens)
            yield from self._below(job, child, self._forward.extend(memory, tokens))

    def _batches(self, packs: list[Pack], past: int) -> Iterator[list[Pack]]:
        """Longest first, so that a batch that does not fit the memory fails at once."""
        budget = _BATCH_TOKENS[self.device.type]
        batch: list[Pack] = []
        for pack in sorted(packs, key=len, reverse=True):
            rows, width = len(batch) + 1, len(batch[0] if batch else pack)
            if batch and (rows * width > budget or rows * (past + width) > _KEYS_A_TOKEN * budget):
                yield batch
                batch = []
            batch.append(pack)
        if batch:
            yield batch

    def _scored(
        self, job: _Job, batch: Sequence[Pack], hidden: torch.Tensor, leaves: Sequence[int], past: int
    ) -> ScoredBatch:
        """Scores from hidden states [b, t, h]; the packs' members are indices into `leaves`, behind `past` tokens."""
        rows: list[torch.Tensor] = []
        owners: list[int] = []
        for row, pack in enumerate(batch):
            for branch, member in enumerate(pack.members):
                sequence = leaves[member]
                end = len(job.sequences[sequence]) - past
                for index in job.asked_by[sequence]:
                    scored = len(job.requests[index].continuation)
                    rows.append(hidden[row, pack.columns(branch, end - scored, end)])
                    owners.append(index)
        scores = self._head(rows, [job.requests[index].continuation for index in owners])
        computed = hidden.shape[0] * hidden.shape[1] + job.tokens_pending
        job.tokens_pending = 0
        return ScoredBatch(dict(zip(owners, scores, strict=True)), computed)

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
