"""Learning rate and batch size as functions of how much was consumed."""

import math
from collections.abc import Iterator

from training.config import OptimizerConfig, TrainConfig


def learning_rate(optimizer: OptimizerConfig, tokens: int) -> float:
    """Linear warm-up to the peak, then a cosine to the minimum (Smith et al. 2022, section 3.1).

    `tokens` counts those consumed at the end of the step, so that the first step already moves.
    """
    if tokens < optimizer.warmup_tokens:
        return optimizer.learning_rate * tokens / optimizer.warmup_tokens
    decay = max(1, optimizer.decay_tokens - optimizer.warmup_tokens)
    progress = min(1.0, (tokens - optimizer.warmup_tokens) / decay)
    span = optimizer.learning_rate - optimizer.min_learning_rate
    return optimizer.min_learning_rate + span * 0.5 * (1.0 + math.cos(math.pi * progress))


def batch_size(config: TrainConfig, consumed_samples: int) -> int:
    """Samples of the next step: the ramp's stage that `consumed_samples` lies in, or the full batch.

    MT-NLG went from 32 to 1920 by 32 over 12 B tokens (Smith et al. 2022, section 3.1): 59 sizes, each for the
    whole number of steps nearest to an equal share of the ramp's samples, 14 472 steps in all.
    """
    full, ramp = config.training.global_batch_size, config.training.batch_ramp
    if ramp is None:
        return full
    sizes = range(ramp.start, full, ramp.increment)
    share = ramp.tokens / config.model.sequence_length / len(sizes)
    end = 0
    for size in sizes:
        end += max(1, round(share / size)) * size
        if consumed_samples < end:
            return size
    return full


def batch_sizes(config: TrainConfig, consumed_samples: int = 0) -> Iterator[int]:
    """The sizes of all steps from a position to the end of the run."""
    while consumed_samples * config.model.sequence_length < config.training.train_tokens:
        size = batch_size(config, consumed_samples)
        yield size
        consumed_samples += size


def total_steps(config: TrainConfig) -> int:
    """Optimizer steps of the whole run."""
    return sum(1 for _ in batch_sizes(config))
