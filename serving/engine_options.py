"""Which vLLM there is, what it reads from the environment, and its options."""

import argparse
import os
import warnings
from collections.abc import Sequence
from typing import NoReturn

from foundation.errors import UserError, one_line
from foundation.vllm_environment import default_environment, installed_vllm
from foundation.vllm_worker import STAGE_BUFFERS
from serving.model_folder import ModelFolder

# Options of `vllm serve` that belong to a server of its own; ignoring them silently would be worse.
_UNSUPPORTED = (
    "uds",
    "ssl_keyfile",
    "ssl_certfile",
    "api_server_count",
    "grpc",
    "trust_remote_code",
    "data_parallel_multi_port_external_lb",
)


def engine_version() -> tuple[str, bool]:
    """The installed engine's version and whether it computes on the CPU. Raises UserError when there is none."""
    found = installed_vllm()
    if found is None:
        raise UserError(
            "no inference engine is installed: pip install 'mtnlg[serve,engine-cpu]', or engine-gpu with a GPU"
        )
    return found.version, found.cpu


def silence_warnings() -> None:
    """Keep vLLM's and Python's own warnings off the terminal; before the first other process is started."""
    os.environ.setdefault(
        "PYTHONWARNINGS", "ignore::FutureWarning,ignore::UserWarning:multiprocessing.resource_tracker"
    )
    warnings.filterwarnings("ignore", category=FutureWarning, module="vllm")


def prepare_environment(workers: int, given: Sequence[str], *, cpu: bool) -> None:
    """Set what vLLM reads from the environment, before it is imported; what the user has set stays.

    On a CPU vLLM would by default claim most of the memory for its cache; here it takes 1 GiB for each of the
    `workers`, which leave a core to the scheduler where they have several. `given` are the user's vLLM options.
    """
    defaults = default_environment(cpu=cpu, workers=workers, spare_cores=1, compiled="--no-enforce-eager" in given)
    if cpu:
        defaults |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_WORKER_MULTIPROC_METHOD": "fork"}
    for name, value in defaults.items():
        os.environ.setdefault(name, value)


def parse_options(model: ModelFolder, given: Sequence[str], *, cpu: bool) -> argparse.Namespace:
    """vLLM's options: ours for this model, then the user's, which win. Imports vLLM, so it takes seconds.

    Raises UserError for what vLLM's own parser or checks refuse, and for what does not fit the model.
    """
    from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    class Parser(FlexibleArgumentParser):  # type: ignore[misc, unused-ignore]
        def error(self, message: str) -> NoReturn:
            raise UserError(f"vLLM: {message}")

    parser = make_arg_parser(Parser(prog="mtnlg serve"))
    options: argparse.Namespace = parser.parse_args([*_defaults(model, cpu=cpu), *given])
    options.model = str(model.path)
    _check(options, model)
    try:
        validate_parsed_serve_args(options)
    except (ValueError, TypeError) as error:
        raise UserError(f"vLLM: {one_line(error)}") from None
    return options


def _defaults(model: ModelFolder, *, cpu: bool) -> list[str]:
    defaults = [f"--served-model-name={model.name}"]
    defaults += [f"--{name.replace('_', '-')}={size}" for name, size in _sizes(model).items()]
    defaults.append("--allowed-origins=[]")  # vLLM's default lets every web site ask a server on this machine
    if model.sharded:
        defaults.append("--load-format=sharded_state")
    if model.dtype == "float32":
        defaults.append("--dtype=float32")  # vLLM's own default rounds float32 models to bfloat16
    if cpu:
        defaults.append("--enforce-eager")  # compiling takes a minute and gains a tenth on a CPU
        if model.pipeline_parallel_size > 1:
            defaults.append(f"--worker-extension-cls={STAGE_BUFFERS}")
    return defaults


def _sizes(model: ModelFolder) -> dict[str, int]:
    return {
        "tensor_parallel_size": model.tensor_parallel_size,
        "pipeline_parallel_size": model.pipeline_parallel_size,
        "data_parallel_size": model.data_parallel_size,
    }


def _check(options: argparse.Namespace, model: ModelFolder) -> None:
    refused = [name for name in _UNSUPPORTED if getattr(options, name)]
    if options.model_tag or refused:
        name = f"--{refused[0].replace('_', '-')}" if refused else repr(options.model_tag)
        raise UserError(f"{name} is not supported by mtnlg serve")
    if options.node_rank and not (options.headless or options.data_parallel_external_lb):
        raise UserError(f"--node-rank {options.node_rank}: only the first node answers HTTP; add --headless")
    for name, size in _sizes(model).items():
        if (found := getattr(options, name)) != size:
            option = f"--{name.replace('_', '-')}"
            raise UserError(f"an option of vLLM says {option} {found}: say it as {option} {found} itself")
    if model.sharded and options.load_format != "sharded_state":
        raise UserError(f"{model.path} holds tensor slices: leave out --load-format {options.load_format}")
    if model.sharded and options.quantization:
        raise UserError(
            f"{model.path} holds tensor slices, which cannot be quantised while they are loaded: serve the training "
            "run itself, or a whole model: mtnlg convert RUN OUT --to hf"
        )
