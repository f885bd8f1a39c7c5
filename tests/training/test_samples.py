"""Samples: what they hold, their order, and that replicas share them out."""

from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch

from foundation.errors import UserError
from training.data.megatron_index import indexed_dataset
from training.data.samples import ShuffledStream, SpreadSamples, TokenStream, micro_batches


def test_a_sample_is_consecutive_tokens_as_megatron_reads_them(token_folder: Path) -> None:
    theirs = indexed_dataset().IndexedDataset(str(token_folder / "train"))
    tokens = np.concatenate([theirs[document] for document in range(len(theirs))])
    stream = TokenStream(token_folder / "train", 32)
    assert stream.num_samples == (len(tokens) - 1) // 32
    for number in (0, 1, 77, stream.num_samples - 1):
        assert stream[number].tolist() == tokens[number * 32 : number * 32 + 33].tolist()


def test_every_epoch_is_another_permutation(token_folder: Path) -> None:
    stream = TokenStream(token_folder / "train", 512)
    size = stream.num_samples
    order = ShuffledStream(stream, seed=3)
    first, second = [[order.place(epoch * size + i) for i in range(size)] for epoch in range(2)]
    assert sorted(first) == sorted(second) == list(range(size))
    assert first != second
    assert [ShuffledStream(stream, seed=3).place(size + i) for i in range(size)] == second
    assert [ShuffledStream(stream, seed=4).place(i) for i in range(size)] != first


@pytest.mark.parametrize(("replicas", "micro_batch_size"), [(1, 4), (2, 2), (4, 1), (2, 1)])
def test_replicas_share_a_global_batch_out(token_folder: Path, replicas: int, micro_batch_size: int) -> None:
    stream = TokenStream(token_folder / "train", 32)
    order = ShuffledStream(stream, seed=3)
    rounds = 8 // (replicas * micro_batch_size)
    rows: list[torch.Tensor] = []
    for replica in range(replicas):
        batches = micro_batches(order, start=24, micro_batch_size=micro_batch_size, replica=replica, replicas=replicas)
        for inputs, targets in islice(batches, rounds):
            assert torch.equal(inputs[:, 1:], targets[:, :-1])
            rows.extend(inputs)
    expected = [order[number][:-1].tolist() for number in range(24, 32)]
    assert sorted(row.tolist() for row in rows) == sorted(expected)


def test_a_missing_or_short_index_is_refused(token_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no token index at .*nowhere"):
        TokenStream(tmp_path / "nowhere", 32)
    with pytest.raises(UserError, match="less than one sample of 500000"):
        TokenStream(token_folder / "train", 500_000)


def test_validation_is_spread_over_every_source(token_folder: Path) -> None:
    streams = [TokenStream(token_folder / split, 32) for split in ("validation", "train")]
    total = sum(stream.num_samples for stream in streams)
    spread = SpreadSamples(streams, total)
    assert spread[0].tolist() == streams[0][0].tolist()
    assert spread[streams[0].num_samples].tolist() == streams[1][0].tolist()
    assert spread[total - 1].tolist() == streams[1][streams[1].num_samples - 1].tolist()
    sparse = SpreadSamples(streams, 10)
    assert [sparse[i].tolist() for i in range(10)] == [spread[i * total // 10].tolist() for i in range(10)]
