"""Blending by weight: shares kept in every stretch, and nothing repeated or left out whatever the layout."""

import shutil
from collections import Counter
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from foundation.errors import UserError
from foundation.files import read_json, write_json
from tests.conftest import write_token_folder
from training.config import TrainConfig
from training.data.blend import blend_choice, num_validation_samples, training_samples, validation_samples
from training.data.samples import TokenStream, micro_batches
from training.data.token_writer import TokenWriter
from training.launch import check_data

PAPER = [14.336, 19.336, 5.689, 2.897, 4.771, 0.873, 1.007, 0.208, 9.446, 1.359, 1.588, 13.017, 15.652, 8.962, 0.859]
MakeConfig = Callable[..., TrainConfig]


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folders = [tmp_path_factory.mktemp("source") / "data" for _ in range(3)]
    for seed, folder in enumerate(folders):
        write_token_folder(folder, 300, tokens=8000, seed=seed)
    return folders


@pytest.fixture
def blended(sources: list[Path], make_train_config: MakeConfig) -> Callable[..., TrainConfig]:
    def make(tp: int, pp: int, dp: int, micro_batch_size: int = 2) -> TrainConfig:
        config = make_train_config(tp, pp, dp, steps=60, micro_batch_size=micro_batch_size, name="run")
        blend = [{"path": str(path), "weight": weight} for path, weight in zip(sources, (5, 3, 2), strict=True)]
        return TrainConfig.model_validate({**config.model_dump(), "data": {"blend": blend, "seed": 7}})

    return make


def test_every_stretch_holds_the_paper_s_shares() -> None:
    chosen, places = blend_choice(PAPER, 200_000)
    shares = np.array(PAPER) / sum(PAPER)
    for stop in (1920, 20_000, 200_000):
        counts = np.bincount(chosen[:stop], minlength=15)
        assert np.abs(counts - shares * stop).max() < 2.0
    for source in range(15):
        assert places[chosen == source].tolist() == list(range(int((chosen == source).sum())))


def read(config: TrainConfig, start: int, count: int) -> list[list[int]]:
    """The samples numbered from `start` on, as all replicas of the layout together read them."""
    samples = training_samples(config, build=True)
    size, replicas = config.training.micro_batch_size, config.layout.data_parallel_size
    rows = []
    for replica in range(replicas):
        batches = micro_batches(samples, start=start, micro_batch_size=size, replica=replica, replicas=replicas)
        rows.extend(row.tolist() for inputs, _ in islice(batches, count // (size * replicas)) for row in inputs)
    return rows


def test_changing_the_layout_midway_repeats_and_skips_nothing(blended: Callable[..., TrainConfig]) -> None:
    whole = read(blended(1, 1, 1), 0, 240)
    parts = [
        *read(blended(2, 2, 1), 0, 80),
        *read(blended(1, 1, 4, micro_batch_size=1), 80, 64),
        *read(blended(1, 2, 2), 144, 96),
    ]
    assert Counter(map(tuple, parts)) == Counter(map(tuple, whole))
    assert len(set(map(tuple, whole))) == 240


def test_the_choice_is_written_once_and_kept(blended: Callable[..., TrainConfig]) -> None:
    config = blended(1, 1, 1)
    first = training_samples(config, build=True)[17].tolist()
    files = {path: path.stat().st_mtime_ns for path in (config.out / "blend").rglob("*.npy")}
    assert len(files) == 2
    assert training_samples(config, build=True)[17].tolist() == first
    assert {path: path.stat().st_mtime_ns for path in files} == files


def test_validation_takes_from_every_source(blended: Callable[..., TrainConfig], sources: list[Path]) -> None:
    spread = validation_samples(blended(1, 1, 1), 30)
    rows = {tuple(spread[number].tolist()) for number in range(30)}
    for path in sources:
        stream = TokenStream(path / "validation", 32)
        assert rows & {tuple(stream[number].tolist()) for number in range(stream.num_samples)}


@pytest.mark.parametrize(
    ("held_out", "refusal"),
    [([np.arange(20)], "validation holds 20 tokens, less than one sample"), ([], "validation holds no tokens")],
)
def test_a_source_without_a_validation_sample_is_passed_over(
    held_out: list[Any], refusal: str, blended: Callable[..., TrainConfig], sources: list[Path], tmp_path: Path
) -> None:
    small = tmp_path / "small"
    shutil.copytree(sources[0], small)
    with TokenWriter(small / "validation", np.uint16) as writer:
        writer.add(held_out)
    config = blended(1, 1, 1)

    def of(*paths: Path) -> TrainConfig:
        return TrainConfig.model_validate(
            {**config.model_dump(), "data": {"blend": [{"path": path} for path in paths]}}
        )

    alone = num_validation_samples(of(sources[1]))
    assert num_validation_samples(of(small, sources[1])) == alone > 0
    assert (validation_samples(of(small, sources[1]), 1)[0] == validation_samples(of(sources[1]), 1)[0]).all()
    with pytest.raises(UserError, match=refusal):
        num_validation_samples(of(small))
    (small / "validation.idx").unlink()
    with pytest.raises(UserError, match="no token index"):
        num_validation_samples(of(small, sources[1]))


def test_one_source_or_several_and_not_both(token_folder: Path, make_train_config: MakeConfig) -> None:
    values = make_train_config().model_dump()
    for data in ({}, {"path": token_folder, "blend": [{"path": token_folder}]}):
        with pytest.raises(ValueError, match="give either path"):
            TrainConfig.model_validate({**values, "data": data})


def test_sources_of_different_tokenizers_are_refused(
    blended: Callable[..., TrainConfig], sources: list[Path], tmp_path: Path
) -> None:
    check_data(blended(1, 1, 1))
    other = tmp_path / "other"
    write_token_folder(other, 300, tokens=2000)
    manifest = read_json(other / "manifest.json")
    manifest["files"]["tokenizer/vocab.json"]["sha256"] = "0" * 64
    write_json(other / "manifest.json", manifest)
    config = blended(1, 1, 1)
    blend = [{"path": sources[0]}, {"path": other}]
    with pytest.raises(UserError, match="tokenised with another vocabulary"):
        check_data(TrainConfig.model_validate({**config.model_dump(), "data": {"blend": blend}}))
