"""What vLLM 0.32's workers lack; mixed into their class, as its engine argument `worker_extension_cls` says."""

from typing import Any

STAGE_BUFFERS = "foundation.vllm_worker.StageBuffers"


class StageBuffers:
    """Receive buffers of pipeline stages, which vLLM's CPU workers make only when they compile the model."""

    model_runner: Any

    def make_stage_buffers(self) -> None:
        """Allocate what a later stage receives from the one before it. To be called before the first request."""
        from vllm.distributed.parallel_state import get_pp_group

        runner = self.model_runner
        if not get_pp_group().is_first_rank and runner.intermediate_tensors is None:
            runner.intermediate_tensors = runner.model.make_empty_intermediate_tensors(
                batch_size=runner.max_num_tokens, dtype=runner.model_config.dtype, device=runner.device
            )
