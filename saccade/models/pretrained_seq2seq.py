"""Published encoders with decoders: T5, BART, Marian and Pegasus."""

from math import sqrt
from typing import Any

from saccade.errors import CheckpointError
from saccade.models.layouts import Flat, Heads, MemoryHeads, Same, Stacked
from saccade.models.pretrained_parts import Published, Values, Weight, require_no_head


def t5(values: Values, head: str) -> Published:
    require_no_head(values, head)
    D, K, H = values.size("d_model"), values.size("d_kv"), values.size("num_heads")
    layers = values.size("num_layers")
    theirs = values.text("feed_forward_proj", "dense_act_fn", default="relu")
    gated = theirs.startswith("gated-")
    activation = "geglu" if theirs == "gated-gelu" else theirs
    if activation not in ("relu", "geglu"):
        raise CheckpointError(
            f"{values.where}: feed_forward_proj = {theirs!r:.40}: there are relu and gated-gelu"
        )
    tied = scaled = values.flag("tie_word_embeddings", True)
    if "scale_decoder_outputs" in values.found:  # of files that tell the two apart
        scaled = values.flag("scale_decoder_outputs", True)
        tied = "lm_head.weight" not in values.tensors
    common: dict[str, Any] = {
        "kind": "transformer",
        "dim": D,
        "num_heads": H,
        "head_dim": K,
        "ff_dim": values.size("d_ff"),
        "dropout": values.number("dropout_rate", default=0.1),
        "attention_dropout": values.number("dropout_rate", default=0.1),
        "norm": "rms",
        "norm_eps": values.number("layer_norm_epsilon", default=1e-6),
        "activation": activation,
        "positions": "relative",
        "relative_buckets": values.size("relative_attention_num_buckets", default=32),
        "relative_distance": values.size("relative_attention_max_distance", default=128),
        "bias": False,
        # With one table for all, T5 divides the output by sqrt(D); we multiply the input by it.
        "scale_embedding": tied and scaled,
    }
    decoders = values.size("num_decoder_layers", default=layers)
    encoder = common | {"num_layers": layers}
    decoder = common | {"num_layers": decoders, "tied": tied, "output_bias": False}
    tables = {"encoder": encoder, "decoder": decoder}
    arch = Published("t5", "translate", tables, values.size("vocab_size"), joint=True)
    factor = D**-0.5 if tied and scaled else 1.0
    arch.add("encoder.stem.embedding.weight", "shared.weight", layout=Same(factor))
    if not tied:
        factor = D**-0.5 if scaled else 1.0
        arch.add("decoder.output.weight", "lm_head.weight", layout=Same(factor))
    for ours, name, count in (
        ("encoder.body", "encoder", layers),
        ("decoder.stack", "decoder", decoders),
    ):
        first = f"{name}.block.0.layer.0.SelfAttention"
        arch.add(f"{ours}.positions.table.weight", f"{first}.relative_attention_bias.weight")
        arch.add(f"{ours}.norm.weight", f"{name}.final_layer_norm.weight")
        for i in range(count):
            _t5_block(arch, f"{ours}.blocks.{i}.", f"{name}.block.{i}.layer.", K, gated)
    arch.unused = ("encoder.embed_tokens", "decoder.embed_tokens", "lm_head.weight")
    # which some old files have, and which is never used
    arch.unused += ("decoder.block.0.layer.1.EncDecAttention.relative_attention_bias",)
    return arch


def _t5_block(arch: Published, ours: str, theirs: str, head_dim: int, gated: bool) -> None:
    scale = sqrt(head_dim)
    names = [f"{theirs}0.SelfAttention.{part}.weight" for part in "qkv"]
    arch.add(f"{ours}attention.qkv.weight", *names, layout=Heads(head_dim, factor=scale))
    arch.add(f"{ours}attention.out.weight", f"{theirs}0.SelfAttention.o.weight")
    arch.add(f"{ours}attention_norm.weight", f"{theirs}0.layer_norm.weight")
    last = 1
    if ours.startswith("decoder"):
        cross, last = f"{theirs}1.EncDecAttention", 2
        arch.add(f"{ours}cross.query.weight", f"{cross}.q.weight", layout=Same(scale))
        kv = [f"{cross}.{part}.weight" for part in "kv"]
        arch.add(f"{ours}cross.kv.weight", *kv, layout=MemoryHeads(head_dim))
        arch.add(f"{ours}cross.out.weight", f"{cross}.o.weight")
        arch.add(f"{ours}cross_norm.weight", f"{theirs}1.layer_norm.weight")
    dense = f"{theirs}{last}.DenseReluDense"
    if gated:
        names = [f"{dense}.wi_0.weight", f"{dense}.wi_1.weight"]
        arch.add(f"{ours}feed_forward.up.weight", *names, layout=Stacked())
    else:
        arch.add(f"{ours}feed_forward.up.weight", f"{dense}.wi.weight")
    arch.add(f"{ours}feed_forward.down.weight", f"{dense}.wo.weight")
    arch.add(f"{ours}feed_forward_norm.weight", f"{theirs}{last}.layer_norm.weight")


def bart(values: Values, head: str) -> Published:
    arch = _bart_like(values, head, "bart", "learned")
    for part in ("encoder", "decoder"):
        arch.tables[part] |= {"norm_embedding": True, "position_offset": 2}
    for ours, part in (("encoder.body", "encoder"), ("decoder.stack", "decoder")):
        name = f"model.{part}.embed_positions.weight"
        arch.add(f"{ours}.positions.table.weight", name)
        arch.add(f"{ours}.first_norm.*", f"model.{part}.layernorm_embedding.*")
    return arch


def marian(values: Values, head: str) -> Published:
    values.require("share_encoder_decoder_embeddings", True)
    arch = _bart_like(values, head, "marian", "sinusoidal_halves")
    arch.unused += ("model.encoder.embed_positions", "model.decoder.embed_positions")
    return arch


def pegasus(values: Values, head: str) -> Published:
    """Marian with norms before each sublayer, and a last one."""
    arch = _bart_like(values, head, "pegasus", "sinusoidal_halves")
    for ours, part in (("encoder.body", "encoder"), ("decoder.stack", "decoder")):
        arch.tables[part]["norm_first"] = True
        arch.add(f"{ours}.norm.*", f"model.{part}.layer_norm.*")
    arch.unused += ("model.encoder.embed_positions", "model.decoder.embed_positions")
    return arch


def _bart_like(values: Values, head: str, model_type: str, positions: str) -> Published:
    """What BART, Marian and Pegasus share."""
    require_no_head(values, head)
    D = values.size("d_model")
    tables: dict[str, dict[str, Any]] = {}
    rate = values.number("dropout", default=0.1)
    for part in ("encoder", "decoder"):
        tables[part] = {
            "kind": "transformer",
            "dim": D,
            "num_layers": values.size(f"{part}_layers"),
            "num_heads": values.size(f"{part}_attention_heads"),
            "ff_dim": values.size(f"{part}_ffn_dim"),
            "dropout": rate,
            "attention_dropout": values.number("attention_dropout", default=0.0),
            "norm_first": False,
            "activation": values.activation("activation_function", default="gelu"),
            "positions": positions,
            "scale_embedding": values.flag("scale_embedding", False),
        }
        if positions == "learned":
            longest = values.size("max_position_embeddings", default=1024)
            tables[part]["max_positions"] = longest
    values.require("normalize_before", False)
    values.require("add_final_layer_norm", False)
    tables["decoder"] |= {"tied": values.flag("tie_word_embeddings", True)}
    max_positions = tables["encoder"].get("max_positions")
    rows = values.size("vocab_size")
    arch = Published(model_type, "translate", tables, rows, max_positions, joint=True)
    arch.add("encoder.stem.embedding.weight", "model.shared.weight")
    if not tables["decoder"]["tied"]:
        arch.add("decoder.output.weight", "lm_head.weight")
    zeros = Weight("decoder.output.bias", ("final_logits_bias",), Flat(), missing=0.0)
    arch.weights.append(zeros)
    arch.prefix = "model."
    for part, stack in (("encoder", "encoder.body"), ("decoder", "decoder.stack")):
        K = D // tables[part]["num_heads"]
        for i in range(tables[part]["num_layers"]):
            ours, theirs = f"{stack}.blocks.{i}.", f"model.{part}.layers.{i}."
            names = [f"{theirs}self_attn.{p}_proj.*" for p in "qkv"]
            arch.add(f"{ours}attention.qkv.*", *names, layout=Heads(K))
            arch.add(f"{ours}attention.out.*", f"{theirs}self_attn.out_proj.*")
            arch.add(f"{ours}attention_norm.*", f"{theirs}self_attn_layer_norm.*")
            if part == "decoder":
                cross = f"{theirs}encoder_attn."
                arch.add(f"{ours}cross.query.*", f"{cross}q_proj.*")
                kv = [f"{cross}{p}_proj.*" for p in "kv"]
                arch.add(f"{ours}cross.kv.*", *kv, layout=MemoryHeads(K))
                arch.add(f"{ours}cross.out.*", f"{cross}out_proj.*")
                arch.add(f"{ours}cross_norm.*", f"{theirs}encoder_attn_layer_norm.*")
            arch.add(f"{ours}feed_forward.up.*", f"{theirs}fc1.*")
            arch.add(f"{ours}feed_forward.down.*", f"{theirs}fc2.*")
            arch.add(f"{ours}feed_forward_norm.*", f"{theirs}final_layer_norm.*")
    arch.unused = ("model.encoder.embed_tokens", "model.decoder.embed_tokens", "lm_head.weight")
    return arch
