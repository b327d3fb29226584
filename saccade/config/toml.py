"""Configurations from and to TOML, with a helpful message for every mistake."""

import copy
import difflib
import json
import re
import tomllib
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from saccade.config.decoding import Decode
from saccade.config.legacy import modernize
from saccade.config.networks import Decoder, Encoder, Head
from saccade.config.schema import Config, Train
from saccade.config.start import Start
from saccade.config.tasks import Data, Task
from saccade.errors import ConfigError

Model = TypeVar("Model", bound=BaseModel)


def parse(raw: dict[str, Any], where: str) -> Config:
    """The configuration in `raw`, or one ConfigError that lists every mistake."""
    return validate(Config, modernize(raw), where)


def validate(model: type[Model], raw: dict[str, Any], where: str) -> Model:
    """The tables of `raw` as a model, or one ConfigError that lists every mistake."""
    lines: list[str] = []
    intact = True  # no table was removed, so a missing key is the user's mistake
    while True:
        try:
            result = model.model_validate(raw)
        except ValidationError as error:
            mistakes = [(_place(model, mistake["loc"])[0], mistake) for mistake in error.errors()]
            shown = [mistake for path, mistake in mistakes if intact or len(path) > 0]
            lines += [
                f"{where}: {line}"
                for mistake in shown
                if intact or mistake["type"] != "missing"
                for line in _sentence(model, mistake).split("\n")
            ]
            # model validators run only if every key is valid: validate again without invalid keys
            remaining = copy.deepcopy(raw)
            for path, mistake in mistakes:
                _remove(remaining, path)
                intact &= len(path) > 1 or mistake["type"] == "extra_forbidden"
            if remaining != raw:
                raw = remaining
                continue
        if lines:
            raise ConfigError("\n".join(dict.fromkeys(lines)))
        return result


def read_toml(path: str | Path) -> dict[str, Any]:
    """The tables of a TOML file."""
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise ConfigError(f"{path}: is a folder; give a configuration file") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 at byte {error.start}") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not TOML: {error}") from None


def write_toml(config: Config) -> str:
    """A configuration as TOML, which `parse` reads."""
    return write_tables(config.model_dump(mode="json", exclude_none=True))


def write_tables(raw: dict[str, Any]) -> str:
    """Tables as TOML, which `read_toml` reads."""
    return "\n".join(_table(raw, ())).strip() + "\n"


def assign(raw: dict[str, Any], key: str, value: Any) -> None:
    """Set the value of the key `a.b.c` in the tables of `raw`."""
    *tables, last = key.split(".")
    for name in tables:
        raw = raw.setdefault(name, {})
        if not isinstance(raw, dict):
            raise ConfigError(f"{key}: '{name}' is not a table")
    raw[last] = value


def assign_text(raw: dict[str, Any], setting: str) -> None:
    """The same from `a.b.c=value`; a value that is not TOML is a string."""
    key, equals, value = setting.partition("=")
    if not equals or not all(part.strip() for part in key.split(".")):
        raise ConfigError(f"--set {setting}: expected key=value, as in train.steps=1000")
    try:
        parsed = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        parsed = value.strip()
    assign(raw, key.strip(), parsed)


def _table(table: dict[str, Any], path: tuple[str, ...]) -> list[str]:
    plain = {key: value for key, value in table.items() if not isinstance(value, dict)}
    plain = {key: plain[key] for key in sorted(plain, key=lambda key: key != "kind")}  # kind first
    lines = [f"[{'.'.join(map(_key, path))}]"] if path and plain else []
    lines += [f"{key} = {_value(value)}" for key, value in plain.items()]
    lines += [""] if lines else []
    for key, value in table.items():
        if isinstance(value, dict):
            lines += _table(value, (*path, key))
    return lines


def _key(name: str) -> str:
    """A key in TOML: bare where possible."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _value(name)


def _value(value: Any) -> str:
    """A value in TOML: the same as in JSON, except that TOML requires U+007F to be escaped."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _remove(raw: Any, path: list[str]) -> None:
    for name in path[:-1]:
        raw = raw.get(name) if isinstance(raw, dict) else None
    if isinstance(raw, dict) and path:
        raw.pop(path[-1], None)


def _sentence(model: type[BaseModel], mistake: ErrorDetails) -> str:
    """The message for a mistake: the key as the user wrote it, what is wrong, what was meant."""
    path, siblings, kinds = _place(model, mistake["loc"])
    key = ".".join(path)
    match mistake["type"]:
        case "extra_forbidden" if owner := _kind_with(path[-1], kinds):
            table = ".".join(path[:-1])
            return f"{key} belongs to {table}.kind = '{owner}'; set that, or leave it out"
        case "extra_forbidden":
            known = [*siblings, *(name for kind in kinds for name in kind.model_fields)]
            near = difflib.get_close_matches(path[-1], known, n=1, cutoff=0.5)
            near_keys = [".".join([*path[:-1], name]) for name in near]
            guesses = [other for other in owners_of(path[-1]) if other != key] + near_keys
            hint = f" (did you mean '{guesses[0]}'?)" if guesses else ""
            if guesses == near_keys and near and near[0] not in siblings:
                owner = f"of {'.'.join(path[:-1])}.kind = '{_kind_with(near[0], kinds)}'"
                hint = f" (did you mean '{near_keys[0]}', {owner}?)"
            return f"unknown key '{key}'{hint}" + (
                "" if hint else f"; the keys here are {', '.join(sorted(siblings))}"
            )
        case "missing":
            return f"missing key '{key}'"
        case "union_tag_not_found":
            return f"{key}: missing key 'kind'"
        case "union_tag_invalid":
            tags = mistake["ctx"]["expected_tags"].replace("'", "").split(", ")
            return f"{key}: unknown kind '{mistake['ctx']['tag']}'" + _one_of(
                mistake["ctx"]["tag"], tags
            )
        case "literal_error":
            choices = [
                c.strip("'") for c in mistake["ctx"]["expected"].replace(" or ", ", ").split(", ")
            ]
            return f"{key}: invalid value {mistake['input']!r}" + _one_of(
                str(mistake["input"]), choices
            )
        case "tuple_type" | "list_type":
            example = json.dumps([mistake["input"]], ensure_ascii=False, default=str)
            return f"{key}: a list is needed, as in {key}={example}"
        case "value_error":
            return (f"{key}: " if key else "") + mistake["msg"].removeprefix("Value error, ")
        case _:
            return f"{key}: {mistake['msg'].lower()}, not {mistake['input']!r}"


def _one_of(wrong: str, choices: list[str]) -> str:
    near = difflib.get_close_matches(wrong, choices, n=1, cutoff=0.5)
    return f" (did you mean '{near[0]}'?)" if near else f"; choose one of {', '.join(choices)}"


def _place(
    model: type[BaseModel], loc: tuple[int | str, ...]
) -> tuple[list[str], list[str], list[type[BaseModel]]]:
    """For pydantic's location of a mistake: the path as the user wrote it, without the tags of
    unions; the keys of its table; and the other kinds of this table."""
    path: list[str] = []
    models: list[type[BaseModel]] = [model]
    siblings: list[str] = []
    kinds: list[type[BaseModel]] = []
    union: list[type[BaseModel]] = []
    named = False  # whether the next part is a key of a dict, chosen by the user
    for part in loc:
        if named:
            path.append(str(part))
            named = False
            continue
        tagged = [m for m in models if kind_of(m) == part]
        if tagged and len(models) > 1:
            union, models = models, tagged
            continue
        kinds, union = union, []
        siblings = sorted({name for m in models for name in m.model_fields})
        path.append(str(part))
        fields = [m.model_fields[str(part)] for m in models if str(part) in m.model_fields]
        named = any(get_origin(field.annotation) is dict for field in fields)
        models = [m for field in fields for m in models_in(field.annotation)]
    return path, siblings, kinds


def _kind_with(key: str, kinds: list[type[BaseModel]]) -> str:
    """The kind of a table that has this key; empty if none has."""
    return next((kind_of(model) for model in kinds if key in model.model_fields), "")


def models_in(annotation: Any) -> list[type[BaseModel]]:
    """The models in a union, or in any annotation."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for argument in get_args(annotation) for model in models_in(argument)]


def kind_of(model: type[BaseModel]) -> str:
    """The tag of a model in its union; empty if it is in none."""
    kind = model.model_fields.get("kind")
    if kind is None:
        return ""
    names = get_args(kind.annotation)
    return str(names[0]) if len(names) == 1 else "text"  # a tokenizer's kinds are all of text


def owners_of(name: str) -> list[str]:
    """The tables that have a key of this name, as hints for a key in the wrong table."""
    tables = {"task": Task, "data": Data, "encoder": Encoder, "decoder": Decoder, "head": Head}
    tables |= {"train": Train, "decode": Decode, "start": Start}
    owners = [
        table
        for table, kind in tables.items()
        if any(name in m.model_fields for m in models_in(kind))
    ]
    return [f"{owner}.{name}" for owner in owners]
