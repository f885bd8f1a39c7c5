"""Every layout is the same training run, and the same as a plain PyTorch loop."""

from collections.abc import Callable

import pytest
import torch

from training.config import TrainConfig
from training.data.samples import SampleOrder, TokenStream, micro_batches
from training.engine import build_optimizer
from training.local_workers import run_local_workers
from training.metrics import read_metrics
from training.model.gpt import GPT
from training.schedule import learning_rate

LAYOUTS = [(1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 1, 2), (2, 2, 1), (2, 2, 2)]
STEPS = 10


def plain_loop(config: TrainConfig) -> list[tuple[float, float]]:
    """(loss, gradient norm) of each step from nothing but torch: no slicing, no pipeline, no DeepSpeed."""
    model = GPT(config.model, config.training.seed)
    optimizer = build_optimizer(model.parameters(), config.optimizer)
    stream = TokenStream(config.data.path / "train", config.model.sequence_length)
    order = SampleOrder(stream.num_samples, config.data.seed)
    batches = micro_batches(
        stream, order, start=0, micro_batch_size=config.training.global_batch_size, replica=0, replicas=1
    )
    history = []
    tokens_per_step = config.training.global_batch_size * config.model.sequence_length
    for step in range(1, STEPS + 1):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(config.optimizer, step * tokens_per_step)
        loss = model.loss(*next(batches))
        loss.backward()  # type: ignore[no-untyped-call]
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), config.optimizer.gradient_clipping)
        optimizer.step()
        optimizer.zero_grad()
        history.append((loss.item(), norm.item()))
    return history


def losses(config: TrainConfig, key: str = "loss") -> list[float]:
    return [line[key] for line in read_metrics(config.out) if key in line]


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: "tp{}-pp{}-dp{}".format(*layout))
def test_layout_equals_plain_loop(layout: tuple[int, int, int], make_train_config: Callable[..., TrainConfig]) -> None:
    config = make_train_config(*layout, steps=STEPS)
    expected = plain_loop(config)
    run_local_workers(config)
    assert losses(config) == pytest.approx([loss for loss, _ in expected], abs=1e-5, rel=0)
    assert losses(config, "gradient_norm") == pytest.approx([norm for _, norm in expected], rel=1e-4)
    assert expected[-1][0] < expected[0][0] - 0.1, "nothing was learnt, so the comparison would prove little"
