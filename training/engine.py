"""The GPT under DeepSpeed: pipeline stages, ZeRO-1 over data parallelism, bf16 with fp32 masters."""

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from training.allocator import keep_freed_memory
from training.config import OptimizerConfig, TrainConfig
from training.data.samples import Batch
from training.model.config import ModelConfig
from training.model.dropout import SampleClock
from training.model.gpt import LAYER_CLASSES
from training.model.layers import LayerContext, TransformerBlock, WordEmbedding
from training.model.loss import head_loss
from training.model.tensors import LayerKind, layer_kinds
from training.parallel.collectives import TensorSlice
from training.parallel.groups import make_tensor_slice
from training.parallel.layout import Layout


class Engine:
    """This rank's part of the model under DeepSpeed's pipeline engine, and what training asks of it."""

    def __init__(
        self, deepspeed_engine: Any, tensor_slice: TensorSlice, clock: SampleClock, config: TrainConfig
    ) -> None:
        self.deepspeed = deepspeed_engine
        self.tensor_slice = tensor_slice
        self._clock = clock
        self._batch_size = config.training.global_batch_size
        self._settled = False

    def train_batch(self, batches: Iterator[Batch], batch_size: int, learning_rate: float, first_sample: int) -> float:
        """One optimizer step on the next `batch_size` samples; the mean loss, on every rank. Collective.

        `first_sample` is the number in the run of the first of them, which dropout depends on.
        """
        self._clock.start_step(first_sample)
        if batch_size != self._batch_size:
            self.deepspeed.set_train_batch_size(batch_size)
            self._batch_size = batch_size
        for group in self.deepspeed.optimizer.param_groups:
            group["lr"] = learning_rate
        loss = float(self.deepspeed.train_batch(data_iter=batches))
        if not self._settled:
            # The optimizer's state is there now: whatever stays has been allocated.
            keep_freed_memory()
            self._settled = True
        return loss

    def validation_loss(self, batches: Iterator[Batch], num_micro_batches: int) -> float:
        """Mean loss over that many micro-batches a replica, without training. Collective."""
        return float(self.deepspeed.eval_batch(batches, num_micro_batches=num_micro_batches))

    @property
    def skipped(self) -> bool:
        """Whether the last step's gradient was not finite, so that the weights were left alone."""
        return bool(getattr(self.deepspeed.optimizer, "overflow", False))

    @property
    def gradient_norm(self) -> float:
        """Norm of the whole model's gradient at the last step, before clipping."""
        return float(self.deepspeed.get_global_grad_norm())

    def agree(self, mine: bool) -> bool:
        """True on every rank when it is true on any. Collective."""
        flag = torch.tensor([int(mine)], device=self.deepspeed.device)
        dist.all_reduce(flag, op=dist.ReduceOp.MAX)
        return bool(flag.item())


def build_engine(config: TrainConfig, rank: int) -> Engine:
    """The engine of this rank, with initial weights. Collective: every rank must call it."""
    import deepspeed

    tensor_slice = make_tensor_slice(config.layout, rank)
    clock = SampleClock(
        config.training.micro_batch_size, config.layout.coordinate(rank).data, config.layout.data_parallel_size
    )
    module = _pipeline_module(config, tensor_slice, clock)
    if config.training.compile:
        compile_blocks(module)
    optimizer = build_optimizer(module.parameters(), config.optimizer)
    engine, *_ = deepspeed.initialize(model=module, optimizer=optimizer, config=_deepspeed_config(config))
    if config.training.precision == "bf16" and config.layout.data_parallel_size == 1:
        # DeepSpeed would flatten all gradients, reduce them over this one replica, and copy them back.
        engine.pipeline_enable_backward_allreduce = False
    return Engine(engine, tensor_slice, clock, config)


def build_optimizer(parameters: Iterable[nn.Parameter], config: OptimizerConfig) -> torch.optim.AdamW:
    """AdamW with weight decay on matrices alone. The fused kernel is several times faster, on a CPU too."""
    trained = list(parameters)
    groups = [
        {"params": [p for p in trained if p.dim() > 1], "weight_decay": config.weight_decay},
        {"params": [p for p in trained if p.dim() <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        groups, lr=config.learning_rate, betas=(config.beta1, config.beta2), eps=config.epsilon, fused=True
    )


def compile_blocks(module: nn.Module) -> None:
    """Let torch compile every transformer block of `module` when it is first called; names do not change."""
    for block in module.modules():
        if isinstance(block, TransformerBlock):
            block.compile()


def _pipeline_module(config: TrainConfig, tensor_slice: TensorSlice, clock: SampleClock) -> Any:
    from training.parallel.pipeline import SlicedPipeline

    context = LayerContext(config.model, config.training.seed, tensor_slice, config.training.recomputation, clock)
    # DeepSpeed broadcasts tied weights while it builds, which autograd must not see.
    with torch.no_grad():
        return SlicedPipeline(
            tensor_slice=tensor_slice,
            before_micro_batch=clock.next_micro_batch,
            layers=_layer_specs(context),
            topology=_topology(config.layout),
            loss_fn=partial(_loss, model=config.model, tensor_slice=tensor_slice),
            partition_method=f"type:{TransformerBlock.__name__}",
        )


def _layer_specs(context: LayerContext) -> list[Any]:
    from deepspeed.pipe import LayerSpec, TiedLayerSpec

    def spec(number: int, kind: LayerKind) -> Any:
        if kind is LayerKind.WORD_EMBEDDING:
            return TiedLayerSpec("embedding", WordEmbedding, context, number)
        if kind is LayerKind.HEAD:
            # DeepSpeed sums a tied tensor's gradients over its stages; it builds the embedding there again.
            return TiedLayerSpec("embedding", WordEmbedding, context, 0, forward_fn=_head)
        return LayerSpec(LAYER_CLASSES[kind], context, number)

    return [spec(number, kind) for number, kind in enumerate(layer_kinds(context.model))]


def _topology(layout: Layout) -> Any:
    from deepspeed.runtime.pipe.topology import PipeModelDataParallelTopology

    return PipeModelDataParallelTopology(
        num_pp=layout.pipeline_parallel_size,
        num_mp=layout.tensor_parallel_size,
        num_dp=layout.data_parallel_size,
    )


def _head(embedding: WordEmbedding, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    # The loss computes the logits. A view, for DeepSpeed leaves hooks on what a stage returns.
    return hidden, embedding.weight.view_as(embedding.weight)


def _loss(
    head: tuple[torch.Tensor, torch.Tensor], targets: torch.Tensor, *, model: ModelConfig, tensor_slice: TensorSlice
) -> torch.Tensor:
    return head_loss(*head, targets, model, tensor_slice)


def _deepspeed_config(config: TrainConfig) -> dict[str, Any]:
    # ZeRO-1 in fp32 too: without it DeepSpeed's clipping counts a tied weight once a stage.
    return {
        "train_batch_size": config.training.global_batch_size,
        "train_micro_batch_size_per_gpu": config.training.micro_batch_size,
        "gradient_clipping": config.optimizer.gradient_clipping,
        # A gradient is added to its fp32 sum, and freed, as soon as backward has made it.
        "bf16": {"enabled": config.training.precision == "bf16", "immediate_grad_update": True},
        "data_types": {"grad_accum_dtype": "fp32"},
        # Left alone, DeepSpeed rounds those sums to bf16 before it adds the replicas'.
        "communication_data_type": "fp32",
        "zero_optimization": {"stage": 1},
        "zero_allow_untested_optimizer": True,
        "pipeline": {"pipe_partitioned": False, "grad_partitioned": False},
        "steps_per_print": 1_000_000_000,
    }
