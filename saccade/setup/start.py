"""What a new run takes over of another's settings: the network's shape, and the vocabularies.

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

# Of a part's table, what may be other than in the run: the rest would make other use of weights.
FREE = (
    *("dropout", "weight_dropout", "attention_dropout", "num_layers", "causal", "attention"),
    *("context", "tied", "mix", "copy"),
)
RATE_OF_256 = 3e-4  # of a Transformer that wide; of one of 768, as BERT, 3.3e-5
RATE_SHARE = 0.4  # of the rate that a recurrent network was trained at
NEW_RATES = {"frozen": 5e-3, "lora": 1e-3}  # where only what is new learns, or adapters


def origins(parts: Sequence[str], pretrained: c.Config) -> dict[str, str]:
    """Which part of a run each part of a new network begins with; what begins anew is absent.

    An encoder begins with an encoder, a decoder with a decoder. Where a network is to have an
    encoder and no decoder, and the run is a language model, the encoder begins with its decoder.
    """
    found: dict[str, str] = {}
    for part in ("encoder", "decoder"):
        if part in parts and getattr(pretrained, part) is not None:
            found[part] = part
    if "encoder" in parts and "decoder" not in parts and pretrained.encoder is None:
        found["encoder"] = "decoder"
    return found


def start_defaults(
    raw: Mapping[str, Any], where: str, pretrained: c.Config, chosen: dict[str, Any], examples: int
) -> dict[str, Any]:
    """What is left open, chosen for a network that begins with the weights of a run.

    `chosen` is what would be chosen without one. ConfigError where the user said what does not fit.
    """
    kind, run = raw["task"]["kind"], raw["start"]["run"]
    parts = c.parts_of(raw["task"])
    found = origins(parts, pretrained)
    if not found:
        has = " and ".join(p for p in ("encoder", "decoder") if getattr(pretrained, p) is not None)
        wanted = " or ".join(p for p in parts if p in ("encoder", "decoder"))
        raise ConfigError(
            f"{where}: start.run: {run} ({pretrained.task.kind}) has the part {has or 'none'}, and "
            f"the task '{kind}' needs the part {wanted}: start from a run that has it"
        )
    if raw.get("size") is not None:
        raise ConfigError(f"{where}: size: the network's shape is that of {run}: leave it out")
    chosen = {name: dict(table) for name, table in chosen.items()}
    for part, origin in found.items():
        alone, again = "encoder" not in parts, kind == "pretrain"
        table = _table(pretrained, origin, part, alone, again)
        _refuse_others(raw.get(part, {}), table, part, run, where)
        chosen[part] = table
    if "head" in parts and isinstance(pretrained.head, c.PerToken) and kind == "pretrain":
        chosen["head"] = pretrained.head.model_dump(mode="json")
    joint = _joint(raw, where, pretrained, found)
    for key, tokenizer in tokenizers(kind, found, pretrained, joint).items():
        _refuse_others(raw["task"].get(key, {}), tokenizer, f"task.{key}", run, where)
        chosen["task"][key] = tokenizer
    if kind == "translate":
        chosen["task"]["joint"] = joint
    if raw["task"].get("vocabulary"):
        raise ConfigError(
            f"{where}: task.vocabulary: the vocabulary is that of {run}: leave one of them out"
        )
    _shorten(chosen, kind, pretrained, found)
    chosen["train"] |= _training(raw["start"].get("kind"), chosen, found, pretrained, examples)
    return chosen


def _table(
    pretrained: c.Config, origin: str, part: str, alone: bool, again: bool
) -> dict[str, Any]:
    """The settings of a part of a run, as those of a part of the new network.

    A decoder is `alone` where the new network has no encoder; `again` it is pre-trained.
    """
    settings = getattr(pretrained, origin)
    table: dict[str, Any] = settings.model_dump(mode="json")
    if origin != part:  # a decoder that becomes an encoder still sees only what is before
        transformer = isinstance(settings, c.Transformer)
        model = c.TransformerEncoder if transformer else c.RecurrentEncoder
        table = {key: value for key, value in table.items() if key in model.model_fields}
        return table | ({"causal": True} if transformer else {"bidirectional": False})
    if isinstance(settings, c.RecurrentEncoder) and settings.separate:
        table["mix"] = not again and settings.num_layers > 1
    if isinstance(settings, c.RecurrentDecoder):
        if alone:  # there is nothing to attend to
            table |= {"attention": "off", "context": "cell"}
        elif pretrained.encoder is None:  # attention above the layers, which stay as they are
            table |= {"attention": "general", "context": "output"}
    return table


def _refuse_others(given: Any, table: Mapping[str, Any], name: str, run: str, where: str) -> None:
    """ConfigError where the user asks for other than what is taken over."""
    for key, value in given.items() if isinstance(given, dict) else ():
        if key in FREE or key not in table or table[key] == value:
            continue
        raise ConfigError(
            f"{where}: {name}.{key} is {value!r}, and {table[key]!r} in {run}, whose weights are "
            "taken over: leave it out, or train without a run to start from"
        )


def _joint(
    raw: Mapping[str, Any], where: str, pretrained: c.Config, found: Mapping[str, str]
) -> bool:
    """Whether both sides of a translation share a vocabulary."""
    there = bool(getattr(pretrained.task, "joint", isinstance(pretrained.task, c.Pretrain)))
    wanted = bool(raw["task"].get("joint", there and len(found) > 1))
    if wanted and not there and {"encoder", "decoder"} <= found.keys():
        run = raw["start"]["run"]
        raise ConfigError(
            f"{where}: task.joint: {run} has two vocabularies, which are taken over: remove it"
        )
    return wanted and raw["task"]["kind"] == "translate"


def tokenizers(
    kind: str, found: Mapping[str, str], pretrained: c.Config, joint: bool
) -> dict[str, dict[str, Any]]:
    """The settings of the tokenizers that are taken over, by their keys in the new task's table."""
    said = _writes(pretrained) if "decoder" in found.values() else None
    read = said if found.get("encoder") == "decoder" else None
    if found.get("encoder") == "encoder":
        read = _reads(pretrained)
    if joint:
        read = said = read or said
    keys: dict[str, c.Tokenizer | None]
    match kind:
        case "translate":
            keys = {"source": read, "target": said}
        case "language" | "pretrain":
            keys = {"tokenizer": read or said}
        case _:
            keys = {"tokenizer": read}
    return {key: one.model_dump(mode="json") for key, one in keys.items() if one is not None}


def _reads(pretrained: c.Config) -> c.Tokenizer | None:
    """With what the encoder of a run reads text; None if it reads none."""
    sources = pretrained.task.sources(pretrained.data.source)
    first = sources[0].reader if pretrained.encoder is not None and sources else None
    return first if isinstance(first, c.Tokenizer) else None


def _writes(pretrained: c.Config) -> c.Tokenizer | None:
    """With what the decoder of a run writes text; None if it writes none."""
    match pretrained.task:
        case c.Translate():
            return pretrained.task.target
        case c.LanguageModel() | c.Pretrain():
            return pretrained.task.tokenizer
        case _:
            return None


def _shorten(
    chosen: dict[str, Any], kind: str, pretrained: c.Config, found: Mapping[str, str]
) -> None:
    """Choose lengths that the learned positions of the run are enough for."""
    limits = [
        chosen[part]["max_positions"]
        for part in found
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
    found: Mapping[str, str],
    pretrained: c.Config,
    examples: int,
) -> dict[str, Any]:
    """A lower rate than from nothing, and fewer epochs: what is learned already is soon lost.

    What is new begins with nothing, and may learn faster.
    """
    widths = [chosen[part]["dim"] for part in found if chosen[part]["kind"] == "transformer"]
    rate = RATE_SHARE * pretrained.train.rate
    if widths:
        rate = min(RATE_OF_256 * (256 / min(widths)) ** 2, chosen["train"]["rate"])
    rate = NEW_RATES.get(how or "", rate)
    most = chosen["train"].get("epochs", 30)
    epochs = int(max(3, min(30, most, round(600 / max(examples, 1) ** 0.5))))
    # a vocabulary of pieces has hardly ever read <unk>, which word dropout would put in
    return {"rate": float(f"{rate:.1e}"), "epochs": epochs, "word_dropout": 0.0}


# --- vocabularies ---------------------------------------------------------------------------------


def vocabularies(config: c.Config, pretrained: Task) -> Vocabularies:
    """The tokenizers that a new task takes over: those of which `tokenizers` has the settings."""
    task, there = config.task, pretrained.config
    joint = isinstance(task, c.Translate) and task.joint
    found = origins(task.parts, there)
    keys = tokenizers(task.kind, found, there, joint)
    read, said = _tokenizer(pretrained, 0), _tokenizer(pretrained, None)
    if found.get("encoder") != "encoder":
        read = said
    if joint:
        said = read = read or said
    sources: list[Tokenizer | None] = []
    for i, source in enumerate(task.sources(config.data.source)):
        given = None
        if source.reader is task.reader:  # a source with no table of its own
            given = read if {"source", "tokenizer"} & keys.keys() else None
        elif found.get("encoder") == "encoder":  # with one, as it is there
            own = _tokenizer(pretrained, i)
            given = own if own is not None and own.config == source.reader else None
        sources.append(given)
    writes = isinstance(task, c.LanguageModel | c.Pretrain) or "target" in keys
    return Vocabularies(tuple(sources), said if writes else None)


def _tokenizer(task: Task, number: int | None) -> Tokenizer | None:
    """The tokenizer of a source of a run, or of its target; None where that is no text."""
    if number is None or not task.sources:  # of plain text
        field = task.target
    elif number < len(task.sources):
        field = task.sources[number]
    else:
        return None
    return field.tokenizer if isinstance(field, Text) else None
