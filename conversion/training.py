"""This project's own training layout as a target: any (tensor, pipeline, data), the optimizer's moments included."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from conversion.cast import dtype_name
from conversion.placement import place
from conversion.plan import OutputFile, OutputTensor
from conversion.read_training import TOKENIZER
from conversion.source import WEIGHT, Source
from conversion.target import Target
from conversion.tokenizer import copy_tokenizer_files
from foundation.errors import UserError
from foundation.formats import TRAINING
from training.checkpoint.names import OPTIMIZER_STATES, optimizer_file, weights_file
from training.model.tensors import TensorSpec, layer_kinds, layer_tensors
from training.parallel.layout import Layout
from training.planner.stages import stage_layers

_PRECISIONS = {torch.float32: "fp32", torch.bfloat16: "bf16"}


def training_target(source: Source, dtype: torch.dtype, layout: Layout) -> Target:
    """A checkpoint that `mtnlg train` continues from, at another layout.

    Without an optimizer in the source the masters are its weights and the moments zero: a run that starts from them.
    Raises UserError when the model cannot be cut so.
    """
    _check(source, dtype, layout)
    stages = stage_layers(source.model, layout.pipeline_parallel_size)
    files: list[OutputFile] = []
    for stage, layers in enumerate(stages):
        specs = [spec for layer in layers for spec in layer_tensors(source.model, layer)]
        for rank in range(layout.tensor_parallel_size):
            weights = [_slice(source, spec, dtype, WEIGHT, rank, layout) for spec in specs]
            files.append(OutputFile(weights_file(stage, rank), tuple(weights)))
            files.extend(_optimizer_files(source, specs, stage, rank, layout))
    bounds = [layers.start for layers in stages] + [len(layer_kinds(source.model))]
    about = {**_position(source), **_about(source, dtype, layout, bounds)}
    return Target(
        TRAINING,
        f"training, {dtype_name(dtype)}, {layout}",
        tuple(files),
        about,
        lambda folder: _write_tokenizer(folder, source),
    )


def _check(source: Source, dtype: torch.dtype, layout: Layout) -> None:
    model = source.model
    if dtype not in _PRECISIONS:
        raise UserError(f"training is in float32 or bfloat16, not {dtype_name(dtype)}; choose --dtype")
    layout.check_model(model)


def _slice(
    source: Source,
    spec: TensorSpec,
    dtype: torch.dtype,
    state: str,
    rank: int,
    layout: Layout,
) -> OutputTensor:
    shape = spec.slice_shape(source.model, layout.tensor_parallel_size)
    placement = place(spec, source.model, rank, layout.tensor_parallel_size)
    return OutputTensor(spec.name, shape, dtype, spec, state, placement)


def _optimizer_files(
    source: Source, specs: Sequence[TensorSpec], stage: int, rank: int, layout: Layout
) -> Iterator[OutputFile]:
    """A file a state and replica: of the stage's flattened slices, one after the other, an equal part."""
    counts = [torch.Size(spec.slice_shape(source.model, layout.tensor_parallel_size)).numel() for spec in specs]
    starts = [0, *itertools.accumulate(counts)]
    share = -(-starts[-1] // layout.data_parallel_size)
    step = str(source.about.get("optimizer_step", 0))
    for state, replica in itertools.product(OPTIMIZER_STATES, range(layout.data_parallel_size)):
        tensors: list[OutputTensor] = []
        metadata = {"step": step}
        for spec, begin, count in zip(specs, starts, counts, strict=False):
            first = max(0, replica * share - begin)
            last = min(count, (replica + 1) * share - begin)
            if first < last:
                metadata[spec.name] = str(first)
                tensors.append(_fragment(source, spec, state, rank, layout, (first, last)))
        yield OutputFile(optimizer_file(state, stage, rank, replica), tuple(tensors), metadata)


def _fragment(
    source: Source, spec: TensorSpec, state: str, rank: int, layout: Layout, part: tuple[int, int]
) -> OutputTensor:
    shape = (part[1] - part[0],)
    held = state if state in source.states else WEIGHT
    if held == WEIGHT and state != OPTIMIZER_STATES[0]:
        return OutputTensor(spec.name, shape, torch.float32)
    placement = place(spec, source.model, rank, layout.tensor_parallel_size)
    return OutputTensor(spec.name, shape, torch.float32, spec, held, placement, part=part)


def _position(source: Source) -> dict[str, Any]:
    """Where the run is: kept from a training checkpoint, the beginning from weights alone, of any step."""
    kept = {key: value for key, value in source.about.items() if key != "optimizer_step"}
    step = 0 if source.states == (WEIGHT,) else source.step or 0
    return {"step": step, "consumed_samples": 0, "skipped_samples": 0, **kept}


def _about(source: Source, dtype: torch.dtype, layout: Layout, bounds: list[int]) -> Mapping[str, Any]:
    return {
        "layout": layout.model_dump(mode="json"),
        "model": source.model.model_dump(mode="json"),
        "precision": _PRECISIONS[dtype],
        "stage_bounds": bounds,
    }


def _write_tokenizer(folder: Path, source: Source) -> None:
    if source.tokenizer is not None:
        (folder / TOKENIZER).mkdir(exist_ok=True)
        copy_tokenizer_files(source.tokenizer, folder / TOKENIZER)
