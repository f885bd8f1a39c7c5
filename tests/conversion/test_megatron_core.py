"""What Megatron's own GPT computes from a checkpoint that we wrote: the oracle for the order of the fused rows."""

import contextlib
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.conversion.training_checkpoint import SMALL, convert, make_gpt2

pytest.importorskip("megatron.core")

# Names of the legacy model, which wrote the classic checkpoints, and of Megatron-Core's, as in the loader and the saver
# of Megatron-LM's tools/checkpoint.
CORE_NAMES = (
    (r"^encoder\.", "decoder."),
    (r"self_attention\.query_key_value", "self_attention.linear_qkv"),
    (r"self_attention\.dense", "self_attention.linear_proj"),
    (r"post_attention_layernorm", "pre_mlp_layernorm"),
    (r"dense_h_to_4h", "linear_fc1"),
    (r"dense_4h_to_h", "linear_fc2"),
)


@pytest.fixture
def one_rank(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Megatron-Core's state for a single process, on a CPU."""
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel import get_cuda_rng_tracker

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    parallel_state.initialize_model_parallel()
    # It asks for these even where nothing is on a GPU and nothing is dropped.
    monkeypatch.setattr(torch.cuda, "current_device", lambda: "cpu")
    monkeypatch.setattr(get_cuda_rng_tracker(), "fork", contextlib.nullcontext)
    yield
    parallel_state.destroy_model_parallel()
    dist.destroy_process_group()


def core_model(rows: int) -> Any:
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.transformer import TransformerConfig

    config = TransformerConfig(
        num_layers=SMALL.num_layers,
        hidden_size=SMALL.hidden_size,
        num_attention_heads=SMALL.num_attention_heads,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        activation_func=partial(torch.nn.functional.gelu, approximate="tanh"),
        use_cpu_initialization=True,
    )
    model = GPTModel(
        config,
        get_gpt_layer_local_spec(),
        vocab_size=rows,
        max_sequence_length=SMALL.sequence_length,
        share_embeddings_and_output_weights=True,
    )
    return model.eval()


def test_megatron_core_computes_the_same_logits(tmp_path: Path, one_rank: None) -> None:
    gpt2 = make_gpt2(SMALL)
    gpt2.save_pretrained(tmp_path / "gpt2")
    convert(tmp_path / "gpt2", tmp_path / "megatron", to="megatron")
    saved = torch.load(tmp_path / "megatron/release/mp_rank_00/model_optim_rng.pt", weights_only=False)
    language_model, weights = saved["model"]["language_model"], {}
    for name, tensor in language_model["encoder"].items():
        renamed = f"encoder.{name}"
        for pattern, replacement in CORE_NAMES:
            renamed = re.sub(pattern, replacement, renamed)
        weights[renamed] = tensor
    for name, held in language_model["embedding"].items():
        weights[f"embedding.{name}.weight"] = held["weight"]
    model = core_model(saved["args"].padded_vocab_size)
    loaded = model.load_state_dict(weights, strict=False)
    assert not loaded.unexpected_keys
    # Only Transformer Engine has these; the tied head has no tensor of its own.
    assert all(name.endswith("_extra_state") for name in loaded.missing_keys)

    tokens = torch.randint(SMALL.vocab_size, (2, SMALL.sequence_length), generator=torch.Generator().manual_seed(3))
    positions = torch.arange(SMALL.sequence_length).expand(2, -1)
    masked = torch.ones(1, 1, *[SMALL.sequence_length] * 2).triu(1).bool()
    with torch.no_grad():
        logits = model(tokens, positions, masked)[..., : SMALL.vocab_size]
        torch.testing.assert_close(logits, gpt2(tokens).logits, rtol=1e-4, atol=1e-4)
