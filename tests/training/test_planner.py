"""The plan against the papers' figures, DeepSpeed's own decisions, and what processes really hold."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from deepspeed.runtime.pipe.schedule import BackwardPass, ForwardPass, TrainSchedule
from deepspeed.runtime.utils import partition_balanced as deepspeed_partition_balanced
from torch.autograd.graph import saved_tensors_hooks

from foundation.config import CONFIG_ROOT, load_config
from foundation.errors import UserError
from training.config import TrainConfig
from training.model import loss
from training.model.config import ModelConfig
from training.model.layers import LayerContext, TransformerBlock
from training.model.tensors import LayerKind, layer_kinds, parameter_count
from training.parallel.layout import Layout
from training.planner.cluster import Cluster, load_cluster
from training.planner.flops import hardware_flops, model_flops, throughput
from training.planner.memory import (
    FP32_LOGITS_AT_ONCE,
    LOGITS_AT_ONCE,
    block_activation_bytes,
    stage_memories,
)
from training.planner.schedule import in_flight
from training.planner.stages import count_blocks, partition_balanced, rank_parameters, stage_layers

PAPER_RUN = CONFIG_ROOT / "train" / "mt-nlg-530b.yaml"
BIN = Path(sys.executable).parent
HEAVY = ("torch", "deepspeed", "numpy", "matplotlib", "transformers")


def run_config(**sections: Any) -> TrainConfig:
    """A small run; sections are merged into it."""
    values: dict[str, Any] = {
        "model": {"num_layers": 4, "hidden_size": 128, "num_attention_heads": 4, "sequence_length": 64},
        "layout": {},
        "data": {"path": "nowhere"},
        "training": {"train_tokens": 10**6, "global_batch_size": 64, "micro_batch_size": 2},
        "out": "nowhere",
    }
    for name, section in sections.items():
        values[name] = {**values[name], **section}
    return TrainConfig.model_validate(values)


def dry_run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(BIN / "mtnlg"), "train", *arguments], capture_output=True, text=True, timeout=60, check=False
    )


# Narayanan et al. 2021, Smith et al. 2022 and Chowdhery et al. 2022 on the 530 B run: replicas, seconds a step,
# TFLOP/s a GPU as published, and the utilisation of 312 TFLOP/s without recomputation.
PUBLISHED = [(8, 60.1, 126, 0.302), (10, 50.2, 121, 0.289), (12, 44.4, 113, 0.273)]


@pytest.mark.parametrize(("replicas", "seconds", "tflops", "utilisation"), PUBLISHED)
def test_throughput_is_what_was_published_of_the_530b(
    replicas: int, seconds: float, tflops: float, utilisation: float
) -> None:
    overrides = [f"layout.data_parallel_size={replicas}", "training.peak_tflops=312", "training.recomputation=full"]
    values = throughput(load_config(TrainConfig, PAPER_RUN, overrides), 1920, seconds)
    assert values["tflops_per_device"] == pytest.approx(tflops, abs=0.7)
    assert values["model_flops_utilisation"] == pytest.approx(utilisation, abs=0.001)
    assert values["tokens_per_second"] == pytest.approx(1920 * 2048 / seconds)


def test_without_a_peak_there_is_no_utilisation() -> None:
    assert set(throughput(run_config(), 64, 1.0)) == {"tokens_per_second", "tflops_per_device"}


def test_flops_are_the_published_formulas() -> None:
    model = ModelConfig(num_layers=24, hidden_size=2048, num_attention_heads=16, sequence_length=1024)
    batch, layers, h, s, vocab = 512, 24, 2048, 1024, 51200
    narayanan = 96 * batch * s * layers * h**2 * (1 + s / (6 * h) + vocab / (16 * layers * h))
    korthikanti = 72 * batch * s * layers * h**2 * (1 + s / (6 * h) + vocab / (12 * layers * h))
    selective = 72 * batch * s * layers * h**2 * (1 + s / (3 * h) + vocab / (12 * layers * h))
    assert hardware_flops(model, vocab, batch, "full") == pytest.approx(narayanan, rel=1e-12)
    assert hardware_flops(model, vocab, batch, "selective") == pytest.approx(selective, rel=1e-12)
    assert hardware_flops(model, vocab, batch, "none") == pytest.approx(korthikanti, rel=1e-12)
    assert model_flops(model, vocab, batch) == pytest.approx(korthikanti, rel=1e-12)


def test_stages_are_deepspeed_s() -> None:
    """DeepSpeed's own function, over every number of stages for 1 to 14 blocks, and some large models."""
    cases = [(blocks, stages) for blocks in range(1, 15) for stages in range(1, blocks + 1)]
    for blocks, stages in [*cases, (24, 7), (32, 5), (48, 9), (105, 35)]:
        model = ModelConfig(num_layers=blocks, hidden_size=8, num_attention_heads=1, sequence_length=8)
        weights = [int(kind is LayerKind.BLOCK) for kind in layer_kinds(model)]
        expected = [int(bound) for bound in deepspeed_partition_balanced(weights, stages)]
        assert partition_balanced(weights, stages) == expected, (blocks, stages)


def test_the_paper_s_stages_have_three_blocks_each() -> None:
    model = load_config(TrainConfig, PAPER_RUN).model
    assert [count_blocks(model, layers) for layers in stage_layers(model, 35)] == [3] * 35


@pytest.mark.parametrize("sizes", [(1, 1, 1), (2, 1, 1), (1, 4, 1), (4, 3, 2)])
def test_ranks_parameters_add_up_to_the_model_s(sizes: tuple[int, int, int]) -> None:
    tensor, pipeline, data = sizes
    layout = Layout(tensor_parallel_size=tensor, pipeline_parallel_size=pipeline, data_parallel_size=data)
    model = run_config().model
    held = tensor * sum(rank_parameters(model, layout, layers) for layers in stage_layers(model, pipeline))
    h, blocks = model.hidden_size, model.num_layers
    # LayerNorms and row-parallel biases are whole in every slice; positions and the final norm too.
    repeated = (tensor - 1) * (blocks * 6 * h + model.sequence_length * h + 2 * h)
    second_embedding = model.padded_vocab_size(tensor) * h if pipeline > 1 else 0
    assert held == parameter_count(model, tensor) + repeated + second_embedding


@pytest.mark.parametrize(("stages", "micro_batches"), [(1, 3), (2, 1), (4, 2), (4, 8), (7, 20)])
def test_micro_batches_in_flight_are_those_of_deepspeed_s_schedule(stages: int, micro_batches: int) -> None:
    for stage in range(stages):
        flying = most = 0
        for commands in TrainSchedule(micro_batches=micro_batches, stages=stages, stage_id=stage).steps():
            for command in commands:
                flying += isinstance(command, ForwardPass) - isinstance(command, BackwardPass)
                most = max(most, flying)
        assert in_flight(stages, stage, micro_batches) == most


@pytest.mark.parametrize(
    ("tensor", "sequence", "recomputation", "per_element"),
    [
        # Korthikanti et al. 2022, table 2, in bytes over s b h, without the scores' 5 a s / h.
        (1, False, "none", 34),
        (4, False, "none", 10 + 24 / 4),
        (4, True, "none", 34 / 4),
        (4, False, "selective", 10 + 24 / 4),
        (4, True, "selective", 34 / 4),
        (4, False, "full", 2),
    ],
)
def test_activations_are_korthikanti_s(tensor: int, sequence: bool, recomputation: str, per_element: float) -> None:
    config = run_config(
        model={"hidden_dropout": 0.1},
        layout={"tensor_parallel_size": tensor, "sequence_parallel": sequence},
        training={"recomputation": recomputation},
    )
    assert block_activation_bytes(config) == per_element * 64 * 2 * 128


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
@pytest.mark.parametrize("recomputation", ["none", "selective", "full"])
@pytest.mark.parametrize("dropout", [(0.0, 0.0), (0.0, 0.1), (0.1, 0.1)], ids=["plain", "hidden", "both"])
def test_activations_are_what_a_block_keeps(dropout: tuple[float, float], recomputation: str, precision: str) -> None:
    config = run_config(
        model={"attention_dropout": dropout[0], "hidden_dropout": dropout[1]},
        training={"recomputation": recomputation, "precision": precision},
    )
    dtype = torch.float32 if precision == "fp32" else torch.bfloat16
    context = LayerContext(config.model, seed=1, recomputation=config.training.recomputation)
    block = TransformerBlock(context, layer=2).to(dtype)
    parameters = {parameter.untyped_storage().data_ptr() for parameter in block.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        output = block(torch.ones(64, 2, 128, dtype=dtype, requires_grad=True))
    assert output.requires_grad
    assert sum(kept.values()) == pytest.approx(block_activation_bytes(config), rel=0.01)


def test_logits_at_once_are_those_of_the_loss() -> None:
    assert loss._BLOCKING_ELSEWHERE == (LOGITS_AT_ONCE, FP32_LOGITS_AT_ONCE)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layout", "precision"), [((1, 2, 1), "bf16"), ((2, 1, 1), "bf16"), ((1, 1, 2), "bf16"), ((1, 1, 2), "fp32")]
)
def test_states_are_what_a_rank_holds(
    layout: tuple[int, int, int], precision: str, token_folder: Path, tmp_path: Path
) -> None:
    """Every tensor alive after a step, in each process of a real run."""
    tensor, pipeline, data = layout
    sizes = {"tensor_parallel_size": tensor, "pipeline_parallel_size": pipeline, "data_parallel_size": data}
    config = run_config(
        model={"hidden_size": 256, "sequence_length": 32, "vocab_size": 300},
        layout=sizes,
        training={"global_batch_size": 4, "micro_batch_size": 1, "precision": precision},
    ).model_copy(update={"out": tmp_path / "run"})
    path = tmp_path / "run.yaml"
    values = config.model_dump(mode="json")
    path.write_text(yaml.safe_dump({**values, "data": {"path": str(token_folder)}}))
    command = [str(BIN / "torchrun"), "--nproc-per-node=2", "--master-port=0", "--rdzv-backend=c10d"]
    command += ["--rdzv-endpoint=127.0.0.1:0", "-m", "tests.training.rank_memory", str(path)]
    environment = {**os.environ, "DS_ACCELERATOR": "cpu"}
    subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=True)
    for rank in range(2):
        measured = json.loads((config.out / f"memory-{rank}.json").read_text())
        planned = stage_memories(config)[config.layout.coordinate(rank).pipeline]
        assert measured["parameters"] == planned.parameters
        # In fp32 the gradients are gone after a step; in bf16 their fp32 sums stay.
        gradients = planned.gradients if precision == "bf16" else 0.0
        assert measured["held"] == pytest.approx(planned.weights + gradients + planned.optimizer, rel=0.03)


def test_states_of_the_paper_s_run() -> None:
    memories = stage_memories(load_config(TrainConfig, PAPER_RUN))
    middle = memories[17]
    assert middle.weights + middle.gradients + middle.optimizer == middle.parameters * (2 + 4 + 12 / 8)
    assert [memory.in_flight for memory in memories] == list(range(35, 0, -1))
    assert max(memory.total for memory in memories) < 80 * 2**30


@pytest.mark.parametrize(("world", "gpus"), [((8, 35, 8), 8), ((2, 3, 4), 8), ((4, 2, 1), 4), ((3, 2, 2), 8)])
def test_the_map_of_ranks_agrees_with_the_layout_s_coordinates(world: tuple[int, int, int], gpus: int) -> None:
    tensor, pipeline, data = world
    layout = Layout(tensor_parallel_size=tensor, pipeline_parallel_size=pipeline, data_parallel_size=data)
    cluster = Cluster(gpus_per_node=gpus)
    for stage in range(pipeline):
        ranks = [rank for rank in range(layout.world_size) if layout.coordinate(rank).pipeline == stage]
        assert set(cluster.stage_nodes(layout, stage)) == {rank // gpus for rank in ranks}
    split = sum(len({rank // gpus for rank in group}) > 1 for group in layout.tensor_groups())
    assert cluster.split_tensor_groups(layout) == split
    assert (split > 0) == (world == (3, 2, 2))


def test_the_paper_s_placement() -> None:
    layout, cluster = load_config(TrainConfig, PAPER_RUN).layout, load_cluster("dgx-a100", None, None)
    assert cluster.nodes_of(layout) == 280
    assert cluster.split_tensor_groups(layout) == 0
    assert [cluster.stage_nodes(layout, stage) for stage in (0, 34)] == [range(8), range(272, 280)]


def test_too_few_nodes_are_refused() -> None:
    with pytest.raises(UserError, match="has 2240 ranks, and 4 nodes of 8 GPUs hold 32; it takes 280 nodes"):
        load_cluster("dgx-a100", None, 4).nodes_of(load_config(TrainConfig, PAPER_RUN).layout)


@pytest.mark.parametrize("path", sorted((CONFIG_ROOT / "train").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_configuration_has_a_plan(path: Path) -> None:
    result = dry_run(str(path), "--dry-run")
    assert result.returncode == 0, result.stderr
    assert "stage blocks" in result.stderr
    resolved = TrainConfig.model_validate(yaml.safe_load(result.stdout))
    assert resolved == load_config(TrainConfig, path)


@pytest.mark.parametrize(("name", "gigabytes"), [("125m", 24), ("350m", 40), ("1.3b", 40), ("2.7b", 40)])
def test_configurations_fit_the_devices_they_name(name: str, gigabytes: int) -> None:
    path = CONFIG_ROOT / "train" / f"{name}.yaml"
    assert f"of {gigabytes} GB" in path.read_text()
    assert max(memory.total for memory in stage_memories(load_config(TrainConfig, path))) < 0.75 * gigabytes * 1e9


def test_the_paper_s_plan_takes_seconds_and_no_memory() -> None:
    script = (
        "import sys, mtnlg\n"
        f"sys.argv = ['mtnlg', 'train', {str(PAPER_RUN)!r}, '--dry-run', '--cluster', 'dgx-a100']\n"
        "try: mtnlg.main()\nexcept SystemExit: pass\n"
        "peak = next(l for l in open('/proc/self/status') if l.startswith('VmHWM')).split()[1]\n"
        f"print(peak, [name for name in {HEAVY} if name in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "COLUMNS": "80"},
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    peak_kib, heavy = result.stdout.splitlines()[-1].split(maxsplit=1)
    assert heavy == "[]"
    assert int(peak_kib) < 100 * 1024
    plan = result.stderr
    assert "14,472 steps from 32 by 32, then 65,613 of 1920" in plan
    assert "80,085 steps, 270.0 B tokens" in plan
    assert "34 stages over 240 micro-batches: 14.2%" in plan
    assert "280 of 8 GPUs: tensor groups inside a node" in plan
    assert [line.split()[-2:] for line in plan.splitlines() if line.startswith("   34 ")] == [["2176-2239", "272-279"]]
    assert "warning" not in plan


@pytest.mark.parametrize(
    ("options", "warning"),
    [
        (["--gpus-per-node", "4"], "280 of the 280 tensor groups of 8 ranks span nodes of 4 GPUs"),
        (["--cluster", "dgx-a100", "training.recomputation=none", "training.micro_batch_size=4"], "stage 0 takes"),
    ],
)
def test_a_plan_that_is_unwise_warns(options: list[str], warning: str) -> None:
    result = dry_run(str(PAPER_RUN), "--dry-run", *options)
    assert result.returncode == 0, result.stderr
    assert f"warning: {warning}" in result.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--nodes", "2"], "belong to --dry-run"),
        (["--dry-run", "--cluster", "dgx-a10"], "did you mean"),
        (["--dry-run", "--nodes", "2"], "it takes 280 nodes"),
    ],
)
def test_a_mistake_is_one_line(options: list[str], message: str) -> None:
    result = dry_run(str(PAPER_RUN), *options)
    assert result.returncode == 2
    assert result.stdout == ""
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1
