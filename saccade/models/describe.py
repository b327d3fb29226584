"""Our networks as published architectures: the config.json that describes one, and its tensors.

A network fits an architecture if the config.json that we would write is read back as the same
network, so nothing can be exported that would not be imported. Differences in numbers alone are
folded into the weights: embeddings scaled by sqrt(dim), another order of sines and cosines,
sinusoidal positions as a table.
"""

from collections.abc import Iterator, Mapping
from math import sqrt
from typing import Any, NamedTuple

import torch
from torch import Tensor

from saccade import config as c
from saccade.errors import CheckpointError, ConfigError
from saccade.models.pretrained import published
from saccade.models.pretrained_parts import Published
from saccade.nn.positions import sinusoids

ACTIVATION_NAMES = {"relu": "relu", "gelu": "gelu", "gelu_tanh": "gelu_new", "silu": "silu"}
SINUSOIDAL_POSITIONS = 1024  # positions of a table of waves
CLASSES = {
    ("gpt2", "language"): "GPT2LMHeadModel",
    ("llama", "language"): "LlamaForCausalLM",
    ("t5", "translate"): "T5ForConditionalGeneration",
    ("bart", "translate"): "BartForConditionalGeneration",
    ("marian", "translate"): "MarianMTModel",
    ("pegasus", "translate"): "PegasusForConditionalGeneration",
    ("bert", "masked"): "BertForMaskedLM",
    ("bert", "classify"): "BertForSequenceClassification",
    ("bert", "tag"): "BertForTokenClassification",
    ("roberta", "masked"): "RobertaForMaskedLM",
    ("roberta", "classify"): "RobertaForSequenceClassification",
    ("roberta", "tag"): "RobertaForTokenClassification",
    ("distilbert", "masked"): "DistilBertForMaskedLM",
    ("distilbert", "classify"): "DistilBertForSequenceClassification",
    ("distilbert", "tag"): "DistilBertForTokenClassification",
}
FREE = ("dropout", "attention_dropout", "max_positions", "tied", "scale_embedding", "output_bias")


class Description(NamedTuple):
    """A network as a published architecture."""

    raw: dict[str, Any]  # config.json, without special ids
    arch: Published
    weights: dict[str, Tensor]  # ours, with all that is folded


def describe(config: c.Config, weights: Mapping[str, Tensor], rows: int) -> Description:
    """A network as a published architecture; ConfigError if it fits none."""
    kind = task_kind(config)
    reasons = []
    for raw in _candidates(config, kind, rows):
        raw["architectures"] = [CLASSES[raw["model_type"], kind]]
        own, changes, problems = dict(weights), dict[str, Any](), list[str]()
        try:
            changes = _fold(config, raw, own)
        except ConfigError as error:
            problems.append(str(error))
        try:
            arch = published(raw, "config.json", _tensors(own))
            problems += _differences(config, arch, changes)
        except CheckpointError as error:
            problems.append(str(error))
        if not problems:
            return Description(raw, arch, own)
        reasons.append(f"{raw['model_type']}: {', '.join(problems)}")
    tried = "; ".join(reasons) or f"the task '{config.task.kind}' has none"
    raise ConfigError(f"no architecture of transformers fits this network ({tried})")


def task_kind(config: c.Config) -> str:
    """The task of a network by its name in `pretrained`."""
    if isinstance(config.head, c.PerToken):
        return "masked"
    if isinstance(config.task, c.Pretrain):
        return "language" if config.encoder is None else "translate"
    return str(config.task.kind)


def _tensors(own: Mapping[str, Tensor]) -> set[str]:
    return {"lm_head.weight"} if "decoder.output.weight" in own else set()


def _differences(config: c.Config, arch: Published, folded: Mapping[str, Any]) -> Iterator[str]:
    """The settings that would be read back with another value."""
    for part, table in arch.tables.items():
        ours = getattr(config, part)
        if ours is None:
            yield f"it has no {part}"
            continue
        theirs = type(ours).model_validate(table)
        for name in type(ours).model_fields:
            if name in FREE or f"{part}.{name}" in folded or not _has_effect(ours, name):
                continue
            one, other = _value(ours, name), _value(theirs, name)
            if one != other:
                yield f"{part}.{name} is {one!r}, and there it is {other!r}"
    if isinstance(config.task, c.Translate) and not config.task.joint:
        yield "source and target have a vocabulary each, and there is one for both: task.joint"


def _has_effect(table: Any, name: str) -> bool:
    """Whether a setting changes anything, given the others."""
    positions = getattr(table, "positions", "")
    if name.startswith("relative_"):
        return bool(positions == "relative")
    if name.startswith("rotary_"):
        return bool(positions == "rotary")
    return name != "position_offset" or positions == "learned"


def _value(table: Any, name: str) -> Any:
    value = getattr(table, name)
    if name == "head_dim" and value is None:
        return table.dim // table.num_heads
    if name == "num_kv_heads" and value is None:
        return table.num_heads
    if name == "norm_eps" and value is None:
        return 1e-5 if table.norm == "layer" else 1e-6
    return value


# --- config.json ----------------------------------------------------------------------------------


def _candidates(config: c.Config, kind: str, rows: int) -> Iterator[dict[str, Any]]:
    """The config.json of every architecture that may fit, the likeliest first."""
    encoder, decoder = config.encoder, config.decoder
    for part in (encoder, decoder):
        if part is not None and not isinstance(part, c.Transformer):
            raise ConfigError(
                f"no architecture of transformers fits this network: a part of it is {part.kind}, "
                "and only Transformers are exported there"
            )
    if config.task.own:
        raise ConfigError("no architecture of transformers fits: this network reads other sources")
    if isinstance(decoder, c.TransformerDecoder) and encoder is None:
        yield _llama(decoder, rows, config) if decoder.norm == "rms" else _gpt2(decoder, rows)
    elif isinstance(decoder, c.TransformerDecoder) and isinstance(encoder, c.TransformerEncoder):
        if encoder.positions == "relative":
            yield _t5(encoder, decoder, rows)
            return
        name = "pegasus" if encoder.norm_first else "marian"
        name = "bart" if encoder.norm_embedding else name
        yield _bart(name, encoder, decoder, rows)
    elif isinstance(encoder, c.TransformerEncoder):
        dense = getattr(config.head, "dense", "")
        plain = not encoder.segments
        if plain and not encoder.position_offset and (kind != "classify" or dense == "relu"):
            yield _distilbert(encoder, rows)
        offset = encoder.position_offset
        yield _bert("roberta" if offset else "bert", encoder, rows)


def _bert(name: str, part: c.TransformerEncoder, rows: int) -> dict[str, Any]:
    raw: dict[str, Any] = {
        "model_type": name,
        "vocab_size": rows,
        "hidden_size": part.dim,
        "num_hidden_layers": part.num_layers,
        "num_attention_heads": part.num_heads,
        "intermediate_size": part.ff_dim,
        "hidden_act": _activation_name(part.activation),
        "hidden_dropout_prob": part.dropout,
        "attention_probs_dropout_prob": part.attention_dropout,
        "max_position_embeddings": part.max_positions + part.position_offset,
        "type_vocab_size": max(1, part.segments),
        "layer_norm_eps": _value(part, "norm_eps"),
    }
    return raw | ({"pad_token_id": part.position_offset - 1} if name == "roberta" else {})


def _distilbert(part: c.TransformerEncoder, rows: int) -> dict[str, Any]:
    return {
        "model_type": "distilbert",
        "vocab_size": rows,
        "dim": part.dim,
        "n_layers": part.num_layers,
        "n_heads": part.num_heads,
        "hidden_dim": part.ff_dim,
        "activation": _activation_name(part.activation),
        "dropout": part.dropout,
        "attention_dropout": part.attention_dropout,
        "max_position_embeddings": part.max_positions,
    }


def _gpt2(part: c.TransformerDecoder, rows: int) -> dict[str, Any]:
    return {
        "model_type": "gpt2",
        "vocab_size": rows,
        "n_embd": part.dim,
        "n_layer": part.num_layers,
        "n_head": part.num_heads,
        "n_inner": part.ff_dim,
        "n_positions": part.max_positions if part.positions == "learned" else SINUSOIDAL_POSITIONS,
        "activation_function": _activation_name(part.activation),
        "resid_pdrop": part.dropout,
        "embd_pdrop": part.dropout,
        "attn_pdrop": part.attention_dropout,
        "layer_norm_epsilon": _value(part, "norm_eps"),
        "tie_word_embeddings": part.tied,
    }


def _llama(part: c.TransformerDecoder, rows: int, config: c.Config) -> dict[str, Any]:
    context = getattr(config.task, "context", 1024)
    raw: dict[str, Any] = {
        "model_type": "llama",
        "vocab_size": rows,
        "hidden_size": part.dim,
        "num_hidden_layers": part.num_layers,
        "num_attention_heads": part.num_heads,
        "num_key_value_heads": _value(part, "num_kv_heads"),
        "head_dim": _value(part, "head_dim"),
        "intermediate_size": part.ff_dim,
        "hidden_act": "silu",
        "rms_norm_eps": _value(part, "norm_eps"),
        "rope_theta": part.rotary_theta,
        "max_position_embeddings": context,
        "attention_dropout": part.attention_dropout,
        "tie_word_embeddings": part.tied,
    }
    if (scaling := part.rotary_scaling) is not None:
        raw["rope_scaling"] = {"rope_type": scaling.kind, "factor": scaling.factor}
        if scaling.kind == "llama3":
            raw["max_position_embeddings"] = max(context, scaling.context)
            raw["rope_scaling"] |= {
                "low_freq_factor": scaling.low,
                "high_freq_factor": scaling.high,
                "original_max_position_embeddings": scaling.context,
            }
    return raw


def _t5(encoder: c.TransformerEncoder, part: c.TransformerDecoder, rows: int) -> dict[str, Any]:
    return {
        "model_type": "t5",
        "vocab_size": rows,
        "d_model": part.dim,
        "d_kv": _value(part, "head_dim"),
        "num_heads": part.num_heads,
        "d_ff": part.ff_dim,
        "num_layers": encoder.num_layers,
        "num_decoder_layers": part.num_layers,
        "dropout_rate": part.dropout,
        "layer_norm_epsilon": _value(part, "norm_eps"),
        "feed_forward_proj": "gated-gelu" if part.activation == "geglu" else part.activation,
        "relative_attention_num_buckets": part.relative_buckets,
        "relative_attention_max_distance": part.relative_distance,
        "scale_decoder_outputs": part.scale_embedding,
        "tie_word_embeddings": part.scale_embedding,
        "is_encoder_decoder": True,
    }


def _bart(
    name: str, encoder: c.TransformerEncoder, part: c.TransformerDecoder, rows: int
) -> dict[str, Any]:
    learned = part.positions == "learned"
    return {
        "model_type": name,
        "vocab_size": rows,
        "d_model": part.dim,
        "encoder_layers": encoder.num_layers,
        "decoder_layers": part.num_layers,
        "encoder_attention_heads": encoder.num_heads,
        "decoder_attention_heads": part.num_heads,
        "encoder_ffn_dim": encoder.ff_dim,
        "decoder_ffn_dim": part.ff_dim,
        "activation_function": _activation_name(part.activation),
        "dropout": part.dropout,
        "attention_dropout": part.attention_dropout,
        "max_position_embeddings": part.max_positions if learned else SINUSOIDAL_POSITIONS,
        "scale_embedding": part.scale_embedding,
        "tie_word_embeddings": part.tied,
        "is_encoder_decoder": True,
        "forced_eos_token_id": None,
    }


def _activation_name(activation: str) -> str:
    if activation not in ACTIVATION_NAMES:
        raise ConfigError(f"the activation '{activation}' is not known there")
    return ACTIVATION_NAMES[activation]


# --- differences folded into weights --------------------------------------------------------------


def _fold(config: c.Config, raw: dict[str, Any], own: dict[str, Tensor]) -> dict[str, Any]:
    """Change weights to fit the architecture; the settings that need not agree any more."""
    kind, changes = raw["model_type"], dict[str, Any]()
    part = config.decoder if isinstance(config.decoder, c.Transformer) else config.encoder
    assert isinstance(part, c.Transformer)
    bias = own.get("decoder.output.bias")
    if kind in ("gpt2", "llama", "t5") and bias is not None:
        if bool(bias.any()):
            raise ConfigError(
                "there the output layer has no bias, and this one has: train with "
                "decoder.output_bias = false"
            )
        del own["decoder.output.bias"]
    if kind in ("bart", "marian", "pegasus") and bias is None:
        own["decoder.output.bias"] = torch.zeros(raw["vocab_size"])
    if kind in ("gpt2", "llama", "bert", "roberta", "distilbert") and part.scale_embedding:
        name = "decoder.embedding.weight" if kind in ("gpt2", "llama") else STEM
        if kind in ("gpt2", "llama") and "decoder.output.weight" not in own:
            own["decoder.output.weight"] = own[name]
            raw["tie_word_embeddings"] = False
        elif isinstance(config.head, c.PerToken) and config.head.tied:
            raise ConfigError("there embeddings are not scaled: encoder.scale_embedding = false")
        own[name] = own[name] * sqrt(part.dim)
    if kind == "t5" and part.scale_embedding and "decoder.output.weight" in own:
        own[STEM] = own[STEM] * sqrt(part.dim)
        raw |= {"scale_decoder_outputs": False, "tie_word_embeddings": False}
    if kind in ("marian", "pegasus") and part.positions == "sinusoidal":
        order = torch.cat([torch.arange(0, part.dim, 2), torch.arange(1, part.dim, 2)])
        for name in own:
            own[name] = _reordered(name, own[name], order, part.dim)
        changes |= {"encoder.positions": True, "decoder.positions": True}
    if kind == "gpt2" and part.positions in ("sinusoidal", "none"):
        table = sinusoids(SINUSOIDAL_POSITIONS, part.dim)
        waves = table if part.positions == "sinusoidal" else torch.zeros_like(table)
        own["decoder.stack.positions.table.weight"] = waves.clone()
        changes["decoder.positions"] = True
    if kind in ("bert", "roberta") and STEM_SEGMENTS not in own:
        own[STEM_SEGMENTS] = torch.zeros(1, part.dim)
        changes["encoder.segments"] = True
    return changes


STEM, STEM_SEGMENTS = "encoder.stem.embedding.weight", "encoder.stem.segments.weight"
INPUT_COLUMNS = ("qkv.weight", "up.weight", "query.weight", "kv.weight", "output.weight")
OUTPUT_ROWS = ("out.weight", "out.bias", "down.weight", "down.bias", "norm.weight", "norm.bias")


def _reordered(name: str, weight: Tensor, order: Tensor, dim: int) -> Tensor:
    """A weight for vectors with another order of columns."""
    if name.endswith((*INPUT_COLUMNS, "embedding.weight")) and weight.dim() == 2:
        assert weight.size(1) == dim
        return weight[:, order]
    return weight[order] if name.endswith(OUTPUT_ROWS) else weight


def exported_tensors(description: Description) -> dict[str, Tensor]:
    """The tensors of a file of weights."""
    tensors: dict[str, Tensor] = {}
    for rule in description.arch.weights:
        if rule.ours not in description.weights:
            raise ConfigError(f"this network has no '{rule.ours}', which is needed there")
        parts = rule.layout.split(description.weights[rule.ours].float())
        tensors |= dict(zip(rule.theirs, (p.contiguous() for p in parts), strict=True))
    return tensors
