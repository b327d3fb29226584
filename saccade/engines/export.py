"""Export of Transformers to CTranslate2, which runs in C++.

The weights are the same, in another layout, and positions are a table.
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
from saccade.models.layouts import Heads, MemoryHeads
from saccade.models.networks import Generator
from saccade.nn.attention import CrossAttention, SelfAttention
from saccade.nn.bodies import TransformerBody
from saccade.nn.positions import Learned, Relative, Sinusoidal
from saccade.nn.stems import Embedding, TextStem
from saccade.nn.transformer import GATED, Block, FeedForward, Stack
from saccade.text.tokenizers import Frame
from saccade.text.vocab import Specials

POSITIONS = 2048  # of a table of sinusoidal positions
STAMP = "saccade.json"  # the digest of the weights, and the hash of each file


def unsupported(config: c.Config) -> str:
    """Why this engine cannot run the networks of a configuration; empty if it can."""
    for name in ("encoder", "decoder"):
        part = getattr(config, name)
        if part is not None and not isinstance(part, c.Transformer):
            return f"the {name} is {part.kind}, and CTranslate2 runs Transformers only"
    if config.train.seeds > 1:
        return "CTranslate2 does not support ensembles"
    if isinstance(config.task, c.Pretrain) and config.encoder is not None:
        return "CTranslate2 does not support infilling objectives"
    if config.task.own:
        return "CTranslate2 supports a single text source only"
    if config.decoder is None:
        return f"the task '{config.task.kind}' has no decoder"
    if config.decoder.copies:
        return "CTranslate2 does not support the copy mechanism"
    if isinstance(config.encoder, c.Transformer) and config.encoder.positions == "rotary":
        return "CTranslate2 does not support rotary positions in an encoder-decoder"
    if getattr(getattr(config.decoder, "rotary_scaling", None), "kind", "linear") != "linear":
        return "CTranslate2 supports llama3 rotary scaling with its own settings only"
    both = [part for part in (config.encoder, config.decoder) if isinstance(part, c.Transformer)]
    if len({norm_eps(part) for part in both}) > 1 and any(part.norm_eps for part in both):
        return "CTranslate2 does not support different norms in encoder and decoder"
    if len(both) > 1 and any(part.num_kv_heads for part in both):
        return "CTranslate2 does not support grouped-query attention in an encoder-decoder"
    if getattr(config.encoder, "segments", 0):
        return "CTranslate2 does not support segment embeddings in an encoder-decoder"
    return ""


def norm_eps(part: c.Transformer) -> float:
    """The epsilon of a norm."""
    return part.norm_eps or (1e-5 if part.norm == "layer" else 1e-6)


def max_positions(config: c.Config) -> int:
    """The number of positions of the exported model."""
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
    frame: Frame,
) -> Any:
    """CTranslate2's specification of a model; the lists are the names of all tokens, by id.

    That of a network on the meta device has all names and shapes, with zeros without memory.
    """
    if reason := unsupported(config):
        raise ConfigError(f"export: {reason}")
    specs = _specs()
    eos, unk = target[special.eos], target[special.unk]
    decoder = _decoder(config.decoder, network.decoder, network.encoder is not None)
    if network.encoder is None:
        spec = specs.TransformerDecoderModelSpec(decoder)
        spec.register_vocabulary(target)
        spec.config.bos_token = target[frame.line[-1]]
    else:
        spec = specs.TransformerSpec(_encoder(config.encoder, network.encoder), decoder)
        spec.register_source_vocabulary(source)
        spec.register_target_vocabulary(target)
        spec.config.add_source_bos = spec.config.add_source_eos = False
        spec.config.bos_token = spec.config.decoder_start_token = target[frame.start[0]]
    spec.config.eos_token, spec.config.unk_token = eos, unk
    assert isinstance(config.decoder, c.Transformer)
    spec.config.layer_norm_epsilon = norm_eps(config.decoder)
    spec.validate()
    return spec


def export_ctranslate2(spec: Any, folder: Path, stamp: str = "") -> None:
    """Write a model that CTranslate2 reads."""
    spec.optimize()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path in folder.iterdir():  # what is written stays here
            if path.is_symlink() or not (path.is_file() or path.is_dir()):
                raise ConfigError(f"{path}: not a regular file: remove it, then export")
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

    names = {
        "relu": Activation.RELU,
        "gelu": Activation.GELU,
        "gelu_tanh": Activation.GELUTanh,
        "silu": Activation.SWISH,
        "swiglu": Activation.SWISH,
        "geglu": Activation.GELUTanh,
    }
    return {
        "num_layers": settings.num_layers,
        "num_heads": settings.num_heads,
        "pre_norm": settings.norm_first,
        "activation": names[settings.activation],
        "ffn_glu": settings.activation in GATED,
        "rms_norm": settings.norm == "rms",
        "layernorm_embedding": settings.norm_embedding,
        "relative_attention_bias": settings.positions == "relative",
        "head_dim": settings.head_dim,
        "num_heads_kv": settings.num_kv_heads,
    }


def _encoder(settings: Any, encoder: Any) -> Any:
    assert isinstance(encoder, Encoder)
    body = encoder.body
    assert isinstance(body, TransformerBody)
    assert isinstance(encoder.stem, TextStem)
    spec = _specs().TransformerEncoderSpec(**_common(settings))
    spec.embeddings[0].weight = _array(encoder.stem.embedding.weight)
    spec.scale_embeddings = settings.scale_embedding
    _first(spec, body, settings)
    for layer, block in zip(spec.layer, body.blocks, strict=True):
        assert isinstance(block, Block)
        _self_attention(layer.self_attention, block)
        _relative(layer.self_attention, body.positions)
        _feed_forward(layer.ffn, block)
    return spec


def _first(spec: Any, stack: Stack, settings: Any) -> None:
    """The positions and norm before the first block, and the norm after the last."""
    if settings.positions not in ("rotary", "relative"):
        spec.position_encodings.encodings = _array(_table(stack.positions, settings.dim))
    if stack.first_norm is not None:
        _norm(spec.layernorm_embedding, stack.first_norm)
    if settings.norm_first:
        _norm(spec.layer_norm, stack.norm)


def _relative(spec: Any, positions: nn.Module) -> None:
    if isinstance(positions, Relative):
        spec.relative_attention_bias = _array(positions.table.weight)
        farthest = positions.max_distance
        spec.relative_attention_max_distance = np.dtype("int32").type(farthest)


def _decoder(settings: Any, decoder: Any, with_memory: bool) -> Any:
    assert isinstance(decoder, TransformerDecoder)
    assert isinstance(decoder.embedding, Embedding)
    rotary = _rotary(settings) if settings.positions == "rotary" else {}
    spec = _specs().TransformerDecoderSpec(
        **_common(settings), with_encoder_attention=with_memory, **rotary
    )
    spec.embeddings.weight = _array(decoder.embedding.weight)
    spec.scale_embeddings = settings.scale_embedding
    _first(spec, decoder.stack, settings)
    assert isinstance(decoder.output, nn.Linear)
    _linear(spec.projection, decoder.output.weight, decoder.output.bias)
    for layer, block in zip(spec.layer, decoder.stack.blocks, strict=True):
        _self_attention(layer.self_attention, block)
        _relative(layer.self_attention, decoder.stack.positions)
        if with_memory:
            _cross_attention(layer.attention, block)
        _feed_forward(layer.ffn, block)
    return spec


def _rotary(settings: Any) -> dict[str, Any]:
    """The rotary positions of a decoder."""
    found = {"rotary_dim": 0, "rotary_interleave": True, "rotary_base": settings.rotary_theta}
    if (scaling := settings.rotary_scaling) is not None:
        from ctranslate2.specs.attention_spec import RotaryScalingType

        found["rotary_scaling_type"] = RotaryScalingType.Linear
        found["rotary_scaling_factor"] = scaling.factor
    return found


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
    heads = Heads(attention.head_dim, attention.queries)
    _linear(spec.linear[0], *_parts(attention.qkv, heads))
    _linear(spec.linear[1], attention.out.weight, attention.out.bias)


def _cross_attention(spec: Any, block: Block) -> None:
    cross: CrossAttention = block.cross
    _norm(spec.layer_norm, block.cross_norm)
    _linear(spec.linear[0], cross.query.weight, cross.query.bias)
    _linear(spec.linear[1], *_parts(cross.kv, MemoryHeads(cross.head_dim)))
    _linear(spec.linear[2], cross.out.weight, cross.out.bias)


def _parts(layer: nn.Linear, layout: Heads | MemoryHeads) -> tuple[Tensor, Tensor | None]:
    """All queries, then all keys, then all values, which here are side by side by head."""
    bias = None if layer.bias is None else torch.cat(layout.split(layer.bias))
    return torch.cat(layout.split(layer.weight)), bias


def _feed_forward(spec: Any, block: Block) -> None:
    layer: FeedForward = block.feed_forward
    _norm(spec.layer_norm, block.feed_forward_norm)
    if layer.activation in GATED:
        gate, up = layer.up.weight.chunk(2)
        gate_bias, bias = (None, None) if layer.up.bias is None else layer.up.bias.chunk(2)
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
