"""A Transformer for another engine: CTranslate2, which runs in C++ and needs no Python step.

The weights are the same; what differs is their layout, and that positions are a table.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from saccade import config as c
from saccade.data.digest import digest
from saccade.errors import ConfigError
from saccade.models.decoders import TransformerDecoder
from saccade.models.encoders import Encoder
from saccade.models.networks import Generator
from saccade.nn.attention import CrossAttention, SelfAttention
from saccade.nn.bodies import TransformerBody
from saccade.nn.positions import Learned, Sinusoidal
from saccade.nn.stems import Embedding, TextStem
from saccade.nn.transformer import Block, FeedForward
from saccade.text.vocab import Specials

POSITIONS = 2048  # of a table of waves, which here has an end
STAMP = "saccade.json"  # of which weights the export is, and the hash of each file


def why_not(config: c.Config) -> str:
    """Why this engine cannot run the networks of a configuration; nothing if it can."""
    for name in ("encoder", "decoder"):
        part = getattr(config, name)
        if part is not None and not isinstance(part, c.Transformer):
            return f"the {name} is {part.kind}, and CTranslate2 runs Transformers alone"
    if isinstance(config.task, c.Pretrain) and config.encoder is not None:
        return "what is missing in a text is filled in by torch alone"
    if config.task.own:
        return "CTranslate2 reads one source of text, and this model reads others"
    if config.decoder is None:
        return f"the task '{config.task.kind}' has no decoder"
    if isinstance(config.encoder, c.Transformer) and config.encoder.positions == "rotary":
        return "CTranslate2 has no rotary positions in an encoder beside a decoder"
    return ""


def longest(config: c.Config) -> int:
    """How many positions the exported model has."""
    found = [POSITIONS]
    for part in (config.encoder, config.decoder):
        if getattr(part, "positions", "") == "learned":
            found.append(part.max_positions)  # type: ignore[union-attr]
    return min(found)


def spec_of(
    config: c.Config,
    network: Generator,
    source: list[str],
    target: list[str],
    special: Specials,
) -> Any:
    """What CTranslate2 calls a model; the lists are the names of all tokens, by id.

    A network on the meta device gives all names and shapes, with zeros that take no memory.
    """
    if reason := why_not(config):
        raise ConfigError(f"export: {reason}")
    specs = _specs()
    bos, eos, unk = target[special.bos], target[special.eos], target[special.unk]
    decoder = _decoder(config.decoder, network.decoder, network.encoder is not None)
    if network.encoder is None:
        spec = specs.TransformerDecoderModelSpec(decoder)
        spec.register_vocabulary(target)
        spec.config.bos_token = eos  # a line begins after the end of the one before it
    else:
        spec = specs.TransformerSpec(_encoder(config.encoder, network.encoder), decoder)
        spec.register_source_vocabulary(source)
        spec.register_target_vocabulary(target)
        spec.config.add_source_bos = spec.config.add_source_eos = False
        spec.config.bos_token = spec.config.decoder_start_token = bos
    spec.config.eos_token, spec.config.unk_token = eos, unk
    assert isinstance(config.decoder, c.Transformer)
    spec.config.layer_norm_epsilon = 1e-5 if config.decoder.norm == "layer" else 1e-6
    spec.validate()
    return spec


def export_ctranslate2(spec: Any, folder: Path, stamp: str = "") -> None:
    """Write a model that CTranslate2 reads."""
    spec.optimize()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path in folder.iterdir():  # what is written stays here
            if path.is_symlink() or not (path.is_file() or path.is_dir()):
                raise ConfigError(f"{path}: is no plain file: remove it, then export")
        spec.save(str(folder))
        files = {path.name: digest(path) for path in folder.iterdir() if _is_ours(path)}
        said = json.dumps({"weights": stamp, "files": files})
        (folder / STAMP).write_text(said, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be written: {error.strerror or error}") from None


def _is_ours(path: Path) -> bool:
    return path.name in ("model.bin", "config.json") or "vocabulary" in path.name


def _specs() -> Any:
    try:
        from ctranslate2.specs import transformer_spec
    except ImportError:
        raise ConfigError("ctranslate2 is not installed: pip install 'saccade[fast]'") from None
    return transformer_spec


def _common(settings: Any) -> dict[str, Any]:
    from ctranslate2.specs.common_spec import Activation

    names = {"relu": Activation.RELU, "gelu": Activation.GELU, "swiglu": Activation.SWISH}
    return {
        "num_layers": settings.num_layers,
        "num_heads": settings.num_heads,
        "pre_norm": settings.norm_first,
        "activation": names[settings.activation],
        "ffn_glu": settings.activation == "swiglu",
        "rms_norm": settings.norm == "rms",
    }


def _encoder(settings: Any, encoder: Any) -> Any:
    assert isinstance(encoder, Encoder)
    body = encoder.body
    assert isinstance(body, TransformerBody)
    assert isinstance(encoder.stem, TextStem)
    spec = _specs().TransformerEncoderSpec(**_common(settings))
    spec.embeddings[0].weight = _array(encoder.stem.embedding.weight)
    spec.scale_embeddings = settings.scale_embedding
    spec.position_encodings.encodings = _array(_table(body.positions, settings.dim))
    if settings.norm_first:
        _norm(spec.layer_norm, body.norm)
    for layer, block in zip(spec.layer, body.blocks, strict=True):
        assert isinstance(block, Block)
        _self_attention(layer.self_attention, block)
        _feed_forward(layer.ffn, block)
    return spec


def _decoder(settings: Any, decoder: Any, with_memory: bool) -> Any:
    assert isinstance(decoder, TransformerDecoder)
    assert isinstance(decoder.embedding, Embedding)
    rotary = {"rotary_dim": 0, "rotary_interleave": True} if settings.positions == "rotary" else {}
    spec = _specs().TransformerDecoderSpec(
        **_common(settings), with_encoder_attention=with_memory, **rotary
    )
    spec.embeddings.weight = _array(decoder.embedding.weight)
    spec.scale_embeddings = settings.scale_embedding
    if not rotary:
        spec.position_encodings.encodings = _array(_table(decoder.stack.positions, settings.dim))
    if settings.norm_first:
        _norm(spec.layer_norm, decoder.stack.norm)
    assert isinstance(decoder.output, nn.Linear)
    _linear(spec.projection, decoder.output.weight, decoder.output.bias)
    for layer, block in zip(spec.layer, decoder.stack.blocks, strict=True):
        _self_attention(layer.self_attention, block)
        if with_memory:
            _cross_attention(layer.attention, block)
        _feed_forward(layer.ffn, block)
    return spec


def _table(positions: nn.Module, dim: int) -> Tensor:
    match positions:
        case Sinusoidal():
            return positions.table(POSITIONS)
        case Learned():
            return positions.table.weight[positions.skipped :]
        case _:
            return torch.zeros(POSITIONS, dim)


def _self_attention(spec: Any, block: Block) -> None:
    attention: SelfAttention = block.attention
    _norm(spec.layer_norm, block.attention_norm)
    qkv, K = attention.qkv, attention.head_dim
    weight = qkv.weight.view(-1, 3, K, qkv.in_features).transpose(0, 1).reshape(qkv.weight.shape)
    bias = qkv.bias.view(-1, 3, K).transpose(0, 1).reshape(-1)
    _linear(spec.linear[0], weight, bias)
    _linear(spec.linear[1], attention.out.weight, attention.out.bias)


def _cross_attention(spec: Any, block: Block) -> None:
    cross: CrossAttention = block.cross
    _norm(spec.layer_norm, block.cross_norm)
    kv, K = cross.kv, cross.head_dim
    weight = kv.weight.view(-1, 2, K, kv.in_features).transpose(0, 1).reshape(kv.weight.shape)
    bias = kv.bias.view(-1, 2, K).transpose(0, 1).reshape(-1)
    _linear(spec.linear[0], cross.query.weight, cross.query.bias)
    _linear(spec.linear[1], weight, bias)
    _linear(spec.linear[2], cross.out.weight, cross.out.bias)


def _feed_forward(spec: Any, block: Block) -> None:
    layer: FeedForward = block.feed_forward
    _norm(spec.layer_norm, block.feed_forward_norm)
    if layer.activation == "swiglu":
        (gate, up), (gate_bias, bias) = layer.up.weight.chunk(2), layer.up.bias.chunk(2)
        _linear(spec.linear_0, gate, gate_bias)
        _linear(spec.linear_0_noact, up, bias)
    else:
        _linear(spec.linear_0, layer.up.weight, layer.up.bias)
    _linear(spec.linear_1, layer.down.weight, layer.down.bias)


def _norm(spec: Any, norm: Any) -> None:
    spec.gamma = _array(norm.weight)
    if isinstance(norm, nn.LayerNorm):
        spec.beta = _array(norm.bias)


def _linear(spec: Any, weight: Tensor, bias: Tensor | None) -> None:
    spec.weight = _array(weight)
    if bias is not None:
        spec.bias = _array(bias)


def _array(tensor: Tensor) -> Any:
    if tensor.is_meta:
        return np.broadcast_to(np.zeros((), np.float32), tuple(tensor.shape))
    return tensor.detach().float().cpu().contiguous().numpy()
