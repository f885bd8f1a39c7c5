"""The published accuracies: configs/evaluation/published.yaml, and what of it stands in a results document."""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, ValidationError

from foundation.config import CONFIG_ROOT, StrictModel, load_config
from foundation.errors import UserError

Setting = Literal["zero_shot", "one_shot", "few_shot"]
SETTINGS: tuple[Setting, ...] = ("zero_shot", "one_shot", "few_shot")


class PublishedTask(StrictModel):
    """A model's accuracies on one task, in %; `examples` of the few-shot prompt, `recalled` what is not verified."""

    zero_shot: float | None = None
    one_shot: float | None = None
    few_shot: float | None = None
    examples: int | None = Field(default=None, ge=2)
    recalled: list[Setting | Literal["examples"]] = Field(default_factory=list)
    note: str | None = None

    def accuracy(self, setting: Setting) -> float | None:
        """The accuracy in one setting, in %, or None where none is published."""
        values: dict[Setting, float | None] = {
            "zero_shot": self.zero_shot,
            "one_shot": self.one_shot,
            "few_shot": self.few_shot,
        }
        return values[setting]

    def shots(self, setting: Setting) -> int | None:
        """The number of examples in one setting; None where it is not known."""
        return {"zero_shot": 0, "one_shot": 1, "few_shot": self.examples}[setting]


class PublishedModel(StrictModel):
    """A model and its accuracies by task."""

    name: str
    tasks: dict[str, PublishedTask]


class Supervised(StrictModel):
    """The best supervised model's accuracy on one task, in %."""

    accuracy: float
    recalled: bool = False


class Published(StrictModel):
    """configs/evaluation/published.yaml."""

    models: list[PublishedModel]
    supervised: dict[str, Supervised] = Field(default_factory=dict)


def published_accuracies() -> Published:
    """The published figures of this version of the project."""
    return load_config(Published, CONFIG_ROOT / "evaluation" / "published.yaml")


def published_in(document: Mapping[str, Any]) -> Published:
    """The published figures that a run was printed beside. Raises UserError where the document holds something else."""
    try:
        return Published.model_validate(document["published"])
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in ("published", *problem["loc"]))
        raise UserError(f"results.json: {where}: {problem['msg']}; evaluate again with this version") from None
