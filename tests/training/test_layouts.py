"""Every layout is the same training run, and the same as a plain PyTorch loop."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch

from training.config import TrainConfig
from training.data.samples import ShuffledStream, TokenStream, micro_batches
from training.engine import build_optimizer
from training.local_workers import run_local_workers
from training.metrics import read_metrics
from training.model.config import Recomputation
from training.model.gpt import GPT
from training.schedule import learning_rate

STEPS = 20

History = list[tuple[float, float]]


@dataclass(frozen=True)
class Case:
    """One way to run: sizes of tensor, pipeline and data parallelism, and what is switched on."""

    layout: tuple[int, int, int]
    sequence: bool = False
    recomputation: Recomputation = "none"
    dropout: float = 0.0
    micro_batch_size: int = 2

    def __str__(self) -> str:
        words = ["tp{}-pp{}-dp{}".format(*self.layout), f"micro{self.micro_batch_size}"]
        words += ["sequence"] * self.sequence
        words += [self.recomputation] * (self.recomputation != "none")
        words += ["dropout"] * (self.dropout > 0)
        return "-".join(words)


CASES = [
    Case((1, 1, 1)),
    Case((2, 1, 1), micro_batch_size=4),
    Case((1, 2, 1)),
    Case((1, 1, 2)),
    Case((2, 2, 1)),
    Case((2, 1, 1), sequence=True),
    Case((4, 1, 1), sequence=True, micro_batch_size=8),
    Case((1, 2, 1), recomputation="full", micro_batch_size=4),
    Case((2, 2, 1), sequence=True, recomputation="selective", micro_batch_size=4),
    Case((1, 1, 1), recomputation="full", dropout=0.1, micro_batch_size=1),
    Case((2, 1, 1), dropout=0.1, micro_batch_size=8),
    Case((1, 2, 2), recomputation="selective", dropout=0.1),
    Case((2, 1, 2), sequence=True, recomputation="full", dropout=0.1, micro_batch_size=4),
    Case((2, 2, 2), sequence=True, recomputation="full", dropout=0.1),
]


@pytest.fixture
def make_config(make_train_config: Callable[..., TrainConfig]) -> Callable[[Case], TrainConfig]:
    """The configuration of a case: two layers, so that collectives do not take minutes on two cores."""

    def make(case: Case) -> TrainConfig:
        config = make_train_config(
            *case.layout, steps=STEPS, micro_batch_size=case.micro_batch_size, recomputation=case.recomputation
        )
        model = {"num_layers": 2, "attention_dropout": case.dropout, "hidden_dropout": case.dropout}
        return config.model_copy(
            update={
                "model": config.model.model_copy(update=model),
                "layout": config.layout.model_copy(update={"sequence_parallel": case.sequence}),
            }
        )

    return make


@pytest.fixture(scope="module")
def plain_history() -> Callable[[TrainConfig], History]:
    """The plain loop, run once for each model."""
    known: dict[str, History] = {}

    def history(config: TrainConfig) -> History:
        key = config.model.model_dump_json()
        if key not in known:
            known[key] = plain_loop(config)
        return known[key]

    return history


def plain_loop(config: TrainConfig) -> History:
    """(loss, gradient norm) of each step from nothing but torch: no slicing, no pipeline, no DeepSpeed."""
    model = GPT(config.model, config.training.seed)
    optimizer = build_optimizer(model.parameters(), config.optimizer)
    stream = TokenStream(config.data.sources[0].path / "train", config.model.sequence_length)
    order = ShuffledStream(stream, config.data.seed)
    size = config.training.global_batch_size
    batches = micro_batches(order, start=0, micro_batch_size=size, replica=0, replicas=1)
    history = []
    for step in range(1, STEPS + 1):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(config.optimizer, step * size * config.model.sequence_length)
        loss = model.loss(*next(batches), first_sample=(step - 1) * size)
        loss.backward()  # type: ignore[no-untyped-call]
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), config.optimizer.gradient_clipping)
        optimizer.step()
        optimizer.zero_grad()
        history.append((loss.item(), norm.item()))
    return history


def series(config: TrainConfig, key: str) -> list[float]:
    return [line[key] for line in read_metrics(config.out) if key in line]


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=str)
def test_layout_equals_plain_loop(
    case: Case, make_config: Callable[[Case], TrainConfig], plain_history: Callable[[TrainConfig], History]
) -> None:
    config = make_config(case)
    expected = plain_history(config)
    run_local_workers(config)
    assert series(config, "loss") == pytest.approx([loss for loss, _ in expected], abs=1e-5, rel=0)
    assert series(config, "gradient_norm") == pytest.approx([norm for _, norm in expected], rel=1e-4)
    assert expected[-1][0] < expected[0][0] - 0.1, "nothing was learnt, so the comparison would prove little"


def test_dropout_changes_the_losses(
    make_config: Callable[[Case], TrainConfig], plain_history: Callable[[TrainConfig], History]
) -> None:
    with_dropout, without = (plain_history(make_config(Case((1, 1, 1), dropout=rate))) for rate in (0.1, 0.0))
    assert with_dropout[0][0] != pytest.approx(without[0][0], abs=1e-4)
