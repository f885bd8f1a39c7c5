"""The learning rate by tokens."""

from itertools import groupby
from pathlib import Path

import pytest

from foundation.config import load_config
from foundation.errors import UserError
from training.config import OptimizerConfig, TrainConfig
from training.schedule import batch_size, batch_sizes, learning_rate

PAPER = OptimizerConfig()


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        (500_000_000, 2.5e-5),  # half of the warm-up
        (1_000_000_000, 5e-5),  # the peak
        (170_500_000_000, 2.75e-5),  # half of the cosine
        (340_000_000_000, 5e-6),  # its end
        (400_000_000_000, 5e-6),  # and after
    ],
)
def test_warm_up_and_cosine(tokens: int, expected: float) -> None:
    assert learning_rate(PAPER, tokens) == pytest.approx(expected)


def test_it_never_rises_after_the_warm_up() -> None:
    rates = [learning_rate(PAPER, tokens) for tokens in range(10**9, 345 * 10**9, 10**9)]
    assert rates == sorted(rates, reverse=True)


def test_mt_nlg_stopped_before_the_minimum() -> None:
    assert 5e-6 < learning_rate(PAPER, 270_000_000_000) < 1.1e-5


@pytest.fixture(scope="module")
def paper_run() -> TrainConfig:
    return load_config(TrainConfig, Path("configs/train/mt-nlg-530b.yaml"))


def test_the_paper_s_ramp_is_14472_steps_and_the_run_80085(paper_run: TrainConfig) -> None:
    sizes = list(batch_sizes(paper_run))
    assert sizes[0] == 32
    assert sizes[-1] == 1920
    assert sizes == sorted(sizes)
    assert sum(size < 1920 for size in sizes) == 14_472
    assert len(sizes) == 80_085
    assert sum(sizes) * 2048 == pytest.approx(270e9, rel=1e-4)


def test_each_size_of_the_ramp_lasts_as_many_samples(paper_run: TrainConfig) -> None:
    consumed = {size: size * len(list(steps)) for size, steps in groupby(batch_sizes(paper_run)) if size < 1920}
    assert sorted(consumed) == list(range(32, 1920, 32))
    assert all(abs(samples - 99_311) <= size / 2 for size, samples in consumed.items())


def test_the_ramp_continues_from_any_position(paper_run: TrainConfig) -> None:
    sizes = list(batch_sizes(paper_run))
    for step in (0, 5000, 14_472, 80_000):
        assert list(batch_sizes(paper_run, sum(sizes[:step]))) == sizes[step:]
    assert batch_size(paper_run, 0) == 32


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("training.batch_ramp.increment=7", "training.batch_ramp.increment 7 is not divisible"),
        ("training.batch_ramp.start=1920", "training.batch_ramp does not reach training.global_batch_size 1920"),
        ("layout.data_parallel_size=10", "training.batch_ramp.start 32 is not divisible"),
    ],
)
def test_a_ramp_that_cannot_run_is_refused(override: str, message: str) -> None:
    config = load_config(TrainConfig, Path("configs/train/mt-nlg-530b.yaml"), [override])
    with pytest.raises(UserError, match=message):
        config.check()
