"""A GPT-2 that transformers saved is a source like any other: nothing is lost, and what is another model is refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file, save_model

from conversion.hf import PREFIX
from conversion.read_hf import read_hf_folder
from foundation.errors import UserError
from tests.conversion.hf_folder import MODEL, assert_same_model, save_gpt2, saved_weights
from tests.conversion.training_checkpoint import convert, make_gpt2
from training.checkpoint.names import step_folder, weights_file
from training.parallel.layout import Layout

WEIGHTS = "model.safetensors"
INDEX = f"{WEIGHTS}.index.json"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """One file, as save_pretrained writes a model of this size."""
    save_gpt2(tmp_path / "gpt2")
    return tmp_path / "gpt2"


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    save_gpt2(tmp_path / "sharded", max_shard_size="200KB")
    assert len(list((tmp_path / "sharded").glob("model-*-of-*.safetensors"))) > 2
    return tmp_path / "sharded"


@pytest.fixture(scope="module")
def gpt2() -> Any:
    """The model in those folders."""
    return make_gpt2(MODEL)


def edit_config(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def edit_weights(folder: Path, edit: Callable[[dict[str, torch.Tensor]], object]) -> None:
    held = load_file(folder / WEIGHTS)
    edit(held)
    save_file(held, folder / WEIGHTS, {"format": "pt"})


def refused(folder: Path, message: str, **options: object) -> None:
    out = folder.parent / "refused"
    with pytest.raises(UserError, match=message) as caught:
        convert(folder, out, **{"to": "hf", **options})  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
    assert not out.exists()


# What comes in


def test_one_file_goes_in_and_out_to_the_bit(folder: Path, gpt2: Any, tmp_path: Path) -> None:
    convert(folder, tmp_path / "out", to="hf")
    assert_same_model(tmp_path / "out", gpt2)


def test_shards_go_in_and_out_to_the_bit(sharded: Path, gpt2: Any, tmp_path: Path) -> None:
    convert(sharded, tmp_path / "out", to="hf", file_bytes=300_000)
    assert len(list((tmp_path / "out").glob("model-*.safetensors"))) > 1
    assert_same_model(tmp_path / "out", gpt2)


def test_config_becomes_the_model(folder: Path) -> None:
    edit_config(folder, layer_norm_epsilon=1e-6, n_inner=384, activation_function="gelu_pytorch_tanh")
    source = read_hf_folder(folder)
    assert source.model == MODEL.model_copy(update={"layernorm_epsilon": 1e-6})
    assert (source.dtype, source.layout, source.step, source.tokenizer) == (torch.float32, Layout(), None, folder)
    (folder / "merges.txt").unlink()
    assert read_hf_folder(folder).tokenizer is None


def test_names_without_prefix_and_stored_masks(folder: Path, gpt2: Any, tmp_path: Path) -> None:
    # As openai-community/gpt2 and folders of older transformers are.
    def edit(held: dict[str, torch.Tensor]) -> None:
        for name in list(held):
            held[name.removeprefix(PREFIX)] = held.pop(name)
        for layer in range(2):
            held[f"h.{layer}.attn.bias"] = torch.ones(1, 1, 32, 32, dtype=torch.bool).tril()
            held[f"h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)

    edit_weights(folder, edit)
    convert(folder, tmp_path / "out", to="hf")
    assert_same_model(tmp_path / "out", gpt2)


def test_mixed_precisions_each_keep_their_bits(folder: Path, gpt2: Any, tmp_path: Path) -> None:
    def edit(held: dict[str, torch.Tensor]) -> None:
        held.update({name: value.bfloat16() for name, value in held.items() if "ln_" not in name})

    edit_weights(folder, edit)
    # Most tensors of a GPT-2 are not of a norm.
    assert read_hf_folder(folder).dtype is torch.bfloat16
    convert(folder, tmp_path / "out", to="hf", dtype="float32")
    mixed, found = load_file(folder / WEIGHTS), saved_weights(tmp_path / "out")
    assert all(torch.equal(found[name], mixed[name].float()) for name in mixed)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "shards"])
def test_torch_files_go_in_and_out_to_the_bit(folder: Path, gpt2: Any, tmp_path: Path, name: str) -> None:
    (folder / WEIGHTS).unlink()
    state = gpt2.state_dict()  # with the tied head, as torch.save of a model has it
    # As transformers' converter from Megatron left them: a transposed view, not a copy.
    dense = f"{PREFIX}h.0.attn.c_proj.weight"
    state[dense] = state[dense].t().contiguous().t()
    if name == "shards":
        files = {key: f"pytorch_model-{number % 2}.bin" for number, key in enumerate(state)}
        for file in set(files.values()):
            torch.save({key: held for key, held in state.items() if files[key] == file}, folder / file)
        (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"metadata": {}, "weight_map": files}))
    else:
        torch.save(state, folder / name)
    convert(folder, tmp_path / "out", to="hf")
    assert_same_model(tmp_path / "out", gpt2)


def test_own_export_is_a_source_whose_checksums_count(folder: Path, gpt2: Any, tmp_path: Path) -> None:
    convert(folder, tmp_path / "first", to="hf")
    convert(tmp_path / "first", tmp_path / "second", to="hf")
    assert_same_model(tmp_path / "second", gpt2)
    content = bytearray((tmp_path / "first" / WEIGHTS).read_bytes())
    content[-1] ^= 1
    (tmp_path / "first" / WEIGHTS).write_bytes(content)
    refused(tmp_path / "first", f"damaged checkpoint: .*{WEIGHTS} was changed")
    edit_config(tmp_path / "first", n_head=6)
    refused(tmp_path / "first", r"damaged checkpoint: .*config\.json was changed|config\.json has \d+ bytes instead of")


def test_other_weights_of_the_same_shapes_are_not_taken_for_the_same(folder: Path, tmp_path: Path) -> None:
    convert(folder, tmp_path / "out", to="hf")
    edit_weights(folder, lambda held: held[f"{PREFIX}ln_f.bias"].add_(1))
    with pytest.raises(UserError, match="already holds another conversion"):
        convert(folder, tmp_path / "out", to="hf")


# What was wrong in other converters


def test_qkv_of_every_slice_is_that_slices_heads(folder: Path, gpt2: Any, tmp_path: Path) -> None:
    convert(folder, tmp_path / "run", to="training", tensor_parallel_size=3)
    fused = gpt2.transformer.h[0].attn.c_attn
    heads = fused.weight.detach().t().reshape(3, 12, 8, 96)
    for rank in range(3):
        held = load_file(step_folder(tmp_path / "run", 0) / weights_file(0, rank))
        mine = slice(4 * rank, 4 * rank + 4)
        assert torch.equal(held["layers.0.attention.query_key_value.weight"], heads[:, mine].reshape(96, 96))
        assert torch.equal(
            held["layers.0.attention.query_key_value.bias"], fused.bias.detach().reshape(3, 12, 8)[:, mine].flatten()
        )


def test_vocabulary_is_padded_with_zeros_and_cut_again(folder: Path, gpt2: Any, tmp_path: Path) -> None:
    convert(folder, tmp_path / "run", to="training", tensor_parallel_size=3)
    step = step_folder(tmp_path / "run", 0)
    slices = [load_file(step / weights_file(0, rank))["word_embeddings.weight"] for rank in range(3)]
    assert [len(held) for held in slices] == [128] * 3
    assert not torch.cat(slices)[300:].any()
    convert(tmp_path / "run", tmp_path / "out", to="hf")
    assert saved_weights(tmp_path / "out")["transformer.wte.weight"].shape == (300, 96)


def test_tied_head_is_taken_when_it_is_the_embedding_and_refused_otherwise(
    folder: Path, gpt2: Any, tmp_path: Path
) -> None:
    edit_weights(folder, lambda held: held.update({"lm_head.weight": held[f"{PREFIX}wte.weight"].clone()}))
    convert(folder, tmp_path / "out", to="hf")
    assert_same_model(tmp_path / "out", gpt2)
    edit_weights(folder, lambda held: held["lm_head.weight"][7, 5].add_(1))
    refused(folder, rf"{WEIGHTS}: lm_head.weight differs from transformer.wte.weight.*head of its own")


def test_tied_tensor_may_be_stored_as_the_head(folder: Path, gpt2: Any, tmp_path: Path) -> None:
    save_model(gpt2, str(folder / WEIGHTS))  # which keeps the alphabetically first name of tied tensors
    assert f"{PREFIX}wte.weight" not in load_file(folder / WEIGHTS)
    convert(folder, tmp_path / "out", to="hf")
    assert_same_model(tmp_path / "out", gpt2)


def test_no_file_is_larger_than_its_tensors(folder: Path, tmp_path: Path) -> None:
    convert(folder, tmp_path / "run", to="training", tensor_parallel_size=2, data_parallel_size=2)
    convert(folder, tmp_path / "out", to="hf")
    files = [*tmp_path.glob("run/checkpoints/*/*.safetensors"), *tmp_path.glob("out/*.safetensors")]
    assert len(files) == 2 + 3 * 4 + 1
    for path in files:
        header = 8 + int.from_bytes(path.read_bytes()[:8], "little")
        assert path.stat().st_size == header + sum(held.nbytes for held in load_file(path).values())


def test_heads_that_the_slices_do_not_divide(folder: Path) -> None:
    refused(
        folder,
        "tensor_parallel_size 5 does not divide the model's 12 attention heads",
        tensor_parallel_size=5,
        to="training",
    )
    refused(
        folder,
        "tensor-parallel-size 5 does not divide the model's 12 attention heads",
        tensor_parallel_size=5,
        to="vllm",
    )


# What is refused


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("model_type", "llama", "model_type is 'llama'; only gpt2"),
        ("activation_function", "relu", "activation_function is 'relu', but .* 'gelu_new' or 'gelu_pytorch_tanh'"),
        ("scale_attn_weights", False, "scale_attn_weights is False, but .* only True"),
        ("scale_attn_by_inverse_layer_idx", True, "scale_attn_by_inverse_layer_idx is True"),
        ("reorder_and_upcast_attn", True, "reorder_and_upcast_attn is True"),
        ("add_cross_attention", True, "add_cross_attention is True"),
        ("tie_word_embeddings", False, "tie_word_embeddings is False"),
        ("n_inner", 100, "n_inner is 100, but .* only 4 n_embd, 384"),
        ("n_head", 7, "hidden_size 96 is not divisible by num_attention_heads 7"),
        ("n_layer", 0, "n_layer: .*greater than or equal to 1"),
        ("n_positions", 64, r"wpe.weight has shape \(32, 96\) where config.json says \(64, 96\)"),
        ("vocab_size", 400, r"wte.weight has shape \(300, 96\) where config.json says \(400, 96\)"),
        ("n_layer", 3, r"lacks h.2.attn.c_attn.bias, .*, .* and 9 more, which a GPT-2 of its config.json has"),
        ("n_layer", 1, "holds h.1.attn.c_attn.bias, .* and 9 more, which no GPT-2 of its config.json has"),
    ],
)
def test_config_that_is_another_models(folder: Path, key: str, value: object, message: str) -> None:
    edit_config(folder, **{key: value})
    refused(folder, message)


def test_weights_that_are_another_models(folder: Path) -> None:
    name = f"{PREFIX}h.0.mlp.c_fc.weight"
    whole = load_file(folder / WEIGHTS)
    cases: dict[str, dict[str, torch.Tensor]] = {
        rf"{WEIGHTS}: tensor {name} has shape \(384, 96\) where": {name: whole[name].t().contiguous()},
        f"{WEIGHTS}: tensor {name} holds torch.uint8": {name: whole[name].to(torch.uint8)},
        f"{WEIGHTS} holds score.weight, which no GPT-2": {"score.weight": torch.zeros(2, 96)},
        "tensor ln_f.bias is also transformer.ln_f.bias|tensor transformer.ln_f.bias is also ln_f.bias": {
            "ln_f.bias": torch.zeros(96)
        },
    }
    for message, change in cases.items():
        save_file({**whole, **change}, folder / WEIGHTS)
        refused(folder, message)
    del whole[name]
    save_file(whole, folder / WEIGHTS)
    refused(folder, "lacks h.0.mlp.c_fc.weight, which a GPT-2")


def test_no_weights(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    refused(folder, f"config.json but no weights; expected {WEIGHTS} or pytorch_model.bin")


def test_truncated_shard(sharded: Path) -> None:
    shard = sorted(sharded.glob("model-*.safetensors"))[1]
    shard.write_bytes(shard.read_bytes()[:-40])
    refused(sharded, f"{shard.name} is cut short")
    shard.write_bytes(shard.read_bytes()[:5])
    refused(sharded, f"{shard.name} cannot be read")


def test_missing_shard(sharded: Path) -> None:
    shard = sorted(sharded.glob("model-*.safetensors"))[1]
    shard.unlink()
    refused(sharded, f"{INDEX} names {shard.name}, which is missing")


def test_torch_files_that_hold_something_else(folder: Path, gpt2: Any) -> None:
    (folder / WEIGHTS).unlink()
    path, state = folder / "pytorch_model.bin", dict(gpt2.state_dict())
    name = f"{PREFIX}h.0.attn.c_proj.weight"
    cases: dict[str, object] = {
        "holds no tensors by name": [1, 2],
        "epoch is not a tensor": {**state, "epoch": 3},
        f"tensor {name} is stored with gaps": {**state, name: torch.zeros(96, 192)[:, ::2]},
        "lacks ln_f.bias": {key: held for key, held in state.items() if key != f"{PREFIX}ln_f.bias"},
    }
    for message, content in cases.items():
        torch.save(content, path)
        refused(folder, message)
    torch.save(state, path)
    path.write_bytes(path.read_bytes()[:-5000])
    refused(folder, r"pytorch_model\.bin")


@pytest.mark.parametrize(
    ("weight_map", "message"),
    [
        ({"lm_head.weight": "../gpt2/model.safetensors"}, "which is not a file beside it"),
        ({"wte.weight": "nowhere.safetensors"}, "names nowhere.safetensors, which is missing"),
        (["model.safetensors"], "has no weight_map"),
    ],
)
def test_index_that_names_other_files(sharded: Path, weight_map: object, message: str) -> None:
    (sharded / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    refused(sharded, f"{INDEX} .*{message}")


def test_index_that_promises_a_tensor_elsewhere(sharded: Path) -> None:
    index = json.loads((sharded / INDEX).read_text())
    first, second = sorted(set(index["weight_map"].values()))[:2]
    name = next(key for key, file in index["weight_map"].items() if file == first)
    index["weight_map"][name] = second
    (sharded / INDEX).write_text(json.dumps(index))
    refused(sharded, f"promises {name} in {second}, which does not hold it")


def test_tokenizer_that_would_change(folder: Path) -> None:
    (folder / "added_tokens.json").write_text(json.dumps({"<|endoftext|>": 258, "<pad>": 259}))
    refused(folder, "added_tokens.json has <pad>, which vocab.json has not")
    vocabulary = json.loads((folder / "vocab.json").read_text())
    del vocabulary["<|endoftext|>"]
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    refused(folder, r"vocab.json has no <\|endoftext\|>")
