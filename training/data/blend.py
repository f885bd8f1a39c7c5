"""Several sources blended by weight, so that every stretch of the run holds their shares.

MT-NLG drew heterogeneous batches from 15 datasets by weight (Smith et al. 2022, section 3.2). The choice is
Megatron's own: the next sample comes from the source that is furthest behind its share.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from foundation.files import fsync_folder, write_json
from training.config import TrainConfig
from training.data.megatron_index import blending_helpers
from training.data.samples import Samples, ShuffledStream, SpreadSamples, Tokens, TokenStream, TooFewTokensError
from training.schedule import batch_sizes


class BlendedStreams:
    """Streams blended: `sources[n]` says which one sample n is from, `places[n]` which of its samples it is."""

    def __init__(self, streams: Sequence[ShuffledStream], sources: Any, places: Any) -> None:
        self._streams = streams
        self._sources = sources
        self._places = places

    def __getitem__(self, number: int) -> Tokens:
        """Sample `number` of the run."""
        return self._streams[int(self._sources[number])][int(self._places[number])]


def training_samples(config: TrainConfig, *, build: bool) -> Samples:
    """The run's training samples by number.

    A blend's choice is written to the run folder once, by the process that is told to `build`, and memory-mapped
    by all: MT-NLG's 132 M samples take 1.3 GB, shared by the ranks of a node.
    """
    streams = [
        ShuffledStream(TokenStream(source.path / "train", config.model.sequence_length), config.data.seed + place)
        for place, source in enumerate(config.data.sources)
    ]
    if len(streams) == 1:
        return streams[0]
    folder = _blend_folder(config)
    if build and not (folder / "blend.json").is_file():
        _build_blend(folder, config)
    sources, places = (np.load(folder / f"{name}.npy", mmap_mode="r") for name in ("sources", "places"))
    return BlendedStreams(streams, sources, places)


def validation_samples(config: TrainConfig, count: int) -> Samples:
    """`count` validation samples, spread evenly over all sources."""
    return SpreadSamples(_validation_streams(config), count)


def num_validation_samples(config: TrainConfig) -> int:
    """How many validation samples there are in all sources."""
    return sum(stream.num_samples for stream in _validation_streams(config))


def _validation_streams(config: TrainConfig) -> list[TokenStream]:
    """Of all sources but the small ones of a blend, of which less than a sample is held out."""
    streams, refused = [], []
    for source in config.data.sources:
        try:
            streams.append(TokenStream(source.path / "validation", config.model.sequence_length))
        except TooFewTokensError as error:
            refused.append(error)
    if not streams:
        raise refused[0]
    return streams


def blend_choice(weights: Sequence[float], count: int) -> tuple[Any, Any]:
    """For each of `count` samples: its source, int16, and which of that source's samples it is, int64."""
    shares = np.array(weights, dtype=np.float64)
    sources, places = np.zeros(count, dtype=np.int16), np.zeros(count, dtype=np.int64)
    blending_helpers().build_blending_indices(sources, places, shares / shares.sum(), len(shares), count, False)
    return sources, places


def _blend_folder(config: TrainConfig) -> Path:
    """Named after what decides it, so that another blend never meets an old choice."""
    key = repr(([source.weight for source in config.data.sources], _num_samples(config)))
    return config.out / "blend" / hashlib.sha256(key.encode()).hexdigest()[:16]


def _num_samples(config: TrainConfig) -> int:
    return sum(batch_sizes(config))


def _build_blend(folder: Path, config: TrainConfig) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    weights = [source.weight for source in config.data.sources]
    sources, places = blend_choice(weights, _num_samples(config))
    np.save(folder / "sources.npy", sources)
    np.save(folder / "places.npy", places)
    fsync_folder(folder)
    drawn = np.bincount(sources, minlength=len(weights)).tolist()
    about = [
        {"path": str(source.path), "weight": source.weight, "samples": count}
        for source, count in zip(config.data.sources, drawn, strict=True)
    ]
    write_json(folder / "blend.json", about)
