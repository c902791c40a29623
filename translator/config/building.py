"""Options as frozen dataclasses that pydantic checks: their base, how Hydra and YAML give them, and the name of a run."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar, get_args, get_origin, get_type_hints

import yaml
from omegaconf import MISSING, DictConfig, OmegaConf
from pydantic import ConfigDict, Field, ValidationError, model_validator
from pydantic.dataclasses import dataclass

from translator.runtime.atomic_files import read_plain
from translator.runtime.errors import UserError, unknown

# An integer passes as a float, a bool is no number, text is no number either.
STRICT = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)
Whole = Annotated[int, Field(ge=0, lt=2**31)]
Count = Annotated[int, Field(ge=1, lt=2**31)]
Share = Annotated[float, Field(ge=0, lt=1)]
UpTo1000 = Annotated[float, Field(ge=0, le=1000)]
Run = Annotated[str, Field(min_length=1)]
Runs = Run | Annotated[tuple[Run, ...], Field(min_length=1)] | None  # a run folder, or an ensemble


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Options:
    """Options by name. UserError for an unknown name, a missing option, and a value of the wrong type or out of bounds."""

    GROUP = ""  # precedes an option's name in errors, such as "model."

    @model_validator(mode="wrap")
    @classmethod
    def _in_one_line(cls, values: Any, handler: Callable[[Any], Self]) -> Self:
        """Say what is wrong with the first wrong option. One that may be of several types has an error for each."""
        try:
            return handler(values)
        except ValidationError as caught:
            errors = caught.errors()
        name = str(errors[0]["loc"][0])
        if errors[0]["type"] == "missing":
            raise UserError(f"{cls.GROUP}{name}: this option is missing")
        errors = [error for error in errors if error["loc"][0] == name]
        depth = max(len(error["loc"]) for error in errors)  # the type that fits best is looked into deepest
        closest = [error for error in errors if len(error["loc"]) == depth]
        rules = dict.fromkeys(
            re.sub(r"^\w+ should | after validation.*", "", error["msg"]).replace("tuple", "list") for error in closest)
        rule = re.sub(r"or equal to 0\.0{20,}1\b", "0", " or ".join(rules))  # 1e-30 is the least float that float32 divides by
        if closest[0]["input"] == MISSING:
            raise UserError(f"{cls.GROUP}{name}: is missing. Give {name}=..., which must {rule}.")
        raise UserError(f"{cls.GROUP}{name}: must {rule}, got {closest[0]['input']!r}")

    def require(self, holds: bool, option: str, rule: str) -> None:
        """Raise UserError where an option breaks a rule."""
        if not holds:
            raise UserError(f"{self.GROUP}{option}: {rule}")


Config = TypeVar("Config", bound=Options)


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
    return build(cls, OmegaConf.to_container(composed, resolve=True))


def named_options(overrides: Iterable[str]) -> list[str]:
    """Return the names of the options that Hydra's overrides set, such as `++model.d_ff=64`."""
    return [override.lstrip("+").split("=")[0] for override in overrides]


def run_name(data: Any, choices: Any, overrides: Iterable[str]) -> str:
    """Return the default name of a run, for conf/train.yaml: its data, languages and model, by their presets.

    A corpus adds its name, a mix its corpora's. Your own data add the last part of their folder, hub id or file; a file called
    train is named by its folder.
    """
    name = choices.data
    if getattr(data, "corpus", None):
        name = f"{name}-{data.corpus}"
    elif name == "mix" and data.corpora:
        name = "-".join([name, *(re.sub(r"[^\w-]", "", str(entry.get("name"))) for entry in data.corpora)])[:60]
    elif name == "files" or ("data.train" if data.path is None else "data.path") in named_options(overrides):
        files = data.train if isinstance(data.train, Sequence) and not isinstance(data.train, str) else [data.train]
        place = Path(str(data.path or next(iter(files), None) or "/")).absolute()
        part = place.name if data.path else Path(place.name.removesuffix(".gz")).stem
        part = place.parent.name if part == "train" and not data.path else part
        valid = re.sub(r"[^\w.-]+", "-", part)[:40].strip("-.")  # in a folder's name
        name = f"{name}-{valid}" if valid else name
    return f"{name}-{data.source}-{data.target}-{choices.model}"


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
    """Return all options by name, with the options of groups as `group.option`, or `group.inner.option`.

    Of a list of groups, each is a mapping of the options that are set.
    """
    flat: dict[str, Any] = {}
    for name, value in vars(config).items():
        inner = by_dotted_name(value) if dataclasses.is_dataclass(value) else None
        if isinstance(value, tuple) and all(isinstance(each, Options) for each in value):
            value = tuple({key: option for key, option in vars(each).items() if option is not None} for each in value)
        flat |= {name: value} if inner is None else {f"{name}.{key}": option for key, option in inner.items()}
    return flat


def with_named(saved: Config, given: Config, named: Collection[str]) -> Config:
    """Return the options of `saved`, except those named, such as `data.limit`, or `data` for the whole group, as given."""
    changes = {}
    for name, value in vars(given).items():
        if dataclasses.is_dataclass(value):
            changes[name] = with_named(getattr(saved, name), value, named)
        elif {f"{given.GROUP}{name}", given.GROUP.split(".")[0]} & set(named):
            changes[name] = value
    return dataclasses.replace(saved, **changes)


def build(cls: type[Config], values: Any) -> Config:
    """Build options of a plain mapping such as YAML holds; UserError names the option that is unknown, missing or wrong."""
    if not isinstance(values, Mapping):
        raise UserError(f"{cls.GROUP.rstrip('., ') or 'configuration'}: expected options by name, got {values!r}")
    hints = get_type_hints(cls)
    hints = {field.name: hints[field.name] for field in dataclasses.fields(cls)}
    built = {}
    for name, value in values.items():
        if name not in hints:
            raise UserError(unknown("option", str(name), hints, cls.GROUP))
        built[name] = _build_value(hints[name], value)
    return cls(**built)


def _build_value(hint: Any, value: Any) -> Any:
    """Build groups of options and lists of them; make tuples of other lists."""
    if _is_group(hint):
        return build(hint, value)
    if not isinstance(value, list):
        return value
    tuples = [get_args(part) for part in (hint, *get_args(hint)) if get_origin(part) is tuple]
    groups = [parts[0] for parts in tuples if _is_group(parts[0])]
    return tuple(build(groups[0], each) if groups else each for each in value)


def _is_group(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, Options)
