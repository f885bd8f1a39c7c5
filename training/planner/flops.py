"""Floating-point operations of a training step, by the papers' formulas, and the throughput they give."""

from training.config import TrainConfig
from training.model.config import ModelConfig, Recomputation


def model_flops(model: ModelConfig, padded_vocab_size: int, batch_size: int) -> float:
    """FLOPs that a step on `batch_size` samples needs, matmuls only (Korthikanti et al. 2022, appendix A).

    72 B s l h^2 (1 + s / (6 h) + V / (12 l h)): forward once, backward twice that, whatever is computed again.
    """
    return _flops(model, padded_vocab_size, batch_size, "none")


def hardware_flops(
    model: ModelConfig, padded_vocab_size: int, batch_size: int, recomputation: Recomputation = "full"
) -> float:
    """FLOPs that a step performs, those of recomputation included: what MT-NLG's TFLOP/s count.

    With full recomputation Narayanan et al. 2021, equation 3: 96 B s l h^2 (1 + s / (6 h) + V / (16 l h)).
    With selective recomputation Korthikanti et al. 2022, appendix A: s / (3 h) in place of `model_flops`' s / (6 h).
    """
    return _flops(model, padded_vocab_size, batch_size, recomputation)


def throughput(config: TrainConfig, batch_size: int, seconds: float) -> dict[str, float]:
    """What a step of `batch_size` samples in `seconds` comes to, under the names of metrics.jsonl.

    `tokens_per_second` of the whole run; `tflops_per_device`, 10^12 FLOPs performed a second and rank; and, where
    `training.peak_tflops` is stated, `model_flops_utilisation`, the share of the peak that the model's FLOPs are
    (Chowdhery et al. 2022, section 4.1: recomputation does not count).
    """
    model, training = config.model, config.training
    vocab = model.padded_vocab_size(config.layout.tensor_parallel_size)
    rank_seconds = seconds * config.layout.world_size
    performed = hardware_flops(model, vocab, batch_size, training.recomputation)
    values = {
        "tokens_per_second": batch_size * model.sequence_length / seconds,
        "tflops_per_device": performed / rank_seconds / 1e12,
    }
    if training.peak_tflops is not None:
        needed = model_flops(model, vocab, batch_size)
        values["model_flops_utilisation"] = needed / rank_seconds / (training.peak_tflops * 1e12)
    return values


def _flops(model: ModelConfig, padded_vocab_size: int, batch_size: int, recomputation: Recomputation) -> float:
    layers, h, s = model.num_layers, model.hidden_size, model.sequence_length
    tokens = batch_size * s
    head = 6 * tokens * h * padded_vocab_size
    if recomputation == "full":
        return 96 * tokens * layers * h**2 * (1 + s / (6 * h)) + head
    attention = s / (3 * h) if recomputation == "selective" else s / (6 * h)
    return 72 * tokens * layers * h**2 * (1 + attention) + head
