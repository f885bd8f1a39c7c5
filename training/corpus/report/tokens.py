"""What the last stages wrote: tokens by dataset, and the blend's plan."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from foundation.files import read_json
from foundation.manifest import read_manifest


@dataclass(frozen=True)
class Blended:
    """A dataset in the blend: its training and held-out tokens, its share of the run, and how often it is read."""

    name: str
    tokens: int
    validation_tokens: int
    share: float
    epochs: float


@dataclass(frozen=True)
class BlendPart:
    """The plan; `left_out` are datasets without a training token."""

    train_tokens: int
    datasets: tuple[Blended, ...]
    left_out: tuple[str, ...]


def written_tokens(out: Path, datasets: Sequence[str]) -> dict[str, int]:
    """Tokens of all splits by dataset; empty before they are written."""
    found = {}
    for dataset in datasets:
        manifest = read_manifest(out / "tokenise" / dataset)
        if manifest is not None:
            found[dataset] = sum(int(split["tokens"]) for split in manifest.about["splits"].values())
    return found


def blend_part(out: Path) -> BlendPart | None:
    """None before the blend is planned."""
    path = out / "blend" / "plan.json"
    if not path.is_file():
        return None
    plan = read_json(path)
    blended = []
    for one in plan["datasets"]:
        manifest = read_manifest(out / "tokenise" / one["name"])
        held_out = int(manifest.about["splits"]["validation"]["tokens"]) if manifest else 0
        blended.append(Blended(one["name"], one["tokens"], held_out, one["share"], one["epochs"]))
    return BlendPart(plan["train_tokens"], tuple(blended), tuple(plan["left_out"]))
