"""From the user's settings and the data to a full configuration.

The user's settings are kept; defaults are chosen here by the task and the size of the data, and
written into the run, so that every choice can be read there and changed.
"""

import copy
import os
import shlex
import unicodedata
from collections.abc import Mapping, Sequence
from contextlib import suppress
from math import sqrt
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from saccade import config as c
from saccade.data.detect import SUFFIXES
from saccade.data.layout import Layout, detect_layout
from saccade.data.lines import Example, counted
from saccade.data.sources import examples, read
from saccade.errors import ConfigError, DataError
from saccade.metrics.labels import is_bio
from saccade.models.presets import expand
from saccade.setup.media import media_defaults, media_tables
from saccade.setup.numbers import number_defaults
from saccade.setup.pretrain import pretrain_defaults
from saccade.setup.series import fill_forecast, is_forecast, minimal_forecast
from saccade.setup.survey import Survey, survey, tag_separator

VECTOR_TASKS = ("classify", "translate", "regress")  # that read columns of numbers as a source
MAX_TO_HALLUCINATE = 1000  # examples of inflection: below, data hallucination helps
MAX_BROKEN_SPANS = 0.01  # of the sentences: mistakes; where there are more, IOB1 or no spans
MANY_STRINGS = 100_000  # pairs of strings: with more, a wide network that trains for longer
MINUTES_OF_MANY = 20.0  # that such a network needs to be better than a small one
MAX_TO_EDIT = 20_000  # pairs of strings: with more, attention is as good as an edit decoder


def gather(
    data: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    task: str | None = None,
    dev: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None,
) -> tuple[dict[str, Any], str]:
    """The settings from data files or a configuration file, and their name in messages."""
    paths = paths_of(data)
    if len(paths) == 1 and paths[0].endswith(".toml"):
        raw, where = c.read_toml(paths[0]), paths[0]
        raw.pop("run", None)  # of a run's own config.toml, used as a recipe
    else:
        raw, where = {"data": {"train": paths}}, "settings"
    if task is not None:
        c.assign(raw, "task.kind", task)
    if dev is not None:
        c.assign(raw, "data.dev", paths_of(dev))
    return raw, where


def fill_config(raw: dict[str, Any], where: str) -> tuple[c.Config, str]:
    """The full configuration, and a sentence on how the data was understood."""
    config, reason, _ = survey_and_fill(raw, where)
    return config, reason


def survey_and_fill(
    raw: dict[str, Any], where: str, pretrained: c.Config | None = None
) -> tuple[c.Config, str, Survey]:
    """The same, and the survey of the training examples, which spares `prepare` one.

    `pretrained` are the settings of the run `start.run`, if the new one starts from another.
    """
    if is_forecast(raw):
        return *fill_forecast(raw, where), Survey()
    layout, known = _with_layout(raw, where)
    plain, kind = _parse_without_task(known, where), known["task"]["kind"]
    cut_by_source = not plain.data.dev and c.TASKS[kind].target_type != "none"
    rows = examples(plain.data.train, plain.data, kind)
    seen = survey(rows, plain.seed if cut_by_source else None)
    config = _with_defaults(raw.get("size"), known, where, seen, pretrained)
    return config, layout.reason, seen


def task_and_data(
    raw: dict[str, Any], where: str, pretrained: c.Config | None = None
) -> tuple[c.Task, c.Data]:
    """The task and the data of `fill_config`, even if some rows are broken."""
    if is_forecast(raw):
        config = minimal_forecast(raw, where)
        return config.task, config.data
    _, known = _with_layout(raw, where)
    data, kind = _parse_without_task(known, where).data, known["task"]["kind"]
    rows = (row for row in read(data.train, data, kind) if isinstance(row, Example))
    config = _with_defaults(raw.get("size"), known, where, survey(rows), pretrained)
    return config.task, config.data


def _with_defaults(
    size: str | None,
    raw: dict[str, Any],
    where: str,
    seen: Survey,
    pretrained: c.Config | None = None,
) -> c.Config:
    """The configuration with defaults from the task, a named size, and the data."""
    kind = raw["task"]["kind"]
    own = raw["task"].get("columns", {})
    media = {name: one for name, one in own.items() if one.get("kind") in SUFFIXES}
    numbers = issubclass(c.TASKS[kind], c.NumberTask)
    reader_kind = "classify" if numbers else kind  # the source is read in the same way
    if media:
        chosen = media_defaults(reader_kind, media, raw["data"], seen)
    elif kind == "pretrain":
        chosen = pretrain_defaults(raw["task"], seen)
    else:
        minutes = raw.get("train", {}).get("minutes")
        chosen = defaults(reader_kind, seen, raw.get("decoder", {}), minutes)
        if raw["data"].get("units") == "characters":
            chosen = _merge(_characters(seen), chosen)
        elif kind == "tag" and "kind" in raw["task"].get("tokenizer", {}):
            chosen["train"]["batch_tokens"] //= 4  # positions are subwords, not characters
            chosen["task"].pop("tokenizer")
    if numbers:
        chosen = number_defaults(raw["task"], raw["data"]["source"], chosen, seen)
    if kind == "translate" and "columns" not in raw["task"] and not raw["task"].get("joint"):
        chosen["task"]["columns"] = _tag_columns(raw["data"]["source"], seen)
    if pretrained is not None:
        from saccade.setup.start import start_defaults  # which imports torch

        given = raw if size is None else raw | {"size": size}
        chosen = start_defaults(given, where, pretrained, chosen, seen.count)
    if {"steps", "epochs", "minutes"} & raw.get("train", {}).keys():
        chosen["train"].pop("epochs")  # the user's limit is the only one
        chosen["train"].pop("patience", None)
    if raw.get("decoder", {}).get("attention") == "off":
        chosen.get("decoder", {}).pop("context", None)
    merged = _merge(_merge(raw, _size_tables(size, kind, raw)), chosen)
    merged = _merge(merged, _minimal_config(raw["task"]))
    if "joint" not in raw["task"] and not _shareable(merged):
        merged["task"].pop("joint", None)
    if not merged["task"].get("joint") and "copy" not in raw.get("decoder", {}):
        merged.get("decoder", {}).pop("copy", None)  # it needs a joint vocabulary
    if _few_inflections(merged, seen):
        merged["task"].setdefault("hallucinate", 0.5)
    return c.parse(merged, where)


def _with_layout(raw: dict[str, Any], where: str) -> tuple[Layout, dict[str, Any]]:
    """The layout of the training file, and the settings with the task and columns it suggests."""
    raw = c.modernize({key: value for key, value in raw.items() if key != "size"})
    for table in ("task", "data", "train", "encoder", "decoder", "head", "output", "start"):
        if not isinstance(raw.get(table, {}), dict):
            raise ConfigError(f"{where}: '{table}' is a table, as in {table}.kind = ...")
    kind = raw.get("task", {}).get("kind")
    if isinstance(named := raw.get("task", {}).get("objective"), str):  # task.objective = "spans"
        raw["task"]["objective"] = {"kind": named}
    try:
        data = _parse_without_task(raw, where).data
        if kind is not None and kind not in c.TASKS:
            raise ConfigError
    except ConfigError:
        _refuse_all_mistakes(raw, where)
        raise
    if not data.train:
        raise ConfigError(f"{where}: missing key 'data.train': which file is to be learned from?")
    _refuse_file_counts(data)
    layout = detect_layout(data.train, data, kind)
    columns = {key: value for key, value in layout.settings.items() if value is not None}
    raw["data"] = dict(raw["data"]) | columns
    raw["task"] = {"kind": layout.task} | raw.get("task", {})
    _refuse_other_tasks_keys(data, layout, where)
    _name_media(raw["task"], layout, data)
    return layout, raw


def _refuse_other_tasks_keys(data: c.Data, layout: Layout, where: str) -> None:
    """ConfigError where a key of the data has no meaning for the task."""
    labels, kind = c.TASKS[layout.task].target_type == "labels", layout.task
    for key in ("units", "mask", "ignore"):
        if getattr(data, key) and not labels:
            raise ConfigError(f"{where}: data.{key} is for the task 'tag'; this is '{kind}'")
    if data.vector and (labels or kind not in VECTOR_TASKS):
        message = f"data.vector is for {', '.join(VECTOR_TASKS)}; this is '{kind}'"
        raise ConfigError(f"{where}: {message}")
    if labels and len(layout.source) > 1:
        columns = ", ".join(map(repr, layout.source))
        raise ConfigError(f"{where}: data.source: 'tag' reads one column, and these are {columns}")


def _name_media(task: dict[str, Any], layout: Layout, data: c.Data) -> None:
    """Give every column of media a table with its kind, unless the user did."""
    media = dict(layout.media)
    if not media and data.source and data.target is not None:  # the columns were not looked at
        with suppress(DataError):
            kind = task["kind"] if issubclass(c.TASKS[task["kind"]], c.NumberTask) else None
            other = data.model_copy(update={"target": None})
            media = dict(detect_layout(data.train, other, kind).media)
    if media and c.TASKS[task["kind"]].target_type != "none":
        read = {name: media[name] for name in layout.source if name in media}
        task["columns"] = media_tables(read, task.get("columns", {}))


def _refuse_file_counts(data: c.Data) -> None:
    """ConfigError where dev has another number of files than train."""
    train, dev = list(data.train), list(data.dev)
    if not dev or len(train) == len(dev):
        return
    files = f"{counted(len(train), 'training file')}, but {counted(len(dev), 'dev file')}"
    hint = "give as many of one as of the other, with --dev before each dev file"
    misplaced = (len(train) - len(dev)) // 2
    if misplaced > 0 and len(train) - misplaced == len(dev) + misplaced:  # --dev v.de v.en
        names = {Path(name).name.split(".")[0] for name in dev}
        same_name = [name for name in train if Path(name).name.split(".")[0] in names]
        moved = same_name if len(same_name) == misplaced else train[-misplaced:]
        options = " ".join(f"--dev {shlex.quote(name)}" for name in [*dev, *moved])
        hint = f"is {moved[0]} meant for dev? Write {options}"
    raise ConfigError(f"{files}: {hint}")


def _refuse_all_mistakes(raw: dict[str, Any], where: str) -> None:
    """ConfigError with the mistakes of every table, as far as the task is known."""
    kind = raw.get("task", {}).get("kind")
    if kind is None:
        with suppress(ValidationError, DataError):
            data = c.Data.model_validate(raw.get("data", {}))
            kind = detect_layout(data.train, data).task
    known = kind if kind in c.TASKS else "translate"
    minimal = _minimal_config(raw.get("task", {}) | {"kind": known})
    for part, choices in (("encoder", c.Encoder), ("decoder", c.Decoder)):
        if part in minimal and raw.get(part):  # of the kinds, the one that has most of these keys
            fields = {c.kind_of(model): model.model_fields.keys() for model in c.models_in(choices)}
            minimal[part] = {"kind": max(fields, key=lambda k: len(fields[k] & raw[part].keys()))}
    c.parse(_merge(raw, minimal), where)


def _parse_without_task(raw: dict[str, Any], where: str) -> c.Config:
    """The settings that do not depend on the task, parsed with a dummy task and network."""
    task_tables = ("task", "encoder", "decoder", "head", "output", "start")
    plain = {key: value for key, value in raw.items() if key not in task_tables}
    return c.parse(_merge(plain, _minimal_config({"kind": "translate"})), where)


def _shareable(merged: dict[str, Any]) -> bool:
    """Whether one vocabulary and one embedding table can serve both sides."""
    widths = {merged.get(part, {}).get("dim", 256) for part in ("encoder", "decoder")}
    task = merged["task"]
    same = task.get("source") == task.get("target") and len(widths) == 1
    edits = merged.get("decoder", {}).get("kind") == "edit"
    return same and (edits or not task.get("columns"))


def _few_inflections(merged: dict[str, Any], seen: Survey) -> bool:
    """Whether the data is small and of inflection, where hallucinated stems of any letters help.

    Without tags, as in spelling, unnatural letter sequences would mislead.
    """
    columns = merged["task"].get("columns", {}).values()
    tagged = any(isinstance(one, dict) and not one.get("ordered", True) for one in columns)
    copied = merged.get("decoder", {}).get("copy", False) and seen.one_word
    return tagged and copied and seen.count < MAX_TO_HALLUCINATE


def defaults(
    kind: str,
    seen: Survey,
    decoder: Mapping[str, Any] | None = None,
    minutes: float | None = None,
) -> dict[str, Any]:
    """Defaults for this task on data of this size, the user's decoder, and the time limit."""
    match kind:
        case "translate" if seen.one_word:
            wanted = {"kind": "edit"} | dict(decoder or {})
            known = {field.alias or name for name, field in c.EditDecoder.model_fields.items()}
            edits = wanted["kind"] == "edit" and wanted.keys() <= known
            return _strings(seen, edits and seen.count < MAX_TO_EDIT, minutes)
        case "translate":
            return _sentences(seen)
        case "classify":
            return _classify(seen)
        case "tag":
            return _tag(seen)
        case _:
            return _language(seen)


def _strings(seen: Survey, edits: bool, minutes: float | None) -> dict[str, Any]:
    """Words to phones, lemmas to forms, spelling correction: short strings of few symbols."""
    n = seen.count
    source: dict[str, Any] = {"kind": "char", "size": 2000}
    target: dict[str, Any] = {"kind": "word", "size": 2000} if seen.symbols else dict(source)
    for side, letters in ((source, seen.source_alphabet), (target, seen.target_alphabet)):
        if side["kind"] == "char" and _fewer_decomposed(letters):
            side["decompose"] = True
    if source["kind"] == target["kind"] and seen.one_script:  # a joint vocabulary
        source["decompose"] = target["decompose"] = _fewer_decomposed(
            seen.source_alphabet | seen.target_alphabet
        )
    joint = source == target and seen.one_script
    hurried = minutes is not None and minutes < MINUTES_OF_MANY
    many = n >= MANY_STRINGS and not edits and not hurried
    width = 512 if many else 256 if edits and n >= 2000 else 192
    dropout = 0.4 if n < 2000 else 0.3 if n < MAX_TO_EDIT else 0.25 if many else 0.2
    epochs = min(400, max(100, round(40 / max(n, 1) * 100) * 10))
    decoder: dict[str, Any] = {
        "kind": "recurrent",
        "dim": width,
        "num_layers": 1,
        "dropout": dropout,
        "attention": "general",
        "context": "output",
    }
    if edits:
        decoder = {"kind": "edit", "dim": width, "dropout": dropout, "tied": False}
        decoder |= {"copy": True} if joint else {}
    return {
        "task": {
            "source": source,
            "target": target,
            "metric": "sequence_error",
        }
        | ({"joint": True} if joint and edits else {}),
        "encoder": {"kind": "recurrent", "dim": width, "num_layers": 2, "dropout": dropout},
        "decoder": decoder,
        "train": {
            "rate": 1e-3 if many else 2e-3,
            "batch_tokens": _batch_tokens(n, smallest=512, largest=2048),
            "label_smoothing": 0.0 if edits else 0.1,
            "average": 0.999 if many else 0.995,
            "warmup": 400 if many else 200,
        }
        | _epochs(n, most=epochs, scale=11_000.0 if many else 5600.0)
        | ({"evaluate_every": 100} if n < 2000 else {}),  # an epoch is a few steps
        "decode": _decode(seen, per_character=True),
    }


def _fewer_decomposed(letters: set[str]) -> bool:
    """Whether NFD normalisation leaves fewer characters."""
    return len(set(unicodedata.normalize("NFD", "".join(letters)))) < len(letters)


def _tag_columns(names: Sequence[c.Column], seen: Survey) -> dict[str, Any]:
    """A table for each source column of tags, with their separator."""
    columns = {}
    for name, cells in zip(names[1:], seen.side_cells, strict=False):
        if (separator := tag_separator(cells)) is not None:
            columns[str(name)] = {"kind": "word", "size": 2000, "separator": separator}
            columns[str(name)]["ordered"] = False
    return columns


def _sentences(seen: Survey) -> dict[str, Any]:
    """Sentences to sentences: subwords, and a Transformer."""
    n = seen.count
    pieces = int(min(32_000, max(500, 8000 * sqrt(n / 29_000)))) // 100 * 100
    source = {"kind": "bpe", "size": pieces}
    target = {"kind": "word", "size": 2000} if seen.symbols else source
    joint = source == target and seen.one_script
    size = "tiny" if n < 100_000 else "small" if n < 1_000_000 else "base"
    dropout = {"dropout": 0.3 if n < 100_000 else 0.1}
    parts = {"kind": "transformer"} | expand(size, "transformer") | {"norm_first": True} | dropout
    return {
        "task": {"source": source, "target": target, "joint": joint, "metric": "bleu"},
        "encoder": parts,
        "decoder": parts,
        "train": {
            "rate": 3e-3 if size == "tiny" else 1e-3,
            "batch_tokens": _batch_tokens(n, smallest=1024, largest=8192),
            "label_smoothing": 0.1,
            "average": 0.999,
            "warmup": 400,
        }
        | _epochs(n),
        "decode": _decode(seen, per_character=False),
    }


def _classify(seen: Survey) -> dict[str, Any]:
    n = seen.count
    letters = {"kind": "char", "size": 2000} if seen.one_word else {}
    return {
        "task": {
            "tokenizer": letters
            or {
                "kind": "word",
                "size": 30_000,
                "min_count": 1 if n < 5000 else 2,
                "split_punctuation": True,
            }
        },
        "encoder": {"kind": "recurrent", "dim": 128 if n < 10_000 else 256, "dropout": 0.4},
        "head": {"kind": "pooled", "pool": "attention", "dropout": 0.4},
        "train": {
            "rate": 1e-3,
            "batch_tokens": _batch_tokens(n, smallest=512, largest=4096),
            "word_dropout": 0.0 if letters else 0.1,
            "average": 0.99,
            "warmup": 100,
            "patience": 5,
        }
        | _epochs(n, most=40, scale=1500),
    }


def _tag(seen: Survey) -> dict[str, Any]:
    n = seen.count
    tokenizer: dict[str, Any] = {"kind": "word", "size": 30_000, "min_count": 2, "spelled": True}
    if all(len(word) == 1 for row in seen.first for word in row.source):
        tokenizer |= {"min_count": 1, "spelled": False}  # a sequence of symbols, such as a protein
    spans = is_bio(seen.labels) and seen.broken_spans <= MAX_BROKEN_SPANS * seen.sampled
    return {
        "task": {"tokenizer": tokenizer} | ({"spans": True} if spans else {}),
        "encoder": {"kind": "recurrent", "dim": 256, "num_layers": 2, "dropout": 0.4},
        "head": {"kind": "per_word", "dropout": 0.4},
        "train": {
            "rate": 2e-3,
            # of words and their characters
            "batch_tokens": 4 * _batch_tokens(n, smallest=512, largest=2048),
            "word_dropout": 0.05,
            "average": 0.995,
            "warmup": 100,
        }
        | _epochs(n, most=60, scale=2500),
    }


def _characters(seen: Survey) -> dict[str, Any]:
    """What differs for a label at every character: rows are long, and symbols few."""
    return {
        "task": {"tokenizer": {"kind": "word", "size": 2000, "min_count": 1, "spelled": False}},
        "train": {"batch_tokens": 8192, "word_dropout": 0.0},
    }


def _language(seen: Survey) -> dict[str, Any]:
    size = seen.characters
    words = size > 5_000_000
    tokenizer = {"kind": "bpe", "size": 8000} if words else {"kind": "char", "size": 5000}
    return {
        "task": {"tokenizer": tokenizer, "context": 128 if not words else 64},
        "decoder": {
            "kind": "recurrent",
            "dim": 256 if size < 300_000 else 512,
            "num_layers": 2,
            "dropout": 0.4,
            "attention": "off",
        },
        "train": {
            "rate": 2e-3,
            "batch_tokens": 1024 if size < 300_000 else 4096,
            "average": 0.99,
            "warmup": 100,
        }
        | _epochs(size // 50, most=40, scale=3000),
        "decode": {"kind": "beam", "width": 1},
    }


def _epochs(n: int, most: int = 100, scale: float = 5600.0) -> dict[str, Any]:
    """The number of epochs: many for few lines, few for many."""
    return {"epochs": int(min(most, max(2, round(scale / sqrt(max(n, 1))))))}


def _batch_tokens(n: int, smallest: int, largest: int) -> int:
    """Small batches for few examples, so that an epoch still has many steps."""
    size = smallest
    while size < largest and n > 20 * size:
        size *= 2
    return size


def _decode(seen: Survey, per_character: bool) -> dict[str, Any]:
    longest = seen.longest_target if not seen.symbols else seen.longest_target // 2
    ratio = max(1.0, seen.target_chars / max(seen.source_chars, 1))
    return {
        "max_len": int(min(1000, max(20, 1.5 * longest + 10))),
        "max_ratio": round(2.0 * ratio, 1) if per_character else round(3.0 * ratio, 1),
    }


def _size_tables(size: str | None, kind: str, raw: dict[str, Any]) -> dict[str, Any]:
    """The settings of a named size, for each part of the network."""
    if size is None:
        return {}
    found: dict[str, Any] = {}
    for part in c.parts_of(raw["task"]):
        if part not in ("head", "output"):
            table = raw.get(part, {})
            part_kind = table.get("kind", "transformer")
            found[part] = {"kind": part_kind} | expand(str(size), part_kind, part)
    return found


def _minimal_config(table: dict[str, Any]) -> dict[str, Any]:
    """The minimal tables for a valid configuration with this table of the task."""
    task = c.TASKS[table["kind"]]
    tables: dict[str, Any] = {"task": {"kind": table["kind"]}}
    for part in c.parts_of(table):
        tables[part] = {"kind": "gaussian" if part == "output" else "recurrent"}
    if "decoder" in tables and "encoder" not in tables:  # nothing to attend to
        tables["decoder"]["attention"] = "off"
    if "head" in tables:
        tables["head"] = {"kind": c.HEADS.get(task.target_type, "per_token")}
    return tables


def _merge(given: dict[str, Any], default: dict[str, Any]) -> dict[str, Any]:
    """`given`, with missing keys from `default`; a table of another kind does not change."""
    merged = dict(given)
    for key, value in default.items():
        if key not in merged:
            merged[key] = copy.deepcopy(value)
        elif isinstance(value, dict) and isinstance(merged[key], dict):
            kinds = merged[key].get("kind"), value.get("kind")
            if None in kinds or kinds[0] == kinds[1]:
                merged[key] = _merge(merged[key], value)
    return merged


def paths_of(data: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> list[str]:
    if isinstance(data, str | os.PathLike):
        return [os.fspath(data)]
    return [os.fspath(path) for path in data]
