"""The bias suite on a model: `mtnlg evaluate MODEL --suite bias`."""

from pathlib import Path

from rich.console import Console

from evaluation.backends.choice import BackendChoice, LazyBackend
from evaluation.libraries import describe_environment, prepare_libraries
from evaluation.model import find_model


def evaluate_bias(model: str, choice: BackendChoice, *, out: Path | None, seed: int) -> None:
    """Score the three probes and write their report into `out`, by default `evaluation/bias` inside the model's folder.

    Raises UserError for what a user can mend.
    """
    from evaluation.bias.report import headlines
    from evaluation.bias.run import run_bias

    prepare_libraries(offline=False)
    found = find_model(model, choice)
    folder = out or found.default_results() / "bias"
    with LazyBackend(choice, found.location) as backend:
        environment = describe_environment(choice.name)
        determining = {key: environment[key] for key in ("libraries", "device")}
        settings = {"backend": choice.name, "dtype": choice.dtype, **determining}
        document = run_bias(backend, folder, identity=found.identity, settings=settings, seed=seed)
    console = Console(highlight=False, soft_wrap=True)
    for line in [
        *headlines(document),
        f"Results: {folder / 'bias.html'}, {folder / 'bias.md'}, {folder / 'bias.json'}",
    ]:
        console.print(line, markup=False)
