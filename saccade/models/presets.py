"""Named sizes that expand into plain settings; `base` and `big` are Vaswani et al.'s (2017).

Published models are described by their config.json.
"""

from typing import TYPE_CHECKING, Any

from saccade.errors import ConfigError

if TYPE_CHECKING:
    from saccade.models.pretrained_parts import Published

TRANSFORMER = {
    "tiny": {"dim": 128, "num_layers": 4, "num_heads": 4, "ff_dim": 256, "dropout": 0.1},
    "small": {"dim": 256, "num_layers": 3, "num_heads": 4, "ff_dim": 1024, "dropout": 0.1},
    "base": {"dim": 512, "num_layers": 6, "num_heads": 8, "ff_dim": 2048, "dropout": 0.1},
    "big": {"dim": 1024, "num_layers": 6, "num_heads": 16, "ff_dim": 4096, "dropout": 0.3},
}
ORIGINAL = {"norm_first": False, "activation": "relu", "positions": "sinusoidal"}  # of base and big
RECURRENT = {
    "tiny": {"dim": 128, "num_layers": 1, "dropout": 0.2},
    "small": {"dim": 256, "num_layers": 2, "dropout": 0.2},
    "base": {"dim": 512, "num_layers": 2, "dropout": 0.3},
    "big": {"dim": 1024, "num_layers": 4, "dropout": 0.3},
}
CONVOLUTION = {
    "tiny": {"dim": 128, "num_layers": 4},
    "small": {"dim": 256, "num_layers": 6},
    "base": {"dim": 512, "num_layers": 10},
    "big": {"dim": 768, "num_layers": 15},
}
SIZES = ("tiny", "small", "base", "big")


def _gpt2(
    width: int, layers: int, heads: int, positions: int = 1024, rows: int = 50257
) -> dict[str, Any]:
    sizes = {"n_embd": width, "n_layer": layers, "n_head": heads, "n_positions": positions}
    return {"model_type": "gpt2", "vocab_size": rows} | sizes


def _gpt3(width: int, layers: int, heads: int) -> dict[str, Any]:
    return _gpt2(width, layers, heads, 2048)


def _megatron(width: int, layers: int, heads: int) -> dict[str, Any]:
    return _gpt2(width, layers, heads, 1024, 51200)  # a vocabulary that eight devices divide


def _bert(width: int, layers: int, heads: int) -> dict[str, Any]:
    return {
        "model_type": "bert",
        "architectures": ["BertForMaskedLM"],
        "vocab_size": 30522,
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": 4 * width,
        "max_position_embeddings": 512,
        "type_vocab_size": 2,
    }


def _roberta(width: int, layers: int, heads: int) -> dict[str, Any]:
    return _bert(width, layers, heads) | {
        "model_type": "roberta",
        "architectures": ["RobertaForMaskedLM"],
        "vocab_size": 50265,
        "max_position_embeddings": 514,
        "type_vocab_size": 1,
        "pad_token_id": 1,
    }


def _original(size: str) -> dict[str, dict[str, Any]]:
    """Vaswani et al.'s, with one table of embeddings for source, target and output."""
    part = {"kind": "transformer"} | TRANSFORMER[size] | ORIGINAL
    return {"encoder": part, "decoder": part | {"tied": True, "output_bias": False}}


def _t5(width: int, layers: int, heads: int, head_dim: int, inner: int) -> dict[str, Any]:
    sizes = {"d_model": width, "num_layers": layers, "num_heads": heads}
    return {"model_type": "t5", "vocab_size": 32128, "d_kv": head_dim, "d_ff": inner} | sizes


PUBLISHED: dict[str, dict[str, Any]] = {
    "gpt2": _gpt2(768, 12, 12),
    "gpt2-medium": _gpt2(1024, 24, 16),
    "gpt2-large": _gpt2(1280, 36, 20),
    "gpt2-xl": _gpt2(1600, 48, 25),
    "gpt3-small": _gpt3(768, 12, 12),
    "gpt3-medium": _gpt3(1024, 24, 16),
    "gpt3-large": _gpt3(1536, 24, 16),
    "gpt3-xl": _gpt3(2048, 24, 16),
    "gpt3-2.7b": _gpt3(2560, 32, 32),
    "gpt3-6.7b": _gpt3(4096, 32, 32),
    "gpt3-13b": _gpt3(5120, 40, 40),
    "gpt3-175b": _gpt3(12288, 96, 96),
    "megatron-1.2b": _megatron(1536, 40, 16),
    "megatron-2.5b": _megatron(1920, 54, 20),
    "megatron-4.2b": _megatron(2304, 64, 24),
    "megatron-8.3b": _megatron(3072, 72, 32),
    "bert-base": _bert(768, 12, 12),
    "bert-large": _bert(1024, 24, 16),
    "roberta-base": _roberta(768, 12, 12),
    "roberta-large": _roberta(1024, 24, 16),
    "t5-small": _t5(512, 6, 8, 64, 2048),
    "t5-base": _t5(768, 12, 12, 64, 3072),
    "t5-large": _t5(1024, 24, 16, 64, 4096),
    "t5-3b": _t5(1024, 24, 32, 128, 16384),
    "t5-11b": _t5(1024, 24, 128, 128, 65536),
    "bart-large": {
        "model_type": "bart",
        "vocab_size": 50265,
        "d_model": 1024,
        "encoder_layers": 12,
        "decoder_layers": 12,
        "encoder_attention_heads": 16,
        "decoder_attention_heads": 16,
        "encoder_ffn_dim": 4096,
        "decoder_ffn_dim": 4096,
        "max_position_embeddings": 1024,
        "activation_function": "gelu",
    },
}


XLNET = {
    "kind": "transformer",
    "dim": 1024,
    "num_layers": 24,
    "num_heads": 16,
    "ff_dim": 4096,
    "dropout": 0.1,
    "attention_dropout": 0.1,
    "norm_first": False,
    "activation": "gelu",
    "positions": "relative",
    "scale_embedding": False,
}
ELMO = {"kind": "recurrent", "cell": "lstm", "dim": 1024, "num_layers": 2, "dropout": 0.1} | {
    "separate": True,
    "residual": True,
}
# Those without a config.json: the task, the tables of the network, the size of the vocabulary.
OTHERS: dict[str, tuple[str, dict[str, dict[str, Any]], int]] = {
    "transformer-base": ("translate", _original("base"), 37000),
    "transformer-big": ("translate", _original("big"), 37000),
    "xlnet-large": (
        "masked",
        {"encoder": XLNET, "head": {"kind": "per_token", "dense": "off"}},
        32000,
    ),
    "elmo": (
        "masked",
        {"encoder": ELMO, "head": {"kind": "per_token", "dense": "off", "tied": False}},
        793471,
    ),
}
PRESETS = (*OTHERS, *PUBLISHED)


def preset(name: str) -> "Published":
    """A published model as our configuration."""
    from saccade.models.pretrained import published  # which imports torch
    from saccade.models.pretrained_parts import Published

    if name in OTHERS:
        kind, tables, rows = OTHERS[name]
        return Published(name, kind, {part: dict(table) for part, table in tables.items()}, rows)
    arch = published(PUBLISHED[name], name)
    if arch.model_type == "bart":  # whose output has a bias that is not learned
        arch.tables["decoder"]["output_bias"] = False
    return arch


def expand(size: str, kind: str, part: str = "") -> dict[str, Any]:
    """The plain settings of a named size, for one kind of encoder or decoder."""
    if size in PRESETS:
        tables = preset(size).tables
        if part not in tables or kind != tables[part]["kind"]:
            whose = [name for name in tables if name != "head"]
            title = {"transformer": "a Transformer", "recurrent": "a recurrent network"}
            has = title[tables[whose[0]]["kind"]]
            raise ConfigError(f"size '{size}' is that of {has}, of its {' and '.join(whose)}")
        return {key: value for key, value in tables[part].items() if key != "kind"}
    if size not in SIZES:
        choices = ", ".join((*SIZES, *PRESETS))
        raise ConfigError(f"no size '{size}'; choose one of {choices}")
    match kind:
        case "recurrent" | "pyramid" | "edit":
            return dict(RECURRENT[size])
        case "none":
            return {"dim": TRANSFORMER[size]["dim"]}
        case "convolution":
            return dict(CONVOLUTION[size])
        case "transformer":
            return TRANSFORMER[size] | (ORIGINAL if size in ("base", "big") else {})
        case _:
            return {}
