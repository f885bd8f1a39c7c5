"""The ways from a training checkpoint to another format that `benchmarks.convert` compares, and what they start from.

Each way takes the folders that it reads and writes, ends with everything on the disk, and returns the seconds of its
parts, if it has any.
"""

import shutil
import subprocess
import time
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file

from benchmarks.training_steps import join_alone
from conversion.convert import Options, convert
from conversion.hf import PREFIX
from foundation.files import fsync_file, fsync_folder
from foundation.formats import TRAINING
from foundation.manifest import write_manifest
from training.checkpoint.names import OPTIMIZER_STATES, optimizer_file, step_folder, weights_file
from training.config import OptimizerConfig
from training.engine import build_optimizer
from training.model.config import ModelConfig
from training.model.gpt import GPT
from training.model.tensors import Slicing, TensorSpec, layer_tensors, tensor_table
from training.parallel.layout import Layout
from training.planner.stages import stage_layers

Seconds = dict[str, float]
_TAG = "global_step1"


def write_checkpoint(run: Path, model: ModelConfig, layout: Layout) -> Path:
    """A bf16 checkpoint of random numbers as training at `layout`, without replicas, leaves it; returns its folder."""
    folder = step_folder(run, 1)
    folder.mkdir(parents=True)
    stages = stage_layers(model, layout.pipeline_parallel_size)
    for stage, layers in enumerate(stages):
        specs = [spec for layer in layers for spec in layer_tensors(model, layer)]
        for rank in range(layout.tensor_parallel_size):
            masters = {spec.name: _random_slice(spec, model, layout, rank) for spec in specs}
            weights = {name: master.bfloat16() for name, master in masters.items()}
            save_file(weights, folder / weights_file(stage, rank), {"format": "pt"})
            for state, scale in zip(OPTIMIZER_STATES, (1.0, 0.1, 0.01), strict=True):
                fragments = {name: master.flatten() * scale for name, master in masters.items()}
                starts = dict.fromkeys(masters, "0")
                save_file(fragments, folder / optimizer_file(state, stage, rank, 0), {"step": "1", **starts})
    about = {
        "step": 1,
        "consumed_samples": 8,
        "skipped_samples": 0,
        "layout": layout.model_dump(mode="json"),
        "model": model.model_dump(mode="json"),
        "precision": "bf16",
        "stage_bounds": [layers.start for layers in stages] + [stages[-1].stop],
    }
    write_manifest(folder, TRAINING, about, sorted(folder.iterdir()))
    _flush(folder)
    return folder


def write_deepspeed_checkpoint(folder: Path, model: ModelConfig) -> None:
    """What DeepSpeed's ZeRO-1 saves of the same parameters on one rank, which is what `zero_to_fp32` can read.

    It refuses DeepSpeed's pipeline checkpoints, so there are no slices and no stages to put together here.
    """
    join_alone()
    import deepspeed

    gpt = GPT(model)
    engine, *_ = deepspeed.initialize(
        model=gpt,
        optimizer=build_optimizer(gpt.parameters(), OptimizerConfig()),
        config={
            "train_batch_size": 1,
            "bf16": {"enabled": True},
            "zero_optimization": {"stage": 1},
            "zero_allow_untested_optimizer": True,
        },
    )
    # A step, for without one the optimizer has no moments to save.
    engine.backward(engine(torch.arange(8)[None]).float().logsumexp(-1).mean())
    engine.step()
    # ds_to_universal wants an entry; nothing is sliced, so it needs no patterns.
    state = {"iteration": 1, "universal_checkpoint_info": {"universal_checkpoint_version": 0.2}}
    engine.save_checkpoint(str(folder), tag=_TAG, client_state=state)
    _flush(folder)


def copy_files(source: Path, out: Path, *, patterns: tuple[str, ...]) -> Seconds:
    """`cp -r` of the files that a conversion reads."""
    out.mkdir()
    files = [str(path) for pattern in patterns for path in sorted(source.glob(pattern))]
    subprocess.run([shutil.which("cp") or "cp", "-r", *files, str(out)], check=True)
    _flush(out)
    return {}


def convert_checkpoint(source: Path, out: Path, *, options: Options) -> Seconds:
    """This project's conversion, which checks the SHA-256 of what it reads and records that of what it writes."""
    convert(source, out, options)
    return {}


def by_zero_to_fp32(source: Path, out: Path, *, model: ModelConfig) -> Seconds:
    """DeepSpeed's `zero_to_fp32` to a file, then transformers."""
    from deepspeed.utils.zero_to_fp32 import convert_zero_checkpoint_to_fp32_state_dict

    consolidated, started = out.with_name("consolidated"), time.perf_counter()
    convert_zero_checkpoint_to_fp32_state_dict(str(source), str(consolidated))
    seconds = {"zero_to_fp32": time.perf_counter() - started}
    weights: dict[str, torch.Tensor] = {}
    for file in sorted(consolidated.glob("*.bin")):
        weights |= torch.load(file, map_location="cpu")
    return seconds | _save_with_transformers(weights, model, out)


def by_universal_checkpoint(source: Path, out: Path, *, model: ModelConfig) -> Seconds:
    """DeepSpeed's `ds_to_universal`, its only converter that takes pipeline checkpoints, then transformers."""
    from deepspeed.checkpoint.ds_to_universal import main

    universal, started = out.with_name("universal") / _TAG, time.perf_counter()
    main(
        Namespace(
            input_folder=str(source / _TAG),
            output_folder=str(universal),
            num_extract_workers=4,
            num_merge_workers=2,
            keep_temp_folder=False,
            strict=True,
            inject_missing_state=True,
        )
    )
    seconds = {"ds_to_universal": time.perf_counter() - started}
    files = universal.glob("zero/*/fp32.pt")
    weights = {file.parent.name: torch.load(file, map_location="cpu")["param"] for file in files}
    return seconds | _save_with_transformers(weights, model, out)


def _save_with_transformers(weights: Mapping[str, torch.Tensor], model: ModelConfig, out: Path) -> Seconds:
    from transformers import GPT2Config, GPT2LMHeadModel

    started = time.perf_counter()
    gpt2 = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=model.vocab_size,
            n_positions=model.sequence_length,
            n_embd=model.hidden_size,
            n_layer=model.num_layers,
            n_head=model.num_attention_heads,
        )
    )
    seconds = {"building GPT2LMHeadModel": time.perf_counter() - started}
    started = time.perf_counter()
    held = {PREFIX + spec.hf_name: _as_hf(weights, spec, model) for spec in tensor_table(model)}
    missing, unexpected = gpt2.load_state_dict(held, strict=False)
    if unexpected or set(missing) != {"lm_head.weight"}:
        raise ValueError(f"the peer's model is not the same: {missing} {unexpected}")
    seconds["load_state_dict"] = time.perf_counter() - started
    started = time.perf_counter()
    gpt2.save_pretrained(out)
    seconds["save_pretrained"] = time.perf_counter() - started
    started = time.perf_counter()
    _flush(out)
    return {**seconds, "fsync": time.perf_counter() - started}


def _as_hf(weights: Mapping[str, torch.Tensor], spec: TensorSpec, model: ModelConfig) -> torch.Tensor:
    weight = weights[f"layers.{spec.layer}.{spec.parameter}" if spec.layer else f"embedding.{spec.parameter}"]
    if spec.slicing is Slicing.VOCABULARY:
        return weight[: model.vocab_size]
    return weight.t() if spec.hf_transposed else weight


def _random_slice(spec: TensorSpec, model: ModelConfig, layout: Layout, rank: int) -> torch.Tensor:
    # Every rank holds the same of what is replicated.
    drawn = 0 if spec.slicing is Slicing.REPLICATED else rank
    generator = torch.Generator().manual_seed(hash((spec.layer, spec.shape, drawn)) % 2**32)
    return torch.randn(spec.slice_shape(model, layout.tensor_parallel_size), generator=generator) * model.init_std


def _flush(folder: Path) -> None:
    """Force a folder and everything in it to the disk."""
    for path in [*folder.rglob("*"), folder]:
        fsync_folder(path) if path.is_dir() else fsync_file(path)
