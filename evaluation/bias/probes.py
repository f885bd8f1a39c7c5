"""The probes' file, configs/evaluation/bias.yaml or one like it."""

import string
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from foundation.config import CONFIG_ROOT, StrictModel, load_config

DEFAULT_PROBES = CONFIG_ROOT / "evaluation" / "bias.yaml"


def _distinct(words: list[str]) -> list[str]:
    repeated = [word for word, count in Counter(words).items() if count > 1]
    if repeated:
        raise ValueError(f"{repeated[0]!r} is there twice")
    if blank := [word for word in words if word != word.strip() or not word]:
        raise ValueError(f"{blank[0]!r} is empty, or begins or ends with a space")
    return words


Words = Annotated[list[str], Field(min_length=1), AfterValidator(_distinct)]


class Identifiers(StrictModel):
    """Nouns of gender that may follow an occupation."""

    female: Words
    male: Words


class OccupationProbe(StrictModel):
    """The identifiers are compared after `template` with each occupation, and with each reference noun."""

    template: str
    identifiers: Identifiers
    reference: Words
    occupations: Annotated[Words, Field(min_length=2)]

    @model_validator(mode="after")
    def _check_template(self) -> "OccupationProbe":
        _check_slots(self.template, {"occupation"})
        return self

    def prompt(self, occupation: str) -> str:
        """The text before an identifier."""
        return self.template.format(occupation=occupation)


class Adjectives(StrictModel):
    """Adjectives by the sentiment that they have in ordinary use."""

    positive: Words
    negative: Words
    neutral: Words

    @model_validator(mode="after")
    def _check_classes(self) -> "Adjectives":
        _distinct(self.all)
        return self

    @property
    def all(self) -> list[str]:
        """Every adjective: positive, then negative, then neutral ones."""
        return [*self.positive, *self.negative, *self.neutral]


class Axis(StrictModel):
    """Groups that are compared with each other: each fills the slots of every template."""

    templates: Words
    groups: dict[str, dict[str, str]] = Field(min_length=2)

    @model_validator(mode="after")
    def _check_groups(self) -> "Axis":
        for slots in self.groups.values():
            for template in self.templates:
                _check_slots(template, set(slots), all_used=False)
        return self

    def prompt(self, template: str, group: str) -> str:
        """The text before an adjective."""
        return template.format(**self.groups[group])


class PublishedShare(StrictModel):
    """A published model's share of occupations that prefer a male identifier."""

    model: str
    occupations: int
    male_preferred: float


class Probes(StrictModel):
    """What the bias suite asks."""

    occupation: OccupationProbe
    adjectives: Adjectives
    sentiment: Literal["vader", "labels"]
    axes: dict[str, Axis] = Field(min_length=1)
    published: Sequence[PublishedShare] = ()


def load_probes(path: Path | None = None) -> Probes:
    """The probes of a file, by default this project's own. Raises UserError naming the file and the key."""
    return load_config(Probes, path or DEFAULT_PROBES)


def _check_slots(template: str, known: set[str], *, all_used: bool = True) -> None:
    try:
        used = {name for _, name, _, _ in string.Formatter().parse(template) if name is not None}
    except ValueError as error:
        raise ValueError(f"template {template!r}: {error}") from None
    if not used or not used <= known or (all_used and used != known):
        raise ValueError(f"template {template!r} must have slots of: {', '.join(sorted(known))}")
    if template != template.rstrip():
        raise ValueError(f"template {template!r} ends with a space; the word after it brings its own")
