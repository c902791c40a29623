"""Build options from Hydra or YAML, write them as YAML, and name a run by its data."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

import yaml
from omegaconf import DictConfig, OmegaConf

from translator.config.base import Options
from translator.runtime.atomic_files import read_plain
from translator.runtime.errors import UserError, no_such_option

Config = TypeVar("Config", bound=Options)

MAX_NAME = 40  # characters of a run's name that come from the name of its data


class _StrictLoader(yaml.SafeLoader):
    """YAML without aliases, by which a few lines can take all memory, and without a name twice in a mapping."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise ValueError("it has aliases (*name)")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        names = [str(key.value) for key, _ in node.value]
        if twice := [name for name in names if names.count(name) > 1]:
            raise ValueError(f"{twice[0]}: given twice. Remove one.")
        return super().construct_mapping(node, deep)


def from_hydra(cls: type[Config], composed: DictConfig) -> Config:
    """Build options from a composed Hydra configuration; UserError names the option that does not fit."""
    return build(cls, OmegaConf.to_container(composed, resolve=True))


def named_options(overrides: Iterable[str]) -> list[str]:
    """Return the names of the options that Hydra's overrides set, such as `++model.d_ff=64`."""
    return [override.lstrip("+").split("=")[0] for override in overrides]


def corpus_name(preset: str, path: str | None, train: str | Sequence[str] | None, overrides: Iterable[str]) -> str:
    """Return the name of a preset of conf/data, with the last part of the folder, hub id or file of your own data.

    All characters are valid in a folder's name. A file called train is named by its folder.
    """
    own = "data.train" if path is None else "data.path"
    if preset != "files" and own not in named_options(overrides):
        return preset
    files = [train] if isinstance(train, str) or not isinstance(train, Sequence) else train  # `build` refuses other types
    place = Path(str(path or next(iter(files), None) or "/")).absolute()
    part = place.name
    if path is None:
        part = Path(part.removesuffix(".gz")).stem
        part = place.parent.name if part == "train" else part
    return "-".join(filter(None, (preset, re.sub(r"[^\w.-]+", "-", part)[:MAX_NAME].strip("-."))))


def run_name(data: DictConfig, choices: DictConfig, overrides: Iterable[str]) -> str:
    """Return the default name of a run, for conf/train.yaml: its data, languages and model, by their presets."""
    return f"{corpus_name(choices.data, data.path, data.train, overrides)}-{data.source}-{data.target}-{choices.model}"


OmegaConf.register_new_resolver("run_name", run_name, replace=True)


def read_yaml(path: Path) -> Any:
    """Load a YAML file such as a run's `config.yaml`, without interpolation."""
    try:
        return yaml.load(read_plain(path).decode(), _StrictLoader)
    except Exception as error:  # of many types: one for each of YAML's tags
        raise UserError(f"{path}: not a configuration file: {str(error)[:300]}") from error


def to_yaml(config: Any) -> str:
    """Return options as YAML text, from which `read_yaml` and `build` make the same options."""
    return yaml.safe_dump(dataclasses.asdict(config), sort_keys=False)


def by_dotted_name(config: Any) -> dict[str, Any]:
    """Return all options by name, those of groups as `group.option`."""
    flat: dict[str, Any] = {}
    for name, value in vars(config).items():
        inner = {f"{name}.{key}": option for key, option in vars(value).items()} if dataclasses.is_dataclass(value) else {}
        flat |= inner or {name: value}
    return flat


def build(cls: type[Config], values: Any) -> Config:
    """Build options of a plain mapping such as YAML holds; UserError names the option that is unknown, missing or wrong."""
    if not isinstance(values, Mapping):
        raise UserError(f"{cls.GROUP.rstrip('.') or 'configuration'}: expected options by name, got {values!r}")
    hints = {field.name: get_type_hints(cls)[field.name] for field in dataclasses.fields(cls)}
    for name in values:
        if name not in hints:
            raise UserError(no_such_option(str(name), cls.GROUP, hints))
    return cls(**{name: _value(hints[name], value) for name, value in values.items()})


def _value(hint: Any, value: Any) -> Any:
    if isinstance(hint, type) and issubclass(hint, Options):
        return build(hint, value)
    return tuple(value) if isinstance(value, list) else value
