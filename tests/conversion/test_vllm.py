"""The files for vLLM hold exactly what its workers' state dicts hold (the contract in docs/conversion.md)."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from foundation.errors import UserError
from foundation.manifest import check_manifest, read_manifest
from tests.conversion.training_checkpoint import SMALL, convert, make_gpt2, write_training_checkpoint

H, LAYERS, PADDED = SMALL.hidden_size, SMALL.num_layers, 320


def worker_shapes(t: int) -> dict[str, tuple[int, ...]]:
    """Written out by hand from vLLM's GPT-2, not derived from the table of tensors."""
    shapes: dict[str, tuple[int, ...]] = {
        "lm_head.weight": (PADDED // t, H),
        "transformer.wpe.weight": (SMALL.sequence_length, H),
        "transformer.ln_f.weight": (H,),
        "transformer.ln_f.bias": (H,),
    }
    for number in range(LAYERS):
        block: dict[str, tuple[int, ...]] = {
            "ln_1.weight": (H,),
            "ln_1.bias": (H,),
            "attn.c_attn.weight": (3 * H // t, H),
            "attn.c_attn.bias": (3 * H // t,),
            "attn.c_proj.weight": (H, H // t),
            "attn.c_proj.bias": (H,),
            "ln_2.weight": (H,),
            "ln_2.bias": (H,),
            "mlp.c_fc.weight": (4 * H // t, H),
            "mlp.c_fc.bias": (4 * H // t,),
            "mlp.c_proj.weight": (H, 4 * H // t),
            "mlp.c_proj.bias": (H,),
            **{f"attn.attn.{scale}": () for scale in ("_q_scale", "_k_scale", "_v_scale", "_prob_scale")},
        }
        shapes |= {f"transformer.h.{number}.{name}": shape for name, shape in block.items()}
    return shapes


@pytest.mark.parametrize("stored", [1, 2, 4])
@pytest.mark.parametrize("served", [1, 2, 4])
def test_slices_follow_the_contract(tmp_path: Path, stored: int, served: int) -> None:
    gpt2 = make_gpt2(SMALL)
    write_training_checkpoint(tmp_path / "run", gpt2, SMALL, tensor_parallel_size=stored)
    convert(tmp_path / "run", tmp_path / "vllm", to="vllm", tensor_parallel_size=served)

    ranks = [load_file(tmp_path / "vllm" / f"model-rank-{rank}-part-0.safetensors") for rank in range(served)]
    for held in ranks:
        assert {name: tuple(tensor.shape) for name, tensor in held.items()} == worker_shapes(served)
    weights = gpt2.transformer.state_dict()
    vocabulary = torch.cat([held["lm_head.weight"] for held in ranks])
    assert torch.equal(vocabulary[: SMALL.vocab_size], weights["wte.weight"])
    assert not vocabulary[SMALL.vocab_size :].any()
    for name in worker_shapes(1).keys() - {"lm_head.weight"}:
        pieces = [held[name] for held in ranks]
        if name.endswith("_scale"):
            assert all(piece.dtype == torch.float32 and piece == 1.0 for piece in pieces)
        else:
            assert torch.equal(joined(name, pieces), in_out(name, weights)), name


def joined(name: str, pieces: list[torch.Tensor]) -> torch.Tensor:
    if "c_attn" in name:
        return torch.cat([torch.cat([piece.chunk(3)[which] for piece in pieces]) for which in range(3)])
    if "c_fc" in name:
        return torch.cat(pieces)
    if name.endswith("c_proj.weight"):
        return torch.cat(pieces, dim=1)
    assert all(torch.equal(piece, pieces[0]) for piece in pieces), name
    return pieces[0]


def in_out(name: str, weights: dict[str, torch.Tensor]) -> torch.Tensor:
    weight = weights[name.removeprefix("transformer.")]
    return weight.t() if "c_" in name and weight.dim() == 2 else weight


def test_scales_stay_float32_beside_bfloat16_weights(tmp_path: Path) -> None:
    write_training_checkpoint(tmp_path / "run", make_gpt2(SMALL), SMALL)
    convert(tmp_path / "run", tmp_path / "vllm", to="vllm", tensor_parallel_size=2, dtype="bfloat16")
    held = load_file(tmp_path / "vllm" / "model-rank-1-part-0.safetensors")
    assert {tensor.dtype for name, tensor in held.items() if name.endswith("_scale")} == {torch.float32}
    assert {tensor.dtype for name, tensor in held.items() if not name.endswith("_scale")} == {torch.bfloat16}


def test_manifest_records_slices_and_files(tmp_path: Path) -> None:
    write_training_checkpoint(tmp_path / "run", make_gpt2(SMALL), SMALL)
    convert(tmp_path / "run", tmp_path / "vllm", to="vllm", tensor_parallel_size=2)
    manifest = read_manifest(tmp_path / "vllm")
    assert manifest is not None
    assert manifest.format == "mtnlg-vllm-sharded"
    assert manifest.about["tensor_parallel_size"] == 2
    assert {"config.json", "tokenizer.json", "model-rank-1-part-0.safetensors"} <= manifest.files.keys()
    assert check_manifest(tmp_path / "vllm", manifest) == []


@pytest.mark.parametrize(("size", "what"), [(3, "4 attention heads"), (8, "4 attention heads")])
def test_slices_that_do_not_divide_are_refused(tmp_path: Path, size: int, what: str) -> None:
    write_training_checkpoint(tmp_path / "run", make_gpt2(SMALL), SMALL)
    with pytest.raises(UserError, match=f"--tensor-parallel-size {size} does not divide the model's {what}"):
        convert(tmp_path / "run", tmp_path / "vllm", to="vllm", tensor_parallel_size=size)
    assert not (tmp_path / "vllm").exists()


def test_vocabulary_that_slices_do_not_divide_is_refused(tmp_path: Path) -> None:
    model = SMALL.model_copy(update={"num_attention_heads": 3, "hidden_size": 24})
    write_training_checkpoint(tmp_path / "run", make_gpt2(model), model)
    with pytest.raises(UserError, match="320 vocabulary rows"):
        convert(tmp_path / "run", tmp_path / "vllm", to="vllm", tensor_parallel_size=3)
