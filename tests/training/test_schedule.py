"""The learning rate by tokens."""

import pytest

from training.config import OptimizerConfig
from training.schedule import learning_rate

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
