"""Makes the model importable where pydantic is missing, as in images that hold torch and transformers alone.

Importing this module puts the stand-in there, and only if the real package is absent. It holds values without
checking them: enough for a benchmark that writes its configurations itself, and for nothing else.
"""

import importlib.util
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any


class _Values:
    """A model's fields: the class's attributes are the defaults, the instance's what was given."""

    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)


def _field(*, default: Any = None, **_: Any) -> Any:
    return default


def _model_validator(**_: Any) -> Callable[[Any], Any]:
    return lambda method: method


def _stand_in() -> ModuleType:
    module = ModuleType("pydantic")
    names = {
        "BaseModel": _Values,
        "ConfigDict": dict,
        "Field": _field,
        "ValidationError": ValueError,
        "model_validator": _model_validator,
    }
    for name, value in names.items():
        setattr(module, name, value)
    return module


if importlib.util.find_spec("pydantic") is None:
    sys.modules["pydantic"] = _stand_in()
