"""Sequence parallelism against megatron-core's layers, against one process, and what it refuses."""

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
import torch.nn.functional as F

from foundation.errors import UserError
from training.config import TrainConfig
from training.local_workers import run_local_workers
from training.metrics import read_metrics
from training.model.config import ModelConfig
from training.model.gpt import GPT
from training.model.slicing import join_slices
from training.model.tensors import Slicing, tensor_table
from training.parallel.collectives import TensorSlice, column_linear, sum_over_slices

RANKS = 2
SEQUENCE, BATCH, HIDDEN, INNER = 8, 3, 6, 10
MODEL = ModelConfig(num_layers=2, hidden_size=16, num_attention_heads=4, sequence_length=8, vocab_size=50)


def in_two_processes(function: Callable[[TensorSlice, Path], None], folder: Path) -> None:
    """Run `function` as both ranks of a group that shares the sequence."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    multiprocessing.spawn(_join_group, args=(function, folder, port), nprocs=RANKS)  # type: ignore[no-untyped-call]


def _join_group(rank: int, function: Callable[[TensorSlice, Path], None], folder: Path, port: int) -> None:
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(RANKS))
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    try:
        function(TensorSlice(rank, RANKS, dist.group.WORLD, sequence_parallel=True), folder)
    finally:
        dist.destroy_process_group()


def values(name: str, *shape: int) -> torch.Tensor:
    """The same numbers on every rank."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(name)))


def _compare_with_megatron(tensor_slice: TensorSlice, folder: Path) -> None:
    from megatron.core import parallel_state
    from megatron.core.model_parallel_config import ModelParallelConfig
    from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear

    # Where megatron-core puts its buffer of gathered rows: all that it asks of a GPU here.
    torch.cuda.current_device = lambda: "cpu"  # type: ignore[assignment, return-value]
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=RANKS)
    config = ModelParallelConfig(
        tensor_model_parallel_size=RANKS,
        sequence_parallel=True,
        use_cpu_initialization=True,
        perform_initialization=False,
        params_dtype=torch.float32,
    )
    shared: dict[str, Any] = {"config": config, "init_method": torch.nn.init.zeros_, "bias": True}
    column = ColumnParallelLinear(HIDDEN, INNER, gather_output=False, **shared)
    row = RowParallelLinear(INNER, HIDDEN, input_is_parallel=True, skip_bias_add=False, **shared)
    parameters = [column.weight, column.bias, row.weight, row.bias]
    with torch.no_grad():
        column.weight.copy_(values("column", INNER, HIDDEN).chunk(RANKS)[tensor_slice.rank])
        column.bias.copy_(values("bias", INNER).chunk(RANKS)[tensor_slice.rank])
        row.weight.copy_(values("row", HIDDEN, INNER).chunk(RANKS, 1)[tensor_slice.rank])
        row.bias.copy_(values("b", HIDDEN))
    inputs = values("in", SEQUENCE, BATCH, HIDDEN).chunk(RANKS)[tensor_slice.rank].requires_grad_()
    outward = values("outward", SEQUENCE, BATCH, HIDDEN).chunk(RANKS)[tensor_slice.rank]

    theirs = row(F.gelu(column(inputs)[0]))[0]
    inner = column_linear(inputs, column.weight, column.bias, tensor_slice)
    ours = sum_over_slices(F.linear(F.gelu(inner), row.weight), tensor_slice) + row.bias

    torch.testing.assert_close(ours, theirs)
    gradients = [torch.autograd.grad(result, [inputs, *parameters], outward) for result in (ours, theirs)]
    for mine, wanted in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, wanted)


@pytest.mark.slow
def test_linear_maps_equal_megatron_core_s(tmp_path: Path) -> None:
    in_two_processes(_compare_with_megatron, tmp_path)


def _write_gradients(tensor_slice: TensorSlice, folder: Path) -> None:
    gpt = GPT(MODEL, tensor_slice=tensor_slice)
    loss = gpt.loss(*_tokens())
    loss.backward()  # type: ignore[no-untyped-call]
    gradients = {name: parameter.grad for name, parameter in gpt.table_parameters().items()}
    torch.save((loss.item(), gradients), folder / f"{tensor_slice.rank}.pt")


def _tokens() -> torch.Tensor:
    return torch.randint(0, MODEL.vocab_size, (2, 3, MODEL.sequence_length), generator=torch.Generator().manual_seed(3))


@pytest.mark.slow
def test_gradients_of_slices_sum_to_the_whole_s(tmp_path: Path) -> None:
    """Each rank has the gradient of its own rows for whole tensors: the engine sums them once a step."""
    in_two_processes(_write_gradients, tmp_path)
    parts = [torch.load(tmp_path / f"{rank}.pt") for rank in range(RANKS)]
    gpt = GPT(MODEL)
    loss = gpt.loss(*_tokens())
    loss.backward()  # type: ignore[no-untyped-call]
    assert [part[0] for part in parts] == pytest.approx([loss.item()] * RANKS, abs=1e-6)
    for spec in tensor_table(MODEL):
        slices = [gradients[spec.name] for _, gradients in parts]
        whole = sum(slices) if spec.slicing is Slicing.REPLICATED else join_slices(spec, slices)
        expected = gpt.table_parameters()[spec.name].grad
        assert expected is not None
        torch.testing.assert_close(whole, expected[: spec.shape[0]], atol=1e-6, rtol=1e-4, msg=spec.name)


def test_a_sequence_that_does_not_divide_is_refused(make_train_config: Callable[..., TrainConfig]) -> None:
    config = make_train_config(4)
    layout = config.layout.model_copy(update={"sequence_parallel": True})
    layout.check_model(config.model)
    with pytest.raises(UserError, match=r"4 does not divide model.sequence_length 30"):
        layout.check_model(config.model.model_copy(update={"sequence_length": 30}))


def test_without_slices_the_switch_changes_nothing(make_train_config: Callable[..., TrainConfig]) -> None:
    from training.parallel.groups import make_tensor_slice

    layout = make_train_config().layout.model_copy(update={"sequence_parallel": True})
    layout.check_model(MODEL.model_copy(update={"sequence_length": 31}))
    assert make_tensor_slice(layout, 0) == TensorSlice()


@pytest.mark.slow
def test_bf16_trains_alike(make_train_config: Callable[..., TrainConfig]) -> None:
    histories = []
    for sequence in (False, True):
        config = make_train_config(2, steps=10, name=f"sequence-{sequence}", precision="bf16")
        layout = config.layout.model_copy(update={"sequence_parallel": sequence})
        run_local_workers(config.model_copy(update={"layout": layout}))
        histories.append([(line["loss"], line["gradient_norm"]) for line in read_metrics(config.out) if "loss" in line])
    for (loss, norm), (expected_loss, expected_norm) in zip(*histories, strict=True):
        assert loss == pytest.approx(expected_loss, abs=2e-3)
        assert norm == pytest.approx(expected_norm, rel=2e-2)
