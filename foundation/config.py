"""Configuration files: YAML checked by pydantic, with dotted overrides and helpful refusals."""

import difflib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from foundation.errors import UserError
from foundation.files import write_text

CONFIG_ROOT = Path(__file__).resolve().parent.parent / "configs"

Schema = TypeVar("Schema", bound="StrictModel")


class StrictModel(BaseModel):
    """A configuration section: immutable, and a key that it does not know is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


def load_config(schema: type[Schema], path: Path, overrides: Sequence[str] = ()) -> Schema:
    """Read `path` as `schema`, with `overrides` such as `training.micro_batch_size=2` applied.

    A section may be the name of another file: `model: tiny` reads `configs/model/tiny.yaml`. In such a file, a text
    that begins with `./` or `../` is a path from that file's folder.
    Raises UserError naming the file, the key and the nearest valid key.
    """
    values = read_yaml(path)
    _expand_named_sections(schema, values, path)
    for override in overrides:
        _apply_override(schema, values, override, path)
    try:
        return schema.model_validate(values)
    except ValidationError as error:
        raise UserError(f"{path}: {'; '.join(_explain(schema, error))}") from None


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping that a YAML file holds. Raises UserError when it is missing or is not one."""
    if not path.is_file():
        # Without the suffix, in which all are alike.
        nearby = difflib.get_close_matches(path.stem, [p.stem for p in path.parent.glob("*.yaml")], n=3)
        hint = f"; did you mean {', '.join(str(path.parent / f'{stem}.yaml') for stem in nearby)}?" if nearby else ""
        raise UserError(f"no configuration file at {path}{hint}")
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict):
        raise UserError(f"{path} must hold a mapping of keys to values, not {type(values).__name__}")
    return values


def write_config(config: BaseModel, path: Path) -> None:
    """Write the resolved configuration beside an output, readable by `load_config`."""
    write_text(path, yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False))


def named_config(section: str, name: str) -> Path:
    """Where `section: name` is read from: a path that exists, or `configs/<section>/<name>.yaml`."""
    given = Path(name)
    return given if given.suffix == ".yaml" else CONFIG_ROOT / section / f"{name}.yaml"


def _expand_named_sections(schema: type[BaseModel], values: dict[str, Any], path: Path) -> None:
    for name, value in values.items():
        if isinstance(value, str) and _section_schema(schema, name) is not None:
            named = named_config(name, value)
            if not named.is_file():
                known = ", ".join(sorted(p.stem for p in (CONFIG_ROOT / name).glob("*.yaml")))
                raise UserError(f"{path}: {name}: no configuration called {value!r}; there are: {known}")
            values[name] = _from_folder(read_yaml(named), named.parent)


def _from_folder(value: Any, folder: Path) -> Any:
    """The value with paths that begin with ./ or ../ led from `folder`."""
    if isinstance(value, dict):
        return {key: _from_folder(item, folder) for key, item in value.items()}
    if isinstance(value, list):
        return [_from_folder(item, folder) for item in value]
    if isinstance(value, str) and value.startswith(("./", "../")):
        return os.path.normpath(folder / value)
    return value


def _apply_override(schema: type[BaseModel], values: dict[str, Any], override: str, path: Path) -> None:
    key, separator, text = override.partition("=")
    if not separator or not key:
        raise UserError(f"override {override!r} is not of the form section.key=value")
    *parents, leaf = key.split(".")
    target = values
    for depth, parent in enumerate(parents):
        target = target.setdefault(parent, {})
        if not isinstance(target, dict):
            raise UserError(f"override {override!r}: {'.'.join(parents[: depth + 1])} in {path} is not a section")
    try:
        target[leaf] = yaml.safe_load(text)
    except yaml.YAMLError:
        raise UserError(f"override {override!r}: {text!r} is not a valid YAML value") from None
    if not parents:
        _expand_named_sections(schema, values, path)


def _section_schema(schema: type[BaseModel], name: str) -> type[BaseModel] | None:
    field = schema.model_fields.get(name)
    if field is None:
        return None
    candidates = (field.annotation, *get_args(field.annotation))
    return next((c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)), None)


def _explain(schema: type[BaseModel], error: ValidationError) -> Iterator[str]:
    for problem in error.errors(include_url=False):
        location = [str(part) for part in problem["loc"]]
        where = ".".join(location)
        if problem["type"] == "extra_forbidden":
            yield f"{where}: unknown key{_nearest_key(schema, location)}"
        elif problem["type"] == "missing":
            yield f"{where}: this key is required"
        else:
            message = problem["msg"].removeprefix("Value error, ")
            yield f"{where}: {message}" if where else message


def _nearest_key(schema: type[BaseModel], location: list[str]) -> str:
    section: type[BaseModel] | None = schema
    for part in location[:-1]:
        section = _section_schema(section, part) if section else None
    if section is None:
        return ""
    nearest = difflib.get_close_matches(location[-1], section.model_fields, n=1, cutoff=0.5)
    return f"; did you mean {nearest[0]}?" if nearest else f"; valid keys: {', '.join(section.model_fields)}"
