"""Published language models: GPT-2 and Llama."""

from typing import Any

from saccade.errors import CheckpointError
from saccade.models.layouts import Heads, Stacked, Transposed
from saccade.models.pretrained_parts import Published, Values, require_no_head


def gpt2(values: Values, head: str) -> Published:
    require_no_head(values, head)
    values.require("scale_attn_by_inverse_layer_idx", False)
    values.require("add_cross_attention", False)
    D, H = values.size("n_embd", "hidden_size"), values.size("n_head", "num_attention_heads")
    layers = values.size("n_layer", "num_hidden_layers")
    positions = values.size("n_positions", "n_ctx")
    decoder: dict[str, Any] = {
        "kind": "transformer",
        "dim": D,
        "num_layers": layers,
        "num_heads": H,
        "ff_dim": values.size("n_inner", default=4 * D),
        "dropout": values.number("resid_pdrop", default=0.1),
        "attention_dropout": values.number("attn_pdrop", default=0.1),
        "norm_first": True,
        "norm_eps": values.number("layer_norm_epsilon", default=1e-5),
        "activation": values.activation("activation_function", default="gelu_new"),
        "positions": "learned",
        "max_positions": positions,
        "scale_embedding": False,
        "tied": values.flag("tie_word_embeddings", True),
        "output_bias": False,
    }
    rows = values.size("vocab_size")
    arch = Published("gpt2", "language", {"decoder": decoder}, rows, positions)
    arch.prefix = "transformer."
    arch.add("decoder.embedding.weight", "transformer.wte.weight")
    if not decoder["tied"]:
        arch.add("decoder.output.weight", "lm_head.weight")
    arch.add("decoder.stack.positions.table.weight", "transformer.wpe.weight")
    arch.add("decoder.stack.norm.*", "transformer.ln_f.*")
    for i in range(layers):
        ours, theirs = f"decoder.stack.blocks.{i}.", f"transformer.h.{i}."
        heads = Heads(D // H, fused=True)
        arch.add(f"{ours}attention.qkv.*", f"{theirs}attn.c_attn.*", layout=heads)
        arch.add(f"{ours}attention.out.*", f"{theirs}attn.c_proj.*", layout=Transposed())
        arch.add(f"{ours}attention_norm.*", f"{theirs}ln_1.*")
        arch.add(f"{ours}feed_forward.up.*", f"{theirs}mlp.c_fc.*", layout=Transposed())
        arch.add(f"{ours}feed_forward.down.*", f"{theirs}mlp.c_proj.*", layout=Transposed())
        arch.add(f"{ours}feed_forward_norm.*", f"{theirs}ln_2.*")
    masks = [f"transformer.h.{i}.attn.{name}" for i in range(layers) for name in MASKS]
    arch.unused = ("lm_head.weight", *masks)
    return arch


MASKS = ("bias", "masked_bias")  # which older files keep


def llama(values: Values, head: str) -> Published:
    require_no_head(values, head)
    values.require("attention_bias", False)
    values.require("mlp_bias", False)
    rope = rotary_of(values)
    D, H = values.size("hidden_size"), values.size("num_attention_heads")
    G, layers = values.size("num_key_value_heads", default=H), values.size("num_hidden_layers")
    K = values.size("head_dim", default=D // H)
    activation = values.activation("hidden_act", default="silu")
    if activation != "silu":
        raise CheckpointError(f"{values.where}: hidden_act: a gate is silu here")
    positions = values.size("max_position_embeddings", default=2048)
    decoder: dict[str, Any] = {
        "kind": "transformer",
        "dim": D,
        "num_layers": layers,
        "num_heads": H,
        "num_kv_heads": G,
        "head_dim": K,
        "ff_dim": values.size("intermediate_size"),
        "dropout": 0.0,
        "attention_dropout": values.number("attention_dropout", default=0.0),
        "norm": "rms",
        "norm_eps": values.number("rms_norm_eps", default=1e-6),
        "activation": "swiglu",
        "positions": "rotary",
        **rope,
        "bias": False,
        "scale_embedding": False,
        "tied": values.flag("tie_word_embeddings", False),
        "output_bias": False,
    }
    rows = values.size("vocab_size")
    arch = Published("llama", "language", {"decoder": decoder}, rows, positions, prefix="model.")
    arch.add("decoder.embedding.weight", "model.embed_tokens.weight")
    if not decoder["tied"]:
        arch.add("decoder.output.weight", "lm_head.weight")
    arch.add("decoder.stack.norm.weight", "model.norm.weight")
    for i in range(layers):
        ours, theirs = f"decoder.stack.blocks.{i}.", f"model.layers.{i}."
        names = [f"{theirs}self_attn.{part}_proj.weight" for part in "qkv"]
        heads = Heads(K, H // G, rotary=True)
        arch.add(f"{ours}attention.qkv.weight", *names, layout=heads)
        arch.add(f"{ours}attention.out.weight", f"{theirs}self_attn.o_proj.weight")
        arch.add(f"{ours}attention_norm.weight", f"{theirs}input_layernorm.weight")
        gates = [f"{theirs}mlp.{part}_proj.weight" for part in ("gate", "up")]
        arch.add(f"{ours}feed_forward.up.weight", *gates, layout=Stacked())
        arch.add(f"{ours}feed_forward.down.weight", f"{theirs}mlp.down_proj.weight")
        arch.add(f"{ours}feed_forward_norm.weight", f"{theirs}post_attention_layernorm.weight")
    turns = [f"model.layers.{i}.self_attn.rotary_emb.inv_freq" for i in range(layers)]
    arch.unused = ("lm_head.weight", *turns)
    return arch


def rotary_of(values: Values) -> dict[str, Any]:
    """The settings of rotary positions: `rope_parameters`, or `rope_scaling` of older files."""
    rope: dict[str, Any] = {}
    for name in ("rope_scaling", "rope_parameters"):
        found = values.found.get(name) or {}
        if not isinstance(found, dict):
            raise CheckpointError(f"{values.where}: {name}: {str(found)[:60]!r} is not a table")
        rope |= found
    theta = Values(rope | dict(values.found), values.where).number("rope_theta", default=10000.0)
    table: dict[str, Any] = {"rotary_theta": theta}
    own = Values(rope, f"{values.where}: rope_parameters")
    match kind := own.text("rope_type", "type", default="default"):
        case "default":
            pass
        case "linear":
            factor = own.number("factor", default=1.0)
            table["rotary_scaling"] = {"kind": kind, "factor": factor}
        case "llama3":
            table["rotary_scaling"] = {
                "kind": kind,
                "factor": own.number("factor", default=8.0),
                "low": own.number("low_freq_factor", default=1.0),
                "high": own.number("high_freq_factor", default=4.0),
                "context": own.size("original_max_position_embeddings", default=8192),
            }
        case _:
            raise CheckpointError(
                f"{own.where}: rotary positions of type {kind[:40]!r} are not supported; there are "
                "default, linear and llama3"
            )
    return table
