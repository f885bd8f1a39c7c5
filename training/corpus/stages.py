"""The stages in their order. A stage's module is imported when the stage is made."""

import importlib
from collections.abc import Mapping
from types import MappingProxyType

from training.corpus.config import CorpusConfig
from training.corpus.stage import Stage

STAGES: Mapping[str, str] = MappingProxyType(
    {
        "sources": "training.corpus.sources:Sources",
        "extract": "training.corpus.extract:Extract",
        "clean": "training.corpus.clean:Clean",
        "quality": "training.corpus.quality.stage:Quality",
        "deduplicate": "training.corpus.dedup.stage:Deduplicate",
        "decontaminate": "training.corpus.decontaminate.stage:Decontaminate",
        "tokenise": "training.corpus.tokenise:Tokenise",
        "blend": "training.corpus.blend:Blend",
    }
)


def make_stage(name: str, config: CorpusConfig) -> Stage:
    """The stage of that name, configured."""
    module, _, class_name = STAGES[name].partition(":")
    stage = getattr(importlib.import_module(module), class_name)(config)
    if not isinstance(stage, Stage):
        raise TypeError(f"{STAGES[name]} is no Stage")
    return stage


def before(name: str) -> str | None:
    """The stage whose output this one reads; None for the first."""
    names = list(STAGES)
    place = names.index(name)
    return names[place - 1] if place else None
