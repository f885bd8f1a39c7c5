"""Run under torchrun: a training step, then what this rank holds, as memory-RANK.json in the run folder."""

import gc
import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from foundation.config import load_config
from training.config import TrainConfig
from training.data.samples import ShuffledStream, TokenStream, micro_batches
from training.engine import build_engine
from training.worker import _initialise_process, _library_output_in


def held_bytes() -> int:
    """Bytes of every tensor that is alive, each storage once."""
    gc.collect()
    tensors = [thing for thing in gc.get_objects() if isinstance(thing, torch.Tensor)]
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values())


def main() -> None:
    config = load_config(TrainConfig, Path(sys.argv[1]))
    rank = int(os.environ["RANK"])
    with _library_output_in(config, rank):
        _initialise_process(int(os.environ["WORLD_SIZE"]))
        before = held_bytes()
        engine = build_engine(config, rank)
        stream = TokenStream(config.data.sources[0].path / "train", config.model.sequence_length)
        layout = config.layout
        batches = micro_batches(
            ShuffledStream(stream, 1),
            start=0,
            micro_batch_size=config.training.micro_batch_size,
            replica=layout.coordinate(rank).data,
            replicas=layout.data_parallel_size,
        )
        engine.train_batch(batches, config.training.global_batch_size, 1e-3, 0)
        parameters = sum(parameter.numel() for parameter in engine.deepspeed.module.parameters())
        held = held_bytes() - before
        dist.barrier()
    (config.out / f"memory-{rank}.json").write_text(json.dumps({"parameters": parameters, "held": held}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
