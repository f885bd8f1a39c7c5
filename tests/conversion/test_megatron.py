"""Megatron-LM's checkpoints in and out, against checkpoints put together by hand in its published layouts."""

import zipfile
from argparse import Namespace
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from conversion.open_source import open_source
from conversion.whole import whole_tensor
from foundation.errors import UserError
from foundation.manifest import FileRecord, read_manifest
from tests.conversion.megatron_checkpoint import padded, write_megatron_checkpoint
from tests.conversion.training_checkpoint import (
    SMALL,
    convert,
    make_gpt2,
    write_byte_tokenizer,
    write_training_checkpoint,
)
from training.model.tensors import tensor_table
from training.parallel.layout import Layout

FILE = "model_optim_rng.pt"
LAYOUTS = [(1, 1), (2, 1), (4, 1), (1, 2), (2, 2), (4, 2)]


@pytest.fixture(scope="module")
def gpt2() -> Any:
    return make_gpt2(SMALL)


@pytest.fixture
def two_by_two(tmp_path: Path, gpt2: Any) -> Path:
    """A checkpoint of two tensor and two pipeline ranks."""
    write_megatron_checkpoint(tmp_path / "megatron", gpt2, SMALL, tensor=2, pipeline=2)
    return tmp_path / "megatron"


def load_megatron(path: Path) -> Any:
    with torch.serialization.safe_globals([Namespace]):
        return torch.load(path, weights_only=True)


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, torch.Tensor]:
    found = {}
    for key, value in tree.items():
        found.update(flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value})
    return found


def change(path: Path, how: Callable[[Any], object]) -> None:
    saved = torch.load(path, weights_only=False)
    how(saved)
    torch.save(saved, path)


def encoder(saved: Any) -> Any:
    return saved["model"]["language_model"]["encoder"]


def refused(source: Path, message: str, **options: object) -> None:
    out = source.parent / "out"
    with pytest.raises(UserError, match=message) as caught:
        convert(source, out, **{"to": "hf", **options})  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
    assert not out.exists()


@pytest.mark.parametrize("version", [0, 1.0, 2.0, 3.0])
@pytest.mark.parametrize(("tensor", "pipeline"), LAYOUTS)
def test_every_version_and_layout_is_the_same_model(
    tmp_path: Path, gpt2: Any, tensor: int, pipeline: int, version: float
) -> None:
    write_megatron_checkpoint(tmp_path / "megatron", gpt2, SMALL, tensor=tensor, pipeline=pipeline, version=version)
    source = open_source(tmp_path / "megatron")
    assert source.model == SMALL
    assert source.layout == Layout(tensor_parallel_size=tensor, pipeline_parallel_size=pipeline)
    assert (source.step, source.dtype) == (300, torch.float32)
    source.check_complete()
    weights = gpt2.transformer.state_dict()
    for spec in tensor_table(SMALL):
        expected = weights[spec.hf_name]
        found = whole_tensor(source, spec)
        assert torch.equal(found, expected.t() if spec.hf_transposed else expected), spec.name


@pytest.mark.parametrize(("tensor", "pipeline"), LAYOUTS)
def test_written_files_are_megatrons(tmp_path: Path, gpt2: Any, tensor: int, pipeline: int) -> None:
    write_training_checkpoint(tmp_path / "run", gpt2, SMALL, tensor_parallel_size=2)
    out = tmp_path / "out"
    convert(tmp_path / "run", out, to="megatron", tensor_parallel_size=tensor, pipeline_parallel_size=pipeline)
    expected = write_megatron_checkpoint(tmp_path / "expected", gpt2, SMALL, tensor=tensor, pipeline=pipeline)
    files = sorted(path.relative_to(expected) for path in expected.rglob("*.pt"))
    assert sorted(path.relative_to(out / expected.name) for path in out.rglob("*.pt")) == files
    assert (out / "latest_checkpointed_iteration.txt").read_text(encoding="utf-8") == "300"
    for file in files:
        written, by_hand = (load_megatron(folder / file) for folder in (out / expected.name, expected))
        assert (written["checkpoint_version"], written["iteration"]) == (3.0, 300)
        assert vars(by_hand["args"]).items() <= {**vars(written["args"]), "num_query_groups": None}.items()
        ours, theirs = flatten(written["model"]), flatten(by_hand["model"])
        assert list(ours) == list(theirs)
        for name in theirs:
            assert torch.equal(ours[name], theirs[name]), name
        with zipfile.ZipFile(out / expected.name / file) as archive:
            assert archive.testzip() is None


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_hf_to_megatron_and_back_is_the_same_bytes(tmp_path: Path, gpt2: Any, dtype: str) -> None:
    write_training_checkpoint(tmp_path / "run", gpt2, SMALL)
    convert(tmp_path / "run", tmp_path / "hf", to="hf", dtype=dtype)
    sizes = {"tensor_parallel_size": 4, "pipeline_parallel_size": 2}
    convert(tmp_path / "hf", tmp_path / "megatron", to="megatron", **sizes)
    convert(tmp_path / "megatron", tmp_path / "again", to="hf")
    for name in ("model.safetensors", "config.json", "tokenizer.json", "vocab.json", "merges.txt"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "hf" / name).read_bytes(), name


def test_manifest_has_the_checksums_of_what_was_written(tmp_path: Path, two_by_two: Path) -> None:
    out = tmp_path / "out"
    convert(two_by_two, out, to="megatron", tensor_parallel_size=1, pipeline_parallel_size=1)
    manifest = read_manifest(out)
    assert manifest is not None
    for name, record in manifest.files.items():
        assert record == FileRecord.of(out / name)
    content = bytearray((out / "iter_0000300/mp_rank_00" / FILE).read_bytes())
    content[len(content) // 2] ^= 1
    (out / "iter_0000300/mp_rank_00" / FILE).write_bytes(content)
    with pytest.raises(UserError, match=f"damaged checkpoint: .*{FILE} was changed"):
        convert(out, tmp_path / "hf", to="hf")


def test_to_training_and_megatron_keep_the_layout(tmp_path: Path, two_by_two: Path) -> None:
    convert(two_by_two, tmp_path / "run", to="training")
    layout = Layout(tensor_parallel_size=2, pipeline_parallel_size=2)
    assert open_source(tmp_path / "run").layout == layout
    convert(tmp_path / "run", tmp_path / "again", to="megatron")
    assert open_source(tmp_path / "again").layout == layout


def test_a_model_without_a_step_is_a_release(tmp_path: Path, gpt2: Any) -> None:
    gpt2.save_pretrained(tmp_path / "gpt2")
    convert(tmp_path / "gpt2", tmp_path / "out", to="megatron")
    assert (tmp_path / "out" / "latest_checkpointed_iteration.txt").read_text(encoding="utf-8") == "release"
    source = open_source(tmp_path / "out")
    assert source.step is None
    assert "iteration" not in load_megatron(tmp_path / "out" / "release" / "mp_rank_00" / FILE)


@pytest.mark.parametrize("inside", ["", "iter_0000300"])
def test_vocabulary_is_cut_to_its_true_size(tmp_path: Path, gpt2: Any, inside: str) -> None:
    write_megatron_checkpoint(tmp_path / "megatron", gpt2, SMALL, tensor=2, vocab_size=None)
    source = tmp_path / "megatron" / inside
    convert(source, tmp_path / "cut", to="hf", vocab_size=300)
    assert torch.equal(
        load_file(tmp_path / "cut" / "model.safetensors")["transformer.wte.weight"], gpt2.transformer.wte.weight
    )
    assert open_source(source).model.vocab_size == padded(SMALL, 2)
    refused(source, "512 rows, fewer than the vocabulary of 513", vocab_size=513)
    write_byte_tokenizer(tmp_path / "megatron")
    assert open_source(source).tokenizer == tmp_path / "megatron"


def test_sizes_of_other_sources_are_refused(tmp_path: Path, gpt2: Any) -> None:
    write_training_checkpoint(tmp_path / "run", gpt2, SMALL)
    refused(tmp_path / "run", "--vocab-size and --num-attention-heads are for Megatron's", vocab_size=300)


def test_null_tokenizer_counts_one_token_less(tmp_path: Path, gpt2: Any) -> None:
    write_megatron_checkpoint(tmp_path / "m", gpt2, SMALL, vocab_size=299, tokenizer_type="NullTokenizer")
    assert open_source(tmp_path / "m").model.vocab_size == 300


def test_without_args_the_heads_must_be_told(two_by_two: Path) -> None:
    for path in two_by_two.rglob(FILE):
        change(path, lambda saved: saved.pop("args"))
    refused(two_by_two, "has no args, .* give --num-attention-heads")
    assert open_source(two_by_two, num_attention_heads=4, vocab_size=300).model == SMALL


def test_heads_that_contradict_the_args(two_by_two: Path) -> None:
    refused(two_by_two, "args say num_attention_heads 4, but --num-attention-heads is 8", num_attention_heads=8)


@pytest.mark.parametrize("name", ["layers.0.self_attention.dense.bias", "layers.0.mlp.dense_4h_to_h.bias"])
def test_row_parallel_bias_that_differs_is_named(two_by_two: Path, name: str) -> None:
    changed = two_by_two / "iter_0000300/mp_rank_01_001" / FILE
    change(changed, lambda saved: encoder(saved)[name].add_(1e-6))
    table = name.replace("layers.0.", "layers.1.").replace("self_attention", "attention")
    refused(two_by_two, f"{table} differs between tensor-parallel ranks 0 and 1: files .*mp_rank_01_001")


@pytest.mark.parametrize("name", ["layers.0.input_layernorm.weight", "layers.0.post_attention_layernorm.bias"])
def test_layernorm_that_differs_is_named(two_by_two: Path, name: str) -> None:
    changed = two_by_two / "iter_0000300/mp_rank_01_000" / FILE
    change(changed, lambda saved: encoder(saved)[name].add_(1e-6))
    refused(two_by_two, f"{name} differs between tensor-parallel ranks 0 and 1: files .*mp_rank_01_000")


def test_tied_embedding_that_differs_is_named(two_by_two: Path) -> None:
    changed = two_by_two / "iter_0000300/mp_rank_01_001" / FILE
    change(changed, lambda saved: saved["model"]["word_embeddings_for_head"]["weight"].add_(1e-6))
    refused(two_by_two, "tied embedding differs .*: files .*mp_rank_01_000.*mp_rank_01_001")


def test_code_is_refused_and_not_run(two_by_two: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return eval, (f"open({str(two_by_two / 'ran')!r}, 'w')",)

    changed = two_by_two / "iter_0000300/mp_rank_01_001" / FILE
    change(changed, lambda saved: saved.update(optimizer=Evil()))
    refused(two_by_two, f"mp_rank_01_001/{FILE} names builtins.eval, .*nothing was executed")
    assert not (two_by_two / "ran").exists()


def test_torn_file(two_by_two: Path) -> None:
    torn = two_by_two / "iter_0000300/mp_rank_01_001" / FILE
    torn.write_bytes(torn.read_bytes()[:-1000])
    refused(two_by_two, f"mp_rank_01_001/{FILE} is cut short or damaged")


def test_missing_files(two_by_two: Path) -> None:
    folder = two_by_two / "iter_0000300"
    (folder / "mp_rank_01_001").rename(folder / "elsewhere")
    refused(two_by_two, "has no mp_rank_01_001, which the other files need")
    (folder / "mp_rank_00_001").rename(folder / "elsewhere_too")
    refused(two_by_two, "has 1 pipeline ranks, but .* was saved with 2")
    (folder / "mp_rank_01_000" / FILE).unlink()
    refused(two_by_two, "mp_rank_01_000 has no model_optim_rng.pt or model_rng.pt")


def test_missing_folders(two_by_two: Path) -> None:
    tracker = two_by_two / "latest_checkpointed_iteration.txt"
    tracker.write_text("400", encoding="utf-8")
    refused(two_by_two, "names 400, but there is no folder .*iter_0000400")
    tracker.write_text("later", encoding="utf-8")
    refused(two_by_two, "names 'later', which is neither a number nor release")
    (two_by_two / "iter_0000400").mkdir()
    tracker.write_text("400", encoding="utf-8")
    refused(two_by_two, "has no mp_rank_")
    (two_by_two / "iter_0000400" / ".metadata").touch()
    refused(two_by_two, "is a distributed checkpoint of Megatron; save it with --ckpt-format torch")


def test_deepspeeds_own_files_are_not_known(two_by_two: Path) -> None:
    (two_by_two / "iter_0000300").rename(two_by_two / "global_step300")
    refused(two_by_two, "has DeepSpeed's own files, which are not known")


def test_training_goes_on_behind_the_samples_that_were_read(tmp_path: Path, gpt2: Any) -> None:
    write_megatron_checkpoint(tmp_path / "megatron", gpt2, SMALL, consumed_train_samples=2400)
    convert(tmp_path / "megatron", tmp_path / "run", to="training")
    assert open_source(tmp_path / "run").about["consumed_samples"] == 2400


def test_a_manifest_says_nothing_of_later_iterations(tmp_path: Path, two_by_two: Path) -> None:
    out = tmp_path / "out"
    convert(two_by_two, out, to="megatron")
    assert open_source(out).files
    (out / "iter_0000300").rename(out / "iter_0000400")
    (out / "latest_checkpointed_iteration.txt").write_text("400", encoding="utf-8")
    assert not open_source(out).files


def test_files_of_two_checkpoints(two_by_two: Path) -> None:
    change(two_by_two / "iter_0000300/mp_rank_01_001" / FILE, lambda saved: saved.update(iteration=299))
    refused(two_by_two, "mp_rank_01_001/.* is of iteration 299 .*two checkpoints")


def test_unknown_and_missing_tensors(two_by_two: Path) -> None:
    path = two_by_two / "iter_0000300/mp_rank_01_000" / FILE
    change(path, lambda saved: encoder(saved).update({"layers.0.self_attention.rotary.inv_freq": torch.ones(2)}))
    refused(two_by_two, f"mp_rank_01_000/{FILE}: unknown tensor .*layers.0.self_attention.rotary.inv_freq")
    change(path, lambda saved: encoder(saved).pop("layers.0.self_attention.rotary.inv_freq"))
    change(path, lambda saved: saved["model"]["language_model"].update(output_layer={"weight": torch.ones(2, 2)}))
    refused(two_by_two, f"mp_rank_01_000/{FILE}: unknown tensor language_model.output_layer.weight")
    change(path, lambda saved: saved["model"]["language_model"].pop("output_layer"))
    change(path, lambda saved: encoder(saved).pop("layers.0.mlp.dense_h_to_4h.bias"))
    refused(two_by_two, f"mp_rank_01_000/{FILE} has no tensor encoder.layers.0.mlp.dense_h_to_4h.bias")


def test_wrong_tensors(two_by_two: Path) -> None:
    path, name = two_by_two / "iter_0000300/mp_rank_01_000" / FILE, "layers.0.self_attention.dense.weight"
    weight = encoder(torch.load(path, weights_only=False))[name]
    change(path, lambda saved: encoder(saved).update({name: weight.t().contiguous()}))
    refused(two_by_two, rf"tensor encoder.{name} has shape \(16, 32\) where .* \(32, 16\)")
    change(path, lambda saved: encoder(saved).update({name: weight.t().contiguous().t()}))
    refused(two_by_two, rf"tensor language_model.encoder.{name} is not contiguous")
    change(path, lambda saved: encoder(saved).update({name: weight.to(torch.int8)}))
    refused(two_by_two, rf"tensor language_model.encoder.{name} is of torch.int8")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("swiglu", True, "swiglu is True, but this project's GPT has only False"),
        ("normalization", "RMSNorm", "normalization is 'RMSNorm'"),
        ("position_embedding_type", "rope", "position_embedding_type is 'rope'"),
        ("untie_embeddings_and_output_weights", True, "untie_embeddings_and_output_weights is True"),
        ("group_query_attention", True, "group_query_attention is True"),
        ("num_experts", 8, "num_experts is 8"),
        ("virtual_pipeline_model_parallel_size", 2, "virtual_pipeline_model_parallel_size is 2"),
        ("bias_gelu_fusion", False, "bias_gelu_fusion is False"),
        ("ffn_hidden_size", 96, "ffn_hidden_size is 96, .* only 128"),
        ("num_layers", 3, "args say num_layers 3, but its tensors make it 2"),
        ("padded_vocab_size", 384, "args say padded_vocab_size 384, but its tensors make it 512"),
        ("num_attention_heads", 5, "do not make a model: .*not divisible"),
        ("tensor_model_parallel_size", 4, "has 2 tensor ranks, but .* was saved with 4"),
    ],
)
def test_other_models_are_refused_by_name(tmp_path: Path, gpt2: Any, name: str, value: object, message: str) -> None:
    write_megatron_checkpoint(tmp_path / "megatron", gpt2, SMALL, tensor=2, **{name: value})
    refused(tmp_path / "megatron", message)


def test_unknown_version(two_by_two: Path) -> None:
    for path in two_by_two.rglob(FILE):
        change(path, lambda saved: saved.update(checkpoint_version=4.0))
    refused(two_by_two, "checkpoint_version is 4.0; the known ones are 0, 1.0, 2.0, 3.0")


def test_layouts_that_megatron_cannot_have(tmp_path: Path, two_by_two: Path) -> None:
    refused(two_by_two, "does not divide the model's 4 attention heads", to="megatron", tensor_parallel_size=3)
    refused(two_by_two, "no data parallelism", to="megatron", data_parallel_size=2)
    model = SMALL.model_copy(update={"num_layers": 3})
    write_training_checkpoint(tmp_path / "run", make_gpt2(model), model)
    message = "--pipeline-parallel-size 2 does not divide the model's 3 layers, .* possible: 1, 3"
    refused(tmp_path / "run", message, to="megatron", pipeline_parallel_size=2)
