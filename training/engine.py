"""The GPT under DeepSpeed: pipeline stages, ZeRO-1 over data parallelism, bf16 with fp32 masters."""

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import nn

from training.config import OptimizerConfig, TrainConfig
from training.model.config import ModelConfig
from training.model.gpt import LAYER_CLASSES
from training.model.layers import LayerContext, TransformerBlock, WordEmbedding
from training.model.loss import sliced_cross_entropy
from training.model.tensors import LayerKind, layer_kinds
from training.parallel.collectives import TensorSlice
from training.parallel.groups import make_tensor_slice
from training.parallel.layout import Layout


def build_engine(config: TrainConfig, rank: int) -> Any:
    """DeepSpeed's pipeline engine for this rank. Collective: every rank must call it."""
    import deepspeed

    tensor_slice = make_tensor_slice(config.layout, rank)
    module = _pipeline_module(config, tensor_slice)
    optimizer = build_optimizer(module.parameters(), config.optimizer)
    engine, *_ = deepspeed.initialize(model=module, optimizer=optimizer, config=_deepspeed_config(config))
    return engine


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


def _pipeline_module(config: TrainConfig, tensor_slice: TensorSlice) -> Any:
    from deepspeed.pipe import PipelineModule

    context = LayerContext(config.model, config.training.seed, tensor_slice)
    # DeepSpeed broadcasts tied weights while it builds, which autograd must not see.
    with torch.no_grad():
        return PipelineModule(
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
            return TiedLayerSpec("embedding", WordEmbedding, context, 0, forward_fn=WordEmbedding.logits)
        return LayerSpec(LAYER_CLASSES[kind], context, number)

    return [spec(number, kind) for number, kind in enumerate(layer_kinds(context.model))]


def _topology(layout: Layout) -> Any:
    from deepspeed.runtime.pipe.topology import PipeModelDataParallelTopology

    return PipeModelDataParallelTopology(
        num_pp=layout.pipeline_parallel_size,
        num_mp=layout.tensor_parallel_size,
        num_dp=layout.data_parallel_size,
    )


def _loss(
    slice_logits: torch.Tensor, targets: torch.Tensor, *, model: ModelConfig, tensor_slice: TensorSlice
) -> torch.Tensor:
    return sliced_cross_entropy(slice_logits, targets, model, tensor_slice)


def _deepspeed_config(config: TrainConfig) -> dict[str, Any]:
    # ZeRO-1 in fp32 too: without it DeepSpeed's clipping counts a tied weight once a stage.
    return {
        "train_batch_size": config.training.global_batch_size,
        "train_micro_batch_size_per_gpu": config.training.micro_batch_size,
        "gradient_accumulation_steps": config.micro_batches,
        "gradient_clipping": config.optimizer.gradient_clipping,
        "bf16": {"enabled": config.training.precision == "bf16"},
        "data_types": {"grad_accum_dtype": "fp32"},
        "zero_optimization": {"stage": 1},
        "zero_allow_untested_optimizer": True,
        "pipeline": {"pipe_partitioned": False, "grad_partitioned": False},
        "steps_per_print": 1_000_000_000,
    }
