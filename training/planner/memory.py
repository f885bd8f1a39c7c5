"""Memory of a rank, by stage: what ZeRO-1, 1F1B and the papers' accounting of activations give.

Smith et al. 2022 (section 2.1) count 20 bytes a parameter: 2 of bf16 weights, 2 of bf16 gradients, and 16 in fp32:
master weights 4, gradients 4, Adam's two moments 8. Here a bf16 gradient is freed as soon as it is added to the
fp32 sum, which leaves 18; ZeRO-1 divides masters and moments, 12 of them, over the replicas. Other programmes keep
other things (see `software.py`).
"""

from dataclasses import dataclass

from training.config import TrainConfig
from training.planner.options import PlanOptions
from training.planner.schedule import in_flight
from training.planner.stages import count_blocks, rank_parameters, stage_layers

_MASTER_AND_MOMENTS_BYTES = 12
# Of `training/model/loss.py` on a GPU: logits that exist at once, in the weights' dtype and in fp32.
LOGITS_AT_ONCE = 1 << 28
FP32_LOGITS_AT_ONCE = 1 << 26


@dataclass(frozen=True)
class StageMemory:
    """What each rank of one pipeline stage holds; sizes in bytes.

    `activations` are those of `in_flight` micro-batches; `head` the last stage's logits and gradients of the head,
    while the loss is computed. Not counted: the device's context, communication buffers, the allocator's gaps.
    """

    stage: int
    blocks: int
    parameters: int
    in_flight: int
    weights: float
    gradients: float
    optimizer: float
    activations: float
    head: float

    @property
    def total(self) -> float:
        """All of it."""
        return self.weights + self.gradients + self.optimizer + self.activations + self.head


def stage_memories(config: TrainConfig, options: PlanOptions | None = None) -> list[StageMemory]:
    """The memory of each rank of the pipeline, first to last."""
    options = options or PlanOptions()
    layout, zero = config.layout, options.zero
    ranks, replicas = layout.pipeline_parallel_size, layout.data_parallel_size
    stages = stage_layers(config.model, ranks * options.virtual_stages)
    micro_batches = config.training.global_batch_size // (config.training.micro_batch_size * replicas)
    memories = []
    for rank in range(ranks):
        parts = stages[rank::ranks]
        parameters = sum(rank_parameters(config.model, layout, layers) for layers in parts)
        blocks, last = sum(count_blocks(config.model, layers) for layers in parts), rank == ranks - 1
        # Of an interleaved rank, so many passes through one of its parts.
        passes = in_flight(ranks, rank, micro_batches, options.virtual_stages)
        held = passes / options.virtual_stages
        memories.append(
            StageMemory(
                stage=rank,
                blocks=blocks,
                parameters=parameters,
                in_flight=-(-passes // options.virtual_stages),
                weights=parameters * _width(config) / (replicas if zero >= 3 else 1),
                gradients=parameters * options.software.gradient_memory / (replicas if zero >= 2 else 1),
                optimizer=parameters * _MASTER_AND_MOMENTS_BYTES / (replicas if zero >= 1 else 1),
                activations=_stage_activations(config, options, blocks, held, first=rank == 0, last=last),
                # Either the loss's or a block's gradients are there.
                head=max(0.0, _head_bytes(config, options) - _backward_bytes(config)) if last else 0.0,
            )
        )
    return memories


def block_activation_bytes(config: TrainConfig, options: PlanOptions | None = None) -> float:
    """Bytes a rank keeps of one block and micro-batch for backward (Korthikanti et al. 2022, table 2).

    In units of s b h, two bytes each: 4 between the sliced regions (both LayerNorms' and both column-parallel maps'
    inputs; over t with sequence parallelism) and 12 within (q, k, v, the three row-parallel inputs); and a byte for
    each of two dropout masks. That is the paper's 34 s b h. Its 5 a s^2 b of attention scores exist only with
    attention dropout, since the fused kernel stores none; here they are 7, for the softmax is kept in fp32. Of
    Megatron's runs they are the paper's.
    """
    if config.training.recomputation == "full":
        return _between_slices(config, _width(config))
    return _working_set(config, options or PlanOptions(), with_scores=config.training.recomputation == "none")


def _stage_activations(
    config: TrainConfig, options: PlanOptions, blocks: int, in_flight: float, *, first: bool, last: bool
) -> float:
    kept = blocks * block_activation_bytes(config, options)
    parts = options.virtual_stages
    if first:
        kept += _between_slices(config, int(_hidden_dropout(config, options)))
    if not last or parts > 1:
        # DeepSpeed keeps a stage's output until backward; Megatron too, unless it is told to free it (compare
        # Korthikanti et al. 2022, appendix B).
        kept += parts * _between_slices(config, _width(config))
    again = _backward_bytes(config)
    if config.training.recomputation != "none":
        # Backward rebuilds one block at a time.
        again += _working_set(config, options, with_scores=True) - block_activation_bytes(config, options)
    return in_flight * kept + again


def _backward_bytes(config: TrainConfig) -> float:
    """A block's gradients while backward is in it: of its output, before and after GELU, and of the largest weight."""
    h, t = config.model.hidden_size, config.layout.tensor_parallel_size
    weight = config.model.ffn_hidden_size * h / t
    inner = _hidden_elements(config) * 2 * config.model.ffn_hidden_size / h / t
    return _width(config) * (inner + weight) + _between_slices(config, _width(config))


def _working_set(config: TrainConfig, options: PlanOptions, *, with_scores: bool) -> float:
    """Bytes of one block's activations when all are kept, or all but those of core attention."""
    model, t = config.model, config.layout.tensor_parallel_size
    between = _between_slices(config, 4 * _width(config) + 2 * int(_hidden_dropout(config, options)))
    within = _hidden_elements(config) * 12 * _width(config) / t
    fused = options.software.fused_attention
    if not with_scores or (fused and model.attention_dropout == 0):
        return between + within
    scores = config.training.micro_batch_size * model.num_attention_heads * model.sequence_length**2
    # The softmax, its mask and what dropout makes of it.
    softmax = 4 if fused else _width(config)
    return between + within + scores * (softmax + _width(config) + 1) / t


def _hidden_dropout(config: TrainConfig, options: PlanOptions) -> bool:
    return options.software.dropout or config.model.hidden_dropout > 0


def _between_slices(config: TrainConfig, bytes_an_element: int) -> float:
    share = config.layout.tensor_parallel_size if config.layout.sequence_parallel else 1
    return _hidden_elements(config) * bytes_an_element / share


def _head_bytes(config: TrainConfig, options: PlanOptions) -> float:
    """Final LayerNorm's input; the head's input and its gradient; the weight's gradient; a portion of the logits.

    Megatron's loss has all logits at once, and their softmax in fp32.
    """
    model, t = config.model, config.layout.tensor_parallel_size
    rows = model.padded_vocab_size(t) // t
    logits = config.training.micro_batch_size * model.sequence_length * rows
    chunked = options.software.fused_attention
    return (
        _between_slices(config, _width(config))
        + 2 * _hidden_elements(config) * _width(config)
        + rows * model.hidden_size * _width(config)
        + min(logits, LOGITS_AT_ONCE if chunked else logits) * _width(config)
        + min(logits, FP32_LOGITS_AT_ONCE if chunked else logits) * 4
    )


def _hidden_elements(config: TrainConfig) -> int:
    return config.training.micro_batch_size * config.model.sequence_length * config.model.hidden_size


def _width(config: TrainConfig) -> int:
    return 4 if config.training.precision == "fp32" else 2
