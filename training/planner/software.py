"""What the software of a run moves through memory and when it waits: properties of a programme, alike for all models.

Bytes are those of two-byte elements; they double in fp32. `between` counts an element of [s, b, h] outside the sliced
regions, `within` one of [s, b, h / t] inside, `scores` one of [b, a / t, s, s].
"""

from dataclasses import dataclass
from enum import Enum


class EngineName(str, Enum):
    """The programmes whose runs can be planned."""

    mtnlg = "mtnlg"
    deepspeed = "deepspeed"
    megatron_2021 = "megatron-2021"
    megatron_2022 = "megatron-2022"


@dataclass(frozen=True)
class Traffic:
    """Bytes that a block's element-wise operations read and write, forward or backward."""

    between: float
    within: float
    scores: float


@dataclass(frozen=True)
class Engine:
    """A programme.

    `gradient_bytes` a parameter and micro-batch: what adding a gradient to the step's sum moves, beyond the matmul
    that writes it. `optimizer_bytes` a parameter of the rank's share and step. `reduction_width`: bytes an element of
    the replicas' reduction; `gradient_memory`: bytes a parameter of gradients and their sums. `logit_bytes` a logit,
    forward and backward, and `cached_logit_bytes` on a CPU. `duplex`: a stage sends and receives at once; else one
    after the other, and receiving takes its time too. `overlapped_slices`: backward's reduction over the slices goes
    on behind the weight's gradient.
    `kernels` a block's forward pass launches; `exchange_seconds` a transfer between stages costs beside the link's
    time: both sides synchronise, and begin to launch again.
    """

    title: str
    forward: Traffic
    backward: Traffic
    logit_bytes: float
    gradient_bytes: float
    optimizer_bytes: float
    reduction_width: int
    zero_stage: int
    gradient_memory: int
    cached_logit_bytes: float | None = None
    fused_attention: bool = False
    duplex: bool = True
    overlapped_slices: bool = False
    scatter_gather: bool = False
    interleaving: bool = False
    overlapped_replicas: bool = False
    kernels: int = 25
    exchange_seconds: float = 2e-4

    @property
    def dropout(self) -> bool:
        """Whether it always drops out, as the published runs of Megatron did."""
        return not self.fused_attention


# Forward, between: two LayerNorms read and write (8), two sums of residual, bias and dropout read two and write one
# and a mask (14). Within: bias of q, k, v (12), bias and GeLU (16), attention's output transposed (4). Scores: scale,
# mask and softmax in one (4), dropout (5). Backward reads the gradient as well, sums the biases' and adds the
# residual's.
_FORWARD = Traffic(between=22, within=32, scores=9)
_BACKWARD = Traffic(between=46, within=54, scores=11)
# To fp32, largest, difference, exponential, sum, quotient; backward the product and back to two bytes.
_LOGIT_BYTES = 52
# fp16: gradients to fp32, looked through, measured, clipped; Adam; weights written; sums cleared.
_MEGATRON_OPTIMIZER = 58

ENGINES = {
    EngineName.megatron_2021: Engine(
        title="Megatron-LM of 2021 (Narayanan et al. 2021)",
        forward=_FORWARD,
        backward=_BACKWARD,
        logit_bytes=_LOGIT_BYTES,
        # param_hook of megatron/model/distributed.py: the gradient is added to a buffer of two-byte elements.
        gradient_bytes=6,
        optimizer_bytes=_MEGATRON_OPTIMIZER,
        reduction_width=2,
        zero_stage=0,
        # In two bytes, and for the optimizer in four.
        gradient_memory=6,
        scatter_gather=True,
        interleaving=True,
        # --DDP-impl torch where there are no stages (the paper's scripts).
        overlapped_replicas=True,
    ),
    EngineName.megatron_2022: Engine(
        title="Megatron-LM of 2022 (Korthikanti et al. 2022)",
        forward=_FORWARD,
        backward=_BACKWARD,
        logit_bytes=_LOGIT_BYTES,
        # The weight's gradient is added by the matmul itself (--gradient-accumulation-fusion, February 2022).
        gradient_bytes=0,
        optimizer_bytes=_MEGATRON_OPTIMIZER,
        # That fusion is for fp32 sums alone (megatron/arguments.py).
        reduction_width=4,
        zero_stage=0,
        gradient_memory=4,
        # --async-tensor-model-parallel-allreduce, September 2021.
        overlapped_slices=True,
        scatter_gather=True,
        interleaving=True,
        overlapped_replicas=True,
    ),
    EngineName.deepspeed: Engine(
        title="Megatron's layers under DeepSpeed's pipeline (Smith et al. 2022)",
        forward=_FORWARD,
        backward=_BACKWARD,
        logit_bytes=_LOGIT_BYTES,
        # bf16_optimizer.py: autograd adds to a bf16 gradient (6), that is copied to fp32 (6), added to the fp32 sum
        # (12) and cleared (2).
        gradient_bytes=26,
        optimizer_bytes=44,
        reduction_width=4,
        zero_stage=1,
        # With the other 14 the paper's 20 bytes a parameter (Smith et al. 2022, section 2.1).
        gradient_memory=6,
        duplex=False,
    ),
    EngineName.mtnlg: Engine(
        title="this project",
        # No dropout in the sums (6 and 4 for the bias, twice), no bias apart within.
        forward=Traffic(between=28, within=20, scores=0),
        backward=Traffic(between=36, within=54, scores=0),
        # training/model/loss.py: the softmax in chunks, and the gradient with it; a CPU's cache holds what is fp32.
        logit_bytes=34,
        cached_logit_bytes=14,
        # immediate_grad_update: to fp32 (6), added to the fp32 sum (12).
        gradient_bytes=18,
        optimizer_bytes=44,
        reduction_width=4,
        zero_stage=1,
        # A bf16 gradient is freed when it is added.
        gradient_memory=4,
        fused_attention=True,
        duplex=False,
        kernels=30,
    ),
}
