"""Any layout to any other and back is the same bytes, the optimizer included, whatever the model's shape."""

import tempfile
from pathlib import Path

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from conversion.open_source import open_source
from conversion.whole import whole_tensor
from foundation.formats import TRAINING
from foundation.manifest import read_manifest, write_manifest
from tests.conversion.training_checkpoint import convert
from training.checkpoint.names import OPTIMIZER_STATES, optimizer_file, step_folder, weights_file
from training.checkpoint.reader import CheckpointReader
from training.model.config import ModelConfig
from training.model.slicing import take_slice
from training.model.tensors import layer_kinds, tensor_table
from training.parallel.layout import Layout

LAYOUTS = st.builds(
    Layout,
    tensor_parallel_size=st.sampled_from([1, 2, 4]),
    pipeline_parallel_size=st.sampled_from([1, 2, 3]),
    data_parallel_size=st.sampled_from([1, 2]),
)
MODELS = st.builds(
    lambda heads, head_size, layers, vocabulary, length: ModelConfig(
        num_layers=layers,
        hidden_size=heads * head_size,
        num_attention_heads=heads,
        sequence_length=length,
        vocab_size=vocabulary,
        vocab_size_multiple=8,
    ),
    heads=st.sampled_from([4, 8]),
    head_size=st.sampled_from([1, 2, 6]),
    layers=st.integers(3, 5),
    vocabulary=st.integers(30, 90),
    length=st.integers(1, 9),
)


def write_whole(run: Path, model: ModelConfig, precision: str) -> dict[str, torch.Tensor]:
    """A checkpoint in one piece with random weights and moments; its tensors by "name/state"."""
    generator = torch.Generator().manual_seed(model.vocab_size)
    folder = step_folder(run, 7)
    folder.mkdir(parents=True)
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[precision]
    padded = {spec.name: spec.slice_shape(model, 1) for spec in tensor_table(model)}
    states = {
        f"{spec.name}/{state}": torch.randn(spec.shape, generator=generator)
        for spec in tensor_table(model)
        for state in OPTIMIZER_STATES
    }
    weights = {}
    for state in OPTIMIZER_STATES:
        fragments = {}
        for spec in tensor_table(model):
            whole = torch.zeros(padded[spec.name])
            whole[: spec.shape[0]] = states[f"{spec.name}/{state}"]
            fragments[spec.name] = whole.flatten()
            if state == "master":
                weights[spec.name] = whole.to(dtype)
        save_file(fragments, folder / optimizer_file(state, 0, 0, 0), {"step": "7", **dict.fromkeys(padded, "0")})
    save_file(weights, folder / weights_file(0, 0))
    about = {
        "step": 7,
        "consumed_samples": 56,
        "skipped_samples": 3,
        "layout": Layout().model_dump(mode="json"),
        "model": model.model_dump(mode="json"),
        "precision": precision,
        "stage_bounds": [0, len(layer_kinds(model))],
    }
    write_manifest(folder, TRAINING, about, list(folder.iterdir()))
    (folder.parent / "latest").write_text(folder.name)
    return states


def sizes(layout: Layout) -> dict[str, int]:
    return {name: size for name, size in layout.model_dump().items() if name.endswith("_size")}


def files(run: Path) -> dict[str, bytes]:
    """The checkpoint's files without the manifest, which names the source."""
    folder = step_folder(run, 7)
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "manifest.json"}


@settings(max_examples=25, deadline=None)
@given(model=MODELS, first=LAYOUTS, second=LAYOUTS, precision=st.sampled_from(["fp32", "bf16"]))
def test_there_and_back_is_byte_identical(model: ModelConfig, first: Layout, second: Layout, precision: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        states = write_whole(folder / "whole", model, precision)
        convert(folder / "whole", folder / "a", to="training", **sizes(first))
        convert(folder / "a", folder / "b", to="training", **sizes(second))
        convert(folder / "b", folder / "back", to="training", **sizes(first))
        assert files(folder / "back") == files(folder / "a")
        check_against_training_s_own_reader(folder / "b", model, second, states)
        convert(folder / "b", folder / "hf", to="hf")
        convert(folder / "whole", folder / "reference", to="hf")
        hf = "model.safetensors"
        assert (folder / "hf" / hf).read_bytes() == (folder / "reference" / hf).read_bytes()
        for spec in tensor_table(model):
            expected = states[f"{spec.name}/master"].to(open_source(folder / "b").dtype)
            stored = load_file(folder / "hf" / hf)["transformer." + spec.hf_name]
            assert torch.equal(stored.t() if spec.hf_transposed else stored, expected)
            assert torch.equal(whole_tensor(open_source(folder / "b"), spec), expected)


def check_against_training_s_own_reader(
    run: Path, model: ModelConfig, layout: Layout, states: dict[str, torch.Tensor]
) -> None:
    """What `mtnlg train` would load at that layout and at another."""
    manifest = read_manifest(step_folder(run, 7))
    assert manifest is not None
    assert (manifest.about["consumed_samples"], manifest.about["skipped_samples"]) == (56, 3)
    reader = CheckpointReader(step_folder(run, 7), manifest)
    assert reader.optimizer_step == 7
    for size in {layout.tensor_parallel_size, 2}:
        for spec in tensor_table(model):
            for state in OPTIMIZER_STATES:
                held = reader.optimizer_slice(spec, state, size - 1, size)
                assert torch.equal(held, take_slice(spec, states[f"{spec.name}/{state}"], model, size - 1, size))
