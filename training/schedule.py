"""The learning rate as a function of tokens consumed."""

import math

from training.config import OptimizerConfig


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
