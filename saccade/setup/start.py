"""The settings that a new run takes over from another: the network's shape, and the vocabularies.

The weights themselves are in `runs/start.py`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from saccade import config as c
from saccade.data.fields import Text
from saccade.data.kinds import Vocabularies
from saccade.errors import ConfigError
from saccade.tasks.task import Task
from saccade.text.tokenizers import Tokenizer

# The keys of a part's table that may differ from the run: the others change the use of weights.
CHANGEABLE = (
    *("dropout", "weight_dropout", "attention_dropout", "num_layers", "causal", "attention"),
    *("context", "tied", "mix", "copy"),
)
RATE_OF_256 = 3e-4  # of a Transformer of this width; of one of 768, as BERT, 3.3e-5
RATE_SHARE = 0.4  # of the rate that a recurrent network was trained at
NEW_RATES = {"frozen": 5e-3, "lora": 1e-3}  # where only new weights learn, or adapters


def origins(parts: Sequence[str], pretrained: c.Config) -> dict[str, str]:
    """The part of a run from which each part of a new network starts; new parts are absent.

    An encoder starts from an encoder, a decoder from a decoder. Where the new network has an
    encoder and no decoder, and the run is a language model, the encoder starts from its decoder.
    """
    origin_of: dict[str, str] = {}
    for part in ("encoder", "decoder"):
        if part in parts and getattr(pretrained, part) is not None:
            origin_of[part] = part
    if "encoder" in parts and "decoder" not in parts and pretrained.encoder is None:
        origin_of["encoder"] = "decoder"
    return origin_of


def start_defaults(
    raw: Mapping[str, Any], where: str, pretrained: c.Config, chosen: dict[str, Any], examples: int
) -> dict[str, Any]:
    """The defaults of a network that starts from the weights of a run.

    `chosen` are those without one. ConfigError where the user's settings do not fit the run.
    """
    kind, run = raw["task"]["kind"], raw["start"]["run"]
    parts = c.parts_of(raw["task"])
    origin_of = origins(parts, pretrained)
    if not origin_of:
        has = " and ".join(p for p in ("encoder", "decoder") if getattr(pretrained, p) is not None)
        wanted = " or ".join(p for p in parts if p in ("encoder", "decoder"))
        raise ConfigError(
            f"{where}: start.run: {run} ({pretrained.task.kind}) has the part {has or 'none'}, and "
            f"the task '{kind}' needs the part {wanted}: start from a run that has it"
        )
    if raw.get("size") is not None:
        raise ConfigError(f"{where}: size: the network's shape is that of {run}: leave it out")
    chosen = {name: dict(table) for name, table in chosen.items()}
    for part, origin in origin_of.items():
        without_encoder, pretraining = "encoder" not in parts, kind == "pretrain"
        table = _table(pretrained, origin, part, without_encoder, pretraining)
        _refuse_conflicts(raw.get(part, {}), table, part, run, where)
        chosen[part] = table
    if "head" in parts and isinstance(pretrained.head, c.PerToken) and kind == "pretrain":
        chosen["head"] = pretrained.head.model_dump(mode="json")
    joint = _joint(raw, where, pretrained, origin_of)
    for key, tokenizer in tokenizers(kind, origin_of, pretrained, joint).items():
        _refuse_conflicts(raw["task"].get(key, {}), tokenizer, f"task.{key}", run, where)
        chosen["task"][key] = tokenizer
    if kind == "translate":
        chosen["task"]["joint"] = joint
    if raw["task"].get("vocabulary"):
        raise ConfigError(
            f"{where}: task.vocabulary: the vocabulary is that of {run}: leave one of them out"
        )
    _limit_lengths(chosen, kind, pretrained, origin_of)
    chosen["train"] |= _training(raw["start"].get("kind"), chosen, origin_of, pretrained, examples)
    return chosen


def _table(
    pretrained: c.Config, origin: str, part: str, without_encoder: bool, pretraining: bool
) -> dict[str, Any]:
    """The settings of a part of a run, as those of a part of the new network."""
    settings = getattr(pretrained, origin)
    table: dict[str, Any] = settings.model_dump(mode="json")
    if origin != part:  # a decoder that becomes an encoder stays causal
        transformer = isinstance(settings, c.Transformer)
        model = c.TransformerEncoder if transformer else c.RecurrentEncoder
        table = {key: value for key, value in table.items() if key in model.model_fields}
        return table | ({"causal": True} if transformer else {"bidirectional": False})
    if isinstance(settings, c.RecurrentEncoder) and settings.separate:
        table["mix"] = not pretraining and settings.num_layers > 1
    if isinstance(settings, c.RecurrentDecoder):
        if without_encoder:  # there is nothing to attend to
            table |= {"attention": "off", "context": "cell"}
        elif pretrained.encoder is None:  # attention above the layers, which do not change
            table |= {"attention": "general", "context": "output"}
    return table


def _refuse_conflicts(
    given: Any, table: Mapping[str, Any], name: str, run: str, where: str
) -> None:
    """ConfigError where the user's settings conflict with those of the run."""
    for key, value in given.items() if isinstance(given, dict) else ():
        if key in CHANGEABLE or key not in table or table[key] == value:
            continue
        raise ConfigError(
            f"{where}: {name}.{key} is {value!r}, and {table[key]!r} in {run}, whose weights are "
            "taken over: leave it out, or train without a run to start from"
        )


def _joint(
    raw: Mapping[str, Any], where: str, pretrained: c.Config, origin_of: Mapping[str, str]
) -> bool:
    """Whether both sides of a translation share a vocabulary."""
    there = bool(getattr(pretrained.task, "joint", isinstance(pretrained.task, c.Pretrain)))
    wanted = bool(raw["task"].get("joint", there and len(origin_of) > 1))
    if wanted and not there and {"encoder", "decoder"} <= origin_of.keys():
        run = raw["start"]["run"]
        raise ConfigError(
            f"{where}: task.joint: {run} has two vocabularies, which are taken over: remove it"
        )
    return wanted and raw["task"]["kind"] == "translate"


def tokenizers(
    kind: str, origin_of: Mapping[str, str], pretrained: c.Config, joint: bool
) -> dict[str, dict[str, Any]]:
    """The settings of the run's tokenizers, by their keys in the new task's table."""
    target = _target_tokenizer(pretrained) if "decoder" in origin_of.values() else None
    source = target if origin_of.get("encoder") == "decoder" else None
    if origin_of.get("encoder") == "encoder":
        source = _source_tokenizer(pretrained)
    if joint:
        source = target = source or target
    keys: dict[str, c.Tokenizer | None]
    match kind:
        case "translate":
            keys = {"source": source, "target": target}
        case "language" | "pretrain":
            keys = {"tokenizer": source or target}
        case _:
            keys = {"tokenizer": source}
    return {key: one.model_dump(mode="json") for key, one in keys.items() if one is not None}


def _source_tokenizer(pretrained: c.Config) -> c.Tokenizer | None:
    """The tokenizer settings of the encoder of a run; None if it reads no text."""
    sources = pretrained.task.sources(pretrained.data.source)
    first = sources[0].reader if pretrained.encoder is not None and sources else None
    return first if isinstance(first, c.Tokenizer) else None


def _target_tokenizer(pretrained: c.Config) -> c.Tokenizer | None:
    """The tokenizer settings of the decoder of a run; None if it writes no text."""
    match pretrained.task:
        case c.Translate():
            return pretrained.task.target
        case c.LanguageModel() | c.Pretrain():
            return pretrained.task.tokenizer
        case _:
            return None


def _limit_lengths(
    chosen: dict[str, Any], kind: str, pretrained: c.Config, origin_of: Mapping[str, str]
) -> None:
    """Choose lengths within the learned positions of the run."""
    limits = [
        chosen[part]["max_positions"]
        for part in origin_of
        if chosen[part].get("positions") == "learned" and "max_positions" in chosen[part]
    ]
    if kind in ("language", "pretrain"):
        context = getattr(pretrained.task, "context", chosen["task"].get("context", 128))
        chosen["task"]["context"] = min([context, *limits])
    elif limits:
        chosen["data"] = {"max_len": min([1024, *limits])}


def _training(
    how: str | None,
    chosen: Mapping[str, Any],
    origin_of: Mapping[str, str],
    pretrained: c.Config,
    examples: int,
) -> dict[str, Any]:
    """A lower rate than from scratch, against forgetting, and fewer epochs."""
    widths = [chosen[part]["dim"] for part in origin_of if chosen[part]["kind"] == "transformer"]
    rate = RATE_SHARE * pretrained.train.rate
    if widths:
        rate = min(RATE_OF_256 * (256 / min(widths)) ** 2, chosen["train"]["rate"])
    rate = NEW_RATES.get(how or "", rate)
    most = chosen["train"].get("epochs", 30)
    epochs = int(max(3, min(30, most, round(600 / max(examples, 1) ** 0.5))))
    # a subword model has hardly ever read <unk>, which word dropout would insert
    return {"rate": float(f"{rate:.1e}"), "epochs": epochs, "word_dropout": 0.0}


# --- vocabularies ---------------------------------------------------------------------------------


def vocabularies(config: c.Config, pretrained: Task) -> Vocabularies:
    """The run's tokenizers for a new task: those whose settings `tokenizers` gives."""
    task, there = config.task, pretrained.config
    joint = isinstance(task, c.Translate) and task.joint
    origin_of = origins(task.parts, there)
    keys = tokenizers(task.kind, origin_of, there, joint)
    read, written = _tokenizer(pretrained, 0), _tokenizer(pretrained, None)
    if origin_of.get("encoder") != "encoder":
        read = written
    if joint:
        read = written = read or written
    sources: list[Tokenizer | None] = []
    for i, source in enumerate(task.sources(config.data.source)):
        given = None
        if source.reader is task.reader:  # a source with no table of its own
            given = read if {"source", "tokenizer"} & keys.keys() else None
        elif origin_of.get("encoder") == "encoder":  # with one, if the run has the same
            own = _tokenizer(pretrained, i)
            given = own if own is not None and own.config == source.reader else None
        sources.append(given)
    has_target = isinstance(task, c.LanguageModel | c.Pretrain) or "target" in keys
    return Vocabularies(tuple(sources), written if has_target else None)


def _tokenizer(task: Task, number: int | None) -> Tokenizer | None:
    """The tokenizer of a source of a run, or of its target; None where that is no text."""
    if number is None or not task.sources:  # of plain text
        field = task.target
    elif number < len(task.sources):
        field = task.sources[number]
    else:
        return None
    return field.tokenizer if isinstance(field, Text) else None
