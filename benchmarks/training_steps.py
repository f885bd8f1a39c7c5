"""Training steps to compare, each on one batch of token ids: this project's and Hugging Face's, in one process."""

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from training.config import OptimizerConfig, TrainConfig
from training.engine import build_engine, build_optimizer, compile_blocks
from training.model.config import ModelConfig
from training.model.gpt import GPT

# One optimizer step on token ids [batch, sequence + 1].
Step = Callable[[torch.Tensor], None]

_OPTIMIZER = OptimizerConfig()


@dataclass(frozen=True)
class Shape:
    """A model and the batch of one step."""

    name: str
    model: ModelConfig
    batch_size: int

    @property
    def tokens(self) -> int:
        """Tokens a step."""
        return self.batch_size * self.model.sequence_length

    @property
    def flops(self) -> float:
        """Model FLOPs a step: 6 a weight of a matmul and token, and attention's own, of which causality needs half.

        Narayanan et al. 2021, eq. 3, without recomputation; the vocabulary unpadded.
        """
        layers, hidden = self.model.num_layers, self.model.hidden_size
        weights = 12 * layers * hidden**2 + self.model.vocab_size * hidden
        return 6.0 * self.tokens * (weights + layers * hidden * self.model.sequence_length)


def bare_step(shape: Shape, device: torch.device, *, compiled: bool) -> Step:
    """This project's layers in a plain loop: bf16 weights and gradients, fp32 masters, clipping, fused AdamW."""
    model = GPT(shape.model).to(device)
    if compiled:
        compile_blocks(model)
    masters: list[nn.Parameter] = [nn.Parameter(parameter.detach().clone()) for parameter in model.parameters()]
    optimizer = build_optimizer(masters, _OPTIMIZER)
    parameters: list[torch.Tensor] = list(model.to(torch.bfloat16).parameters())

    def step(tokens: torch.Tensor) -> None:
        model.loss(tokens[:, :-1], tokens[:, 1:]).backward()  # type: ignore[no-untyped-call]
        for parameter, master in zip(parameters, masters, strict=True):
            master.grad, parameter.grad = parameter.grad.float(), None  # type: ignore[union-attr]
        torch.nn.utils.clip_grad_norm_(masters, _OPTIMIZER.gradient_clipping)
        optimizer.step()
        with torch.no_grad():
            torch._foreach_copy_(parameters, list[torch.Tensor](masters))

    return step


def engine_step(shape: Shape, *, compiled: bool) -> Step:
    """This project's engine, DeepSpeed's pipeline with ZeRO-1, on one rank: the same recipe as `bare_step`."""
    join_alone()
    config = TrainConfig.model_validate(
        {
            "model": shape.model,
            "data": {"path": "unused"},
            "training": {
                "train_tokens": shape.tokens,
                "global_batch_size": shape.batch_size,
                "micro_batch_size": shape.batch_size,
                "compile": compiled,
            },
            "out": "unused",
        }
    )
    engine = build_engine(config, rank=0)

    def step(tokens: torch.Tensor) -> None:
        batch = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
        engine.train_batch(iter([batch]), shape.batch_size, _OPTIMIZER.learning_rate, first_sample=0)

    return step


def hugging_face_step(shape: Shape, device: torch.device, *, autocast: bool, compiled: bool) -> Step:
    """GPT2LMHeadModel with SDPA, clipping and fused AdamW: fp32 weights under autocast, or bf16 weights."""
    from transformers import GPT2Config, GPT2LMHeadModel

    model = shape.model
    config = GPT2Config(
        vocab_size=model.vocab_size,
        n_positions=model.sequence_length,
        n_embd=model.hidden_size,
        n_layer=model.num_layers,
        n_head=model.num_attention_heads,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        use_cache=False,
        attn_implementation="sdpa",
    )
    gpt2: Any = GPT2LMHeadModel(config).to(device, torch.float32 if autocast else torch.bfloat16).train()
    parameters = list(gpt2.parameters())
    optimizer = build_optimizer(parameters, _OPTIMIZER)
    run = torch.compile(gpt2) if compiled else gpt2

    def step(tokens: torch.Tensor) -> None:
        with torch.autocast(device.type, torch.bfloat16, enabled=autocast):
            loss = run(input_ids=tokens[:, :-1], labels=tokens[:, :-1]).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, _OPTIMIZER.gradient_clipping)
        optimizer.step()
        optimizer.zero_grad()

    return step


def join_alone() -> None:
    """Be the one rank of a job, as the launcher would arrange it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    import deepspeed
    from deepspeed.utils import logger

    logger.setLevel("ERROR")
    # Only inference uses it, and it takes a compiler and a minute.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    deepspeed.init_distributed(backend, auto_mpi_discovery=False, verbose=False)
