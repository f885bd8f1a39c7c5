"""Dropout's masks: their rate, their independence, and what they do and do not depend on."""

import math
from collections.abc import Callable

import pytest
import torch

from training.config import TrainConfig
from training.local_workers import run_local_workers
from training.metrics import read_metrics
from training.model.config import ModelConfig
from training.model.dropout import Dropout, SampleClock, dropped_elements
from training.model.gpt import GPT

MODEL = ModelConfig(
    num_layers=2,
    hidden_size=32,
    num_attention_heads=4,
    sequence_length=16,
    vocab_size=100,
    attention_dropout=0.1,
    hidden_dropout=0.1,
)

KEY = -6280000165099437323
ELEMENTS = [1, 1, 1, 1, 0, 1, 0, 1, 0, 0, 0, 0, 1, 1, 1, 1, 0, 0, 1, 0, 0, 0, 1, 1]


def mask(key: int, samples: range, rows: range, width: int, rate: float) -> torch.Tensor:
    return dropped_elements(key, torch.tensor(samples), torch.tensor(rows).unsqueeze(1), width, rate)


@pytest.mark.parametrize("rate", [0.0, 0.01, 0.1, 0.5, 0.999])
def test_the_rate_is_kept(rate: float) -> None:
    dropped = mask(7, range(8), range(128), 512, rate).float()
    error = math.sqrt(rate * (1 - rate) / dropped.numel())
    assert dropped.mean().item() == pytest.approx(rate, abs=4 * error)


@pytest.mark.parametrize("dimension", [0, 1, 2])
def test_neighbours_are_independent(dimension: int) -> None:
    dropped = (mask(-11, range(8), range(256), 256, 0.1).double() - 0.1) / math.sqrt(0.1 * 0.9)
    length = dropped.shape[dimension]
    products = dropped.narrow(dimension, 1, length - 1) * dropped.narrow(dimension, 0, length - 1)
    assert abs(products.sum().item()) < 4 * math.sqrt(products.numel())


def test_sites_layers_and_seeds_drop_different_elements() -> None:
    keys = {Dropout.at(0.1, seed, layer, site).key for seed in (1, 2) for layer in (3, 4) for site in ("a", "b")}
    assert len(keys) == 8
    masks = {tuple(mask(key, range(1), range(8), 64, 0.5).flatten().tolist()) for key in keys}
    assert len(masks) == 8


def test_a_part_has_the_whole_s_mask() -> None:
    whole = mask(5, range(100, 108), range(64), 32, 0.3)
    assert torch.equal(mask(5, range(104, 106), range(16, 32), 32, 0.3), whole[16:32, 4:6])


def test_what_is_left_grows_to_match() -> None:
    dropout = Dropout.at(0.25, 1, 2, "here")
    inputs = torch.ones(64, 4, 256, requires_grad=True)
    outputs = dropout(inputs, torch.arange(4), torch.arange(64).unsqueeze(1))
    outputs.sum().backward()  # type: ignore[no-untyped-call]
    assert set(outputs.unique().tolist()) == {0.0, torch.tensor(1 / 0.75).item()}
    assert torch.equal(inputs.grad, outputs.detach()), "backward drops what forward did"
    assert outputs.mean().item() == pytest.approx(1.0, abs=0.01)


def test_the_mask_is_the_one_it_always_was() -> None:
    """A run that is continued by a later version drops what it would have dropped."""
    assert Dropout.at(0.1, 1234, 2, "attention").key == KEY
    assert mask(KEY, range(3, 4), range(5, 6), 24, 0.5).int().flatten().tolist() == ELEMENTS


def test_the_clock_numbers_micro_batches_as_the_data_do() -> None:
    clocks = [SampleClock(micro_batch_size=2, replica=replica, replicas=3) for replica in range(3)]
    seen = []
    for first_sample in (0, 12, 100):
        for clock in clocks:
            clock.start_step(first_sample)
        for _ in range(2):
            for clock in clocks:
                clock.next_micro_batch()
                seen.append(clock.first_sample)
    assert seen == [*range(0, 24, 2), *range(100, 112, 2)]


def test_evaluation_drops_nothing() -> None:
    tokens = torch.randint(0, 100, (2, 16), generator=torch.Generator().manual_seed(1))
    without = GPT(MODEL.model_copy(update={"attention_dropout": 0.0, "hidden_dropout": 0.0}))
    gpt = GPT(MODEL)
    assert not torch.allclose(gpt(tokens), without(tokens))
    assert torch.equal(gpt.eval()(tokens), without(tokens))


def test_attention_with_a_vanishing_rate_is_the_fused_kernel_s() -> None:
    tokens = torch.randint(0, 100, (2, 16), generator=torch.Generator().manual_seed(1))
    explicit = GPT(MODEL.model_copy(update={"attention_dropout": 1e-12, "hidden_dropout": 0.0}))
    torch.testing.assert_close(explicit(tokens), explicit.eval()(tokens), atol=1e-5, rtol=1e-4)


def test_models_without_dropout_are_written_as_before() -> None:
    written = MODEL.model_copy(update={"attention_dropout": 0.0, "hidden_dropout": 0.0}).model_dump(mode="json")
    assert not {"attention_dropout", "hidden_dropout"} & set(written)
    assert ModelConfig.model_validate(MODEL.model_dump(mode="json")) == MODEL


@pytest.mark.slow
def test_a_run_continued_in_another_layout_drops_the_same(make_train_config: Callable[..., TrainConfig]) -> None:
    def run(*layout: int, steps: int, name: str, **options: object) -> list[float]:
        config = make_train_config(*layout, steps=steps, name=name, **options)
        rates = {"num_layers": 2, "attention_dropout": 0.1, "hidden_dropout": 0.1}
        config = config.model_copy(update={"model": config.model.model_copy(update=rates)})
        run_local_workers(config)
        return [line["loss"] for line in read_metrics(config.out) if "loss" in line]

    whole = run(1, 1, 1, steps=6, name="whole")
    run(2, 1, 1, steps=3, name="parts")
    parts = run(1, 2, 1, steps=6, name="parts", micro_batch_size=4)
    assert parts == pytest.approx(whole, abs=1e-5, rel=0)
