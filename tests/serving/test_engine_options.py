"""vLLM's own options: what passes through, what is refused in one line; and what stands in the environment."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from foundation.errors import UserError
from foundation.vllm_environment import default_environment
from mtnlg import app
from serving.engine_options import parse_options
from serving.model_folder import ModelFolder

SLICES = ModelFolder(Path("model"), "m", 2, True, "float32")
WHOLE = ModelFolder(Path("model"), "m", 2, False, "bfloat16", 2, 3)


def test_threads_are_shared_between_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(16)))
    assert default_environment(cpu=True, workers=4)["OMP_NUM_THREADS"] == "4"
    assert default_environment(cpu=True, workers=4, spare_cores=1)["OMP_NUM_THREADS"] == "3"
    assert default_environment(cpu=True, workers=64, spare_cores=1)["OMP_NUM_THREADS"] == "1"
    assert "TORCH_COMPILE_DISABLE" not in default_environment(cpu=True, workers=1, compiled=True)
    assert "OMP_NUM_THREADS" not in default_environment(cpu=False, workers=1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--headless", "--check", "hello"], "--headless runs workers, which answer no HTTP"),
        (["--pipeline-parallel-size", "0"], "Invalid value for '--pipeline-parallel-size'"),
        (["--data-parallel-size", "two"], "Invalid value for '--data-parallel-size'"),
    ],
)
def test_wrong_values_are_refused_at_once(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["serve", "model", *arguments], env={"COLUMNS": "200", "NO_COLOR": "1"})
    assert result.exit_code != 0
    assert message in result.output + str(result.exception)


@pytest.mark.slow
def test_sizes_and_any_other_option_pass_through() -> None:
    pytest.importorskip("vllm")
    given = ["--quantization", "fp8", "--max-model-len=512", "--nnodes", "2", "--node-rank", "1", "--headless"]
    given += ["--master-addr", "10.0.0.1", "--distributed-executor-backend", "mp"]
    options = parse_options(WHOLE, given, cpu=True)
    assert (options.tensor_parallel_size, options.pipeline_parallel_size, options.data_parallel_size) == (2, 2, 3)
    assert (options.quantization, options.max_model_len, options.headless) == ("fp8", 512, True)
    assert (options.nnodes, options.node_rank, options.master_addr) == (2, 1, "10.0.0.1")
    assert options.worker_extension_cls == "foundation.vllm_worker.StageBuffers"
    assert parse_options(WHOLE, ["--distributed-executor-backend", "ray"], cpu=False).worker_extension_cls == ""
    assert parse_options(SLICES, [], cpu=True).load_format == "sharded_state"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "given", "message"),
    [
        (WHOLE, ["-tp", "4"], "say it as --tensor-parallel-size 4 itself"),
        (WHOLE, ["--nnodes", "2", "--node-rank", "1"], "--node-rank 1: only the first node answers HTTP"),
        (SLICES, ["--load-format", "auto"], "leave out --load-format auto"),
        (SLICES, ["--quantization", "fp8"], "cannot be quantised while they are loaded"),
        (WHOLE, ["--ssl-keyfile", "a"], "--ssl-keyfile is not supported"),
        (WHOLE, ["--data-parallel-multi-port-external-lb"], "--data-parallel-multi-port-external-lb is not supported"),
        (WHOLE, ["--no-such-option"], "vLLM: .*no-such-option"),
        (WHOLE, ["another"], "'another' is not supported"),
    ],
)
def test_what_does_not_fit_is_one_line(model: ModelFolder, given: list[str], message: str) -> None:
    pytest.importorskip("vllm")
    with pytest.raises(UserError, match=message) as error:
        parse_options(model, given, cpu=True)
    assert "\n" not in str(error.value)
