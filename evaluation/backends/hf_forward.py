"""Hidden states of packed rows, behind a prefix whose keys and values were computed before."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import Cache, DynamicCache
from transformers.cache_utils import DynamicLayer

from evaluation.backends.packing import Pack, make_packs, row_tensors
from evaluation.backends.token_sequences import TokenSequence

# How far packed rows may be from plain ones, as a share of the hidden states' norm: far above rounding, far below
# what one wrong position or one token too many in sight does.
_PROBE_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.08, torch.float16: 0.02}


@dataclass(frozen=True)
class Memory:
    """A prefix of `length` tokens: for each layer its keys and values, [1, heads, length, head size]."""

    length: int
    layers: tuple[tuple[torch.Tensor, torch.Tensor], ...]


class _ReadOnlyLayer(DynamicLayer):  # type: ignore[misc]  # transformers ships no types
    """One layer of a `Memory`, before every row of a batch; what a batch adds is not kept."""

    def __init__(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        super().__init__()
        self.lazy_initialization(keys, values)
        self.keys, self.values = keys, values

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any) -> Any:
        rows = len(key_states)
        return (
            torch.cat([self.keys.expand(rows, -1, -1, -1), key_states], dim=-2),
            torch.cat([self.values.expand(rows, -1, -1, -1), value_states], dim=-2),
        )


class PackedForward:
    """Runs a causal language model's layers, without its head, on packed rows.

    `packs_allowed` is False, after a warning, for an architecture whose packed hidden states are not those of plain
    rows, or that does not look at everything before a token; such a model gets plain rows only.
    """

    def __init__(self, model: Any, vocabulary: int, max_length: int) -> None:
        self._model = model.base_model
        self.device = model.device
        self.packs_allowed = True
        reason = _partial_view(model.config, max_length) or self._probe(vocabulary, max_length)
        if reason:
            self.packs_allowed = False
            warnings.warn(
                f"{type(model).__name__}: {reason}; every answer is computed in a row of its own, which is slower",
                stacklevel=3,
            )

    @torch.inference_mode()
    def extend(self, memory: Memory | None, tokens: TokenSequence) -> Memory:
        """The memory of the prefix that is `memory`'s with `tokens` behind it."""
        past = memory.length if memory else 0
        cache = DynamicCache(memory.layers if memory else None)
        ids = torch.tensor([tokens], device=self.device)
        places = torch.arange(past, past + len(tokens), device=self.device)[None]
        # Without a mask, attention is causal in the fastest way there is; but it knows of no past.
        sight = torch.ones(len(tokens), past + len(tokens), dtype=torch.bool, device=self.device).tril(past)
        self._model(
            input_ids=ids,
            position_ids=places,
            attention_mask=sight[None, None] if past else None,
            past_key_values=cache,
            use_cache=True,
        )
        return Memory(past + len(tokens), tuple((layer.keys, layer.values) for layer in cache.layers))

    @torch.inference_mode()
    def packed(self, packs: Sequence[Pack], memory: Memory | None) -> torch.Tensor:
        """The last layer's output for rows that stand behind `memory`, [b, t, h]."""
        past = memory.length if memory else 0
        tokens, positions, mask = (tensor.to(self.device) for tensor in row_tensors(packs, past))
        cache = Cache(layers=[_ReadOnlyLayer(*layer) for layer in memory.layers]) if memory else None
        output = self._model(
            input_ids=tokens,
            position_ids=positions,
            attention_mask=mask,
            past_key_values=cache,
            use_cache=cache is not None,
        )
        hidden: torch.Tensor = output.last_hidden_state
        return hidden

    @torch.inference_mode()
    def plain(self, packs: Sequence[Pack]) -> torch.Tensor:
        """The last layer's output for rows of one member each, [b, t, h]; padding is on the right, out of sight."""
        ids = torch.nn.utils.rnn.pad_sequence([torch.tensor(pack.tokens) for pack in packs], batch_first=True)
        hidden: torch.Tensor = self._model(input_ids=ids.to(self.device), use_cache=False).last_hidden_state
        return hidden

    def _probe(self, vocabulary: int, max_length: int) -> str | None:
        """Why packs cannot be had: compares three answers behind a prefix of two parts with rows of their own."""
        step = max(1, min(8, max_length // 5))
        draw = torch.Generator().manual_seed(0)
        texts = torch.randint(vocabulary, (4, 5 * step), generator=draw).tolist()
        prefix, shared = tuple(texts[0][: 2 * step]), tuple(texts[0][2 * step : 3 * step])
        sequences = [prefix + shared + tuple(text[3 * step :]) for text in texts[1:]]
        try:
            memory = self.extend(self.extend(None, prefix[:step]), prefix[step:])
            (pack,) = make_packs(sequences, longest=len(sequences) * 5 * step, after=len(prefix))
            (found,) = self.packed([pack], memory)
        except (TypeError, ValueError, RuntimeError, AttributeError, IndexError, KeyError) as error:
            return f"it takes no packed rows ({' '.join(str(error).split())[:200]})"
        for branch, member in enumerate(pack.members):
            (expected,) = self.plain(make_packs([sequences[member]], longest=5 * step))
            there = found[pack.columns(branch, 0, 3 * step)].float()
            difference = (there - expected[len(prefix) :].float()).norm() / expected[len(prefix) :].float().norm()
            if not difference <= _PROBE_TOLERANCE[expected.dtype]:
                return f"packed rows give other hidden states than plain ones ({float(difference):.2g} of their norm)"
        return None


def _partial_view(config: Any, max_length: int) -> str | None:
    """Why a token does not see everything before it; masks of packed rows would replace the model's own."""
    settings = config.get_text_config(decoder=True)
    for name in ("sliding_window", "attention_chunk_size", "window_size"):
        window = getattr(settings, name, None)
        if isinstance(window, int) and window < max_length:
            return f"its attention has a window ({name}: {window})"
    kinds = set(getattr(settings, "layer_types", None) or ()) - {"full_attention", "sliding_attention"}
    if kinds:
        return f"it has layers of {', '.join(sorted(kinds))}"
    scaling = (getattr(settings, "rope_parameters", None) or {}).get("rope_type")
    return f"its positions depend on the row's length ({scaling})" if scaling in {"dynamic", "longrope"} else None
