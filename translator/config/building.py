"""Options out of Hydra or YAML made into dataclasses, with the nearest right name for a wrong one."""

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

# Options within options, in YAML.
MOST_NESTED = 20
# Characters of a run's name that come from its data's.
MOST_OF_NAME = 40


class _OnceEach(yaml.SafeLoader):
    """YAML in which no name stands twice: by default the last one would silently win."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        names = [str(key.value) for key, _ in node.value]
        if twice := [name for name in names if names.count(name) > 1]:
            raise ValueError(f"{twice[0]}: given twice. Remove one.")
        return super().construct_mapping(node, deep)


def from_hydra(cls: type[Config], composed: DictConfig) -> Config:
    """The dataclass `cls` of a composed Hydra configuration; UserError names the option that does not fit."""
    return build(cls, OmegaConf.to_container(composed, resolve=True))


def named_options(overrides: Iterable[str]) -> list[str]:
    """The options that overrides as Hydra takes them, such as `++model.d_ff=64`, set."""
    return [override.lstrip("+").split("=")[0] for override in overrides]


def corpus_name(preset: str, path: str | None, train: str | Sequence[str] | None, overrides: Iterable[str]) -> str:
    """Return the name of a preset of conf/data; of one's own data, with the last part of their folder, hub id or file.

    All characters are valid in a folder's name. A file called train, as each corpus has one, goes by its folder's name.
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
    return "-".join(filter(None, (preset, re.sub(r"[^\w.-]+", "-", part)[:MOST_OF_NAME].strip("-."))))


def run_name(data: DictConfig, choices: DictConfig, overrides: Iterable[str]) -> str:
    """Return the default name of a run, for conf/train.yaml: its data, languages and model, by their presets."""
    return f"{corpus_name(choices.data, data.path, data.train, overrides)}-{data.source}-{data.target}-{choices.model}"


OmegaConf.register_new_resolver("run_name", run_name, replace=True)


def read_yaml(path: Path) -> Any:
    """What a YAML file such as a run's `config.yaml` holds, nothing in it interpolated."""
    try:
        text = read_plain(path).decode()
        # A few lines can stand for more values than memory holds, or take hours to read: not those that `to_yaml` writes.
        depth = 0
        for event in yaml.parse(text, yaml.SafeLoader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if isinstance(event, yaml.AliasEvent) or depth > MOST_NESTED:
                raise ValueError("it has aliases (*name), or lists within lists without end")
        return yaml.load(text, _OnceEach)
    except Exception as error:  # whatever keeps YAML from being values, in as many types as it has tags
        raise UserError(f"{path}: not a configuration file: {str(error)[:300]}") from error


def to_yaml(config: Any) -> str:
    """A dataclass as YAML text, of which `read_yaml` and `build` make the same again."""
    return yaml.safe_dump(dataclasses.asdict(config), sort_keys=False)


def by_dotted_name(config: Any) -> dict[str, Any]:
    """All options of a dataclass, those of its groups as `group.option`."""
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
