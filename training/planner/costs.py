"""Time that a rank spends on one micro-batch: matmuls, element-wise operations, and its slices' collectives."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from training.config import TrainConfig
from training.model.tensors import LayerKind, layer_kinds
from training.planner.collectives import Wiring, gather_seconds, reduce_seconds
from training.planner.hardware import Device
from training.planner.options import PlanOptions
from training.planner.software import Traffic
from training.planner.stages import count_blocks, rank_parameters, stage_layers

# training/model/dropout.py computes a hash of every element, in some ten operations that are not fused.
_HASH_BYTES = 100
# Flash attention's backward: five products where forward has two (Dao 2023).
_FUSED_BACKWARD = 2.5


class Product(NamedTuple):
    """A matrix product, [rows, depth] [depth, columns], `batch` times."""

    rows: int
    columns: int
    depth: int
    batch: int = 1


@dataclass(frozen=True)
class Pass:
    """Seconds of one way through some layers: computing, and waiting for the other slices."""

    compute: float = 0.0
    slices: float = 0.0

    @property
    def total(self) -> float:
        """Both."""
        return self.compute + self.slices

    def __add__(self, other: "Pass") -> "Pass":
        return Pass(self.compute + other.compute, self.slices + other.slices)

    def __mul__(self, times: float) -> "Pass":
        return Pass(self.compute * times, self.slices * times)


@dataclass(frozen=True)
class ChunkCosts:
    """Seconds of one micro-batch in the layers that a stage, or a part of an interleaved one, holds."""

    forward: Pass
    recompute: Pass
    backward: Pass
    accumulate: float

    @property
    def forward_seconds(self) -> float:
        """From input to output."""
        return self.forward.total

    @property
    def backward_seconds(self) -> float:
        """From the output's gradient to the input's, and to the sums of the weights' gradients."""
        return self.recompute.total + self.backward.total + self.accumulate


class CostModel:
    """The costs of a run's layers on a device; what does not depend on the stage is computed once."""

    def __init__(self, config: TrainConfig, options: PlanOptions, device: Device, wiring: Wiring) -> None:
        self._config, self._options, self._device, self._wiring = config, options, device, wiring
        self._software = options.software
        self._slices = config.layout.tensor_parallel_size
        self._width = 4 if config.training.precision == "fp32" else 2
        self._tokens = config.training.micro_batch_size * config.model.sequence_length
        self._hidden = self._tokens * config.model.hidden_size
        self._shared = self._slices if config.layout.sequence_parallel else 1

    def chunks(self) -> list[ChunkCosts]:
        """Of every stage of the model in order; an interleaved rank holds several of them."""
        model, layout = self._config.model, self._config.layout
        kinds = layer_kinds(model)
        chunks = []
        for layers in stage_layers(model, layout.pipeline_parallel_size * self._options.virtual_stages):
            blocks = count_blocks(model, layers)
            forward, backward = self.block_forward * blocks, self.block_backward * blocks
            here = {kinds[layer] for layer in layers}
            for kind, ends in ((LayerKind.WORD_EMBEDDING, self.embedding), (LayerKind.HEAD, self.head)):
                if kind in here:
                    forward, backward = forward + ends[0], backward + ends[1]
            accumulate = self._software.gradient_bytes * self._width / 2 * rank_parameters(model, layout, layers)
            chunks.append(
                ChunkCosts(forward, self.block_recompute * blocks, backward, self._device.copying_seconds(accumulate))
            )
        return chunks

    @property
    def boundary_bytes(self) -> int:
        """What a stage hands to the next of one micro-batch, a rank."""
        return self._hidden * self._width // self._shared

    @cached_property
    def block_forward(self) -> Pass:
        """One block's forward pass."""
        attention, rest = self._attention_forward, self._forward_traffic
        return Pass(
            self._products(self._linear) + attention + rest + self._software.kernels * self._device.launch_seconds,
            2 * self._reduction,
        )

    @cached_property
    def block_recompute(self) -> Pass:
        """What backward computes again first."""
        recomputation = self._config.training.recomputation
        if recomputation == "full":
            return self.block_forward
        return Pass(self._attention_forward) if recomputation == "selective" else Pass()

    @cached_property
    def block_backward(self) -> Pass:
        """One block's backward pass, without what is computed again."""
        to_inputs, to_weights = _backward(self._linear)
        compute = self._products(to_inputs) + self._products(to_weights) + self._attention_backward
        compute += self._moving(self._software.backward, dropouts=2)
        compute += 2 * self._software.kernels * self._device.launch_seconds
        return Pass(compute, self._backward_slices(to_inputs, to_weights))

    @cached_property
    def embedding(self) -> tuple[Pass, Pass]:
        """Forward and backward of the two embeddings."""
        between = self._hidden * self._width / self._shared
        rows = self._config.model.padded_vocab_size(self._slices) // self._slices
        table = rows * self._config.model.hidden_size * self._width
        forward = Pass(self._device.moving_seconds(self._hidden * self._width * 2 + between * 4), self._reduction)
        return forward, Pass(self._device.moving_seconds(table + between * 4))

    @cached_property
    def head(self) -> tuple[Pass, Pass]:
        """Forward and backward of the final LayerNorm, the head and the loss."""
        model = self._config.model
        rows = model.padded_vocab_size(self._slices) // self._slices
        logits = Product(self._tokens, rows, model.hidden_size)
        to_inputs, to_weights = _backward([logits])
        between = self._hidden * self._width / self._shared
        cached = self._software.cached_logit_bytes if self._device.cores else None
        size = self._software.logit_bytes if cached is None else cached
        loss = self._device.moving_seconds(size * self._width / 2 * self._tokens * rows)
        forward = Pass(self._products([logits]) + loss / 2 + self._device.moving_seconds(2 * between))
        backward = self._products(to_inputs) + self._products(to_weights) + loss / 2
        return forward, Pass(backward + self._device.moving_seconds(5 * between), self._reduction)

    @property
    def _linear(self) -> list[Product]:
        h, t, tokens = self._config.model.hidden_size, self._slices, self._tokens
        return [
            Product(tokens, 3 * h // t, h),
            Product(tokens, h, h // t),
            Product(tokens, 4 * h // t, h),
            Product(tokens, h, 4 * h // t),
        ]

    @property
    def _core(self) -> list[Product]:
        model = self._config.model
        heads = self._config.training.micro_batch_size * model.num_attention_heads // self._slices
        length, size = model.sequence_length, model.head_size
        return [Product(length, length, size, heads), Product(length, size, length, heads)]

    @property
    def _fused(self) -> bool:
        return self._software.fused_attention and self._config.model.attention_dropout == 0

    @cached_property
    def _fused_seconds(self) -> float:
        # Half of the scores lie in the future.
        flops = sum(2.0 * p.rows * p.columns * p.depth * p.batch for p in self._core) / 2
        return flops / (self._device.peak * self._device.fused_attention_share.value)

    @cached_property
    def _attention_forward(self) -> float:
        if self._fused:
            return self._fused_seconds
        return self._products(self._core) + self._scores(self._software.forward, hashed=True)

    @cached_property
    def _attention_backward(self) -> float:
        if self._fused:
            return self._fused_seconds * _FUSED_BACKWARD
        to_first, to_second = _backward(self._core)
        return (
            self._products(to_first) + self._products(to_second) + self._scores(self._software.backward, hashed=False)
        )

    @cached_property
    def _forward_traffic(self) -> float:
        return self._moving(self._software.forward, dropouts=2)

    def _scores(self, traffic: Traffic, *, hashed: bool) -> float:
        model = self._config.model
        count = self._config.training.micro_batch_size * model.num_attention_heads * model.sequence_length**2
        size = traffic.scores * self._width / 2
        if self._software.fused_attention:
            # The project's own attention with dropout: scores, mask, softmax in fp32, back, dropout.
            size = 16 * self._width / 2 + _HASH_BYTES * int(hashed)
        return self._device.moving_seconds(count / self._slices * size)

    def _moving(self, traffic: Traffic, dropouts: int) -> float:
        between = traffic.between * self._width / 2
        if self._software.fused_attention and self._config.model.hidden_dropout > 0:
            between += dropouts * _HASH_BYTES
        within = traffic.within * self._width / 2
        size = self._hidden * (between / self._shared + within / self._slices)
        return self._device.moving_seconds(size)

    def _products(self, products: Iterable[Product]) -> float:
        return sum(self._device.matmul_seconds(*product, width=self._width) for product in products)

    @cached_property
    def _reduction(self) -> float:
        """An all-reduce over the slices of one [s, b, h], or the reduce-scatter and all-gather that are as much."""
        return reduce_seconds(self._hidden * self._width, self._slices, self._wiring.slices)

    def _backward_slices(self, to_inputs: list[Product], to_weights: list[Product]) -> float:
        """Column-parallel maps reduce their inputs' gradients; with sequence parallelism also gather inputs again."""
        if self._slices == 1:
            return 0.0
        gather = gather_seconds(self._hidden * self._width, self._slices, self._wiring.slices)
        exposed = 2 * gather if self._shared > 1 else 0.0
        for column in (0, 2):
            reducing = gather if self._shared > 1 else self._reduction
            gathering = gather if self._shared > 1 else 0.0
            if self._software.overlapped_slices:
                reducing = max(0.0, reducing - self._products([to_weights[column]]))
                gathering = max(0.0, gathering - self._products([to_inputs[column]]))
            exposed += reducing + gathering
        return exposed


def _backward(products: Iterable[Product]) -> tuple[list[Product], list[Product]]:
    """The products that give the first factors' gradients, and the second ones'."""
    listed = list(products)
    return (
        [Product(p.rows, p.depth, p.columns, p.batch) for p in listed],
        [Product(p.depth, p.columns, p.rows, p.batch) for p in listed],
    )
