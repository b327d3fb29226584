"""Published architectures: which of our networks each is, and what its weights are called there.

`published(values)` reads a config.json of Hugging Face's; the result says which tables our
configuration has and, for each of our parameters, which tensors it is made of and how. The same
rules lead back (`split`), so one map serves import and export.

Some of what differs is no other network, only other numbers: heads are side by side here, rotary
pairs are neighbours, T5's scores are not divided by sqrt(K), so its queries are multiplied by it.
"""

from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass, field
from math import sqrt
from typing import Any, NamedTuple

from saccade.errors import CheckpointError
from saccade.models.layouts import Flat, Heads, Layout, MemoryHeads, Same, Stacked, Transposed

MAX_SIZE = 1 << 24  # of any number in a config.json


class Weight(NamedTuple):
    """One of our parameters, the tensors that it is made of, and how."""

    ours: str
    theirs: tuple[str, ...]
    layout: Layout = Same()
    missing: float | None = None  # what it is filled with where theirs are not there


@dataclass
class Published:
    """A published architecture in our words."""

    model_type: str
    kind: str  # of the task: language, translate, classify, tag, masked
    tables: dict[str, dict[str, Any]]  # encoder, decoder, head
    rows: int  # of the vocabulary
    longest: int | None = None  # positions, where they end
    weights: list[Weight] = field(default_factory=list)
    prefix: str = ""  # of names, which a file may have or not
    joint: bool = False  # encoder and decoder read with one table
    unused: tuple[str, ...] = ()  # beginnings of names that need not be read

    def add(self, ours: str, *theirs: str, layout: Layout | None = None) -> None:
        """A linear layer or a norm with a bias, if theirs ends in `.*`; else one tensor."""
        if not ours.endswith(".*"):
            self.weights.append(Weight(ours, theirs, layout or Same()))
            return
        for leaf in ("weight", "bias"):
            bias = leaf == "bias" and isinstance(layout, Transposed)
            names = tuple(name[:-1] + leaf for name in theirs)
            how = Same() if bias or layout is None else layout
            self.weights.append(Weight(ours[:-1] + leaf, names, how))


class Values:
    """The numbers of a config.json, each checked where it is read."""

    def __init__(self, found: Mapping[str, Any], where: str, tensors: Container[str] = ()):
        self.found, self.where, self.tensors = found, where, tensors

    def size(self, *names: str, default: int | None = None) -> int:
        """A whole number above 0, under the first of these names that is there."""
        value = next((self.found[n] for n in names if self.found.get(n) is not None), default)
        if type(value) is not int or not 0 < value <= MAX_SIZE:
            raise CheckpointError(f"{self.where}: {names[0]}: {value!r:.40} is no size")
        return value

    def number(self, *names: str, default: float) -> float:
        value = next((self.found[n] for n in names if self.found.get(n) is not None), default)
        if type(value) not in (int, float) or not 0.0 <= value < 1e12:
            raise CheckpointError(f"{self.where}: {names[0]}: {value!r:.40} is no number")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        value = self.found.get(name)
        return default if value is None else bool(value)

    def text(self, *names: str, default: str) -> str:
        return str(next((self.found[n] for n in names if self.found.get(n) is not None), default))

    def token(self, name: str, default: int | None = None) -> int | None:
        """The id of a special token; of several the first."""
        value = self.found.get(name, default)
        value = value[0] if isinstance(value, list) and value else value
        return value if type(value) is int and 0 <= value < MAX_SIZE else default

    def require(self, name: str, *permitted: Any) -> None:
        """CheckpointError if a setting is there that we have no network for."""
        if (value := self.found.get(name)) is not None and value not in permitted:
            raise CheckpointError(f"{self.where}: {name} = {value!r:.60} is not supported")

    def activation(self, *names: str, default: str) -> str:
        name = self.text(*names, default=default)
        if name not in ACTIVATIONS:
            known = ", ".join(ACTIVATIONS)
            raise CheckpointError(
                f"{self.where}: {names[0]} = {name!r:.40}: there is no such activation; "
                f"known are {known}"
            )
        return ACTIVATIONS[name]


ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "silu": "silu",
    "swish": "silu",
}


def published(found: Mapping[str, Any], where: str, tensors: Container[str] = ()) -> Published:
    """What a config.json describes, in our words; `tensors` are the names that there are."""
    kind = str(found.get("model_type"))
    if kind not in ARCHITECTURES:
        named = ", ".join(ARCHITECTURES)
        raise CheckpointError(
            f"{where}: model_type '{kind[:40]}' is not an architecture that can be imported; "
            f"there are {named}"
        )
    return ARCHITECTURES[kind](Values(found, where, tensors), head_of(found))


def head_of(found: Mapping[str, Any]) -> str:
    """What is on top, by the class that the config names: classify, tag, masked, or nothing."""
    names = found.get("architectures")
    name = str(names[0]) if isinstance(names, list) and names else ""
    for end, head in (
        ("ForSequenceClassification", "classify"),
        ("ForTokenClassification", "tag"),
        ("ForMaskedLM", "masked"),
        ("ForPreTraining", "masked"),
    ):
        if name.endswith(end):
            return head
    return "none"


# --- encoders -------------------------------------------------------------------------------------


def _bert(values: Values, head: str) -> Published:
    values.require("position_embedding_type", "absolute")
    values.require("is_decoder", False)
    made = _bert_like(values, "bert", head, segments=values.size("type_vocab_size", default=2))
    encoder = "bert.encoder.layer"
    _bert_layers(made, f"{encoder}.{{}}.", values)
    if head == "classify":
        made.add("head.dense.*", "bert.pooler.dense.*")
        made.add("head.output.*", "classifier.*")
        made.tables["head"] |= {"pool": "first", "dense": "tanh"}
    elif head == "tag":
        made.add("head.output.*", "classifier.*")
    elif head == "masked":
        made.add("head.dense.*", "cls.predictions.transform.dense.*")
        made.add("head.norm.*", "cls.predictions.transform.LayerNorm.*")
        made.add("head.output.bias", "cls.predictions.bias")
    made.unused = ("bert.pooler", "cls.seq_relationship", "cls.predictions.decoder")
    return made


def _roberta(values: Values, head: str) -> Published:
    values.require("position_embedding_type", "absolute")
    values.require("is_decoder", False)
    offset = (values.token("pad_token_id", 1) or 0) + 1
    segments = values.size("type_vocab_size", default=1)
    made = _bert_like(values, "roberta", head, segments, offset)
    _bert_layers(made, "roberta.encoder.layer.{}.", values)
    if head == "classify":
        made.add("head.dense.*", "classifier.dense.*")
        made.add("head.output.*", "classifier.out_proj.*")
        made.tables["head"] |= {"pool": "first", "dense": "tanh"}
    elif head == "tag":
        made.add("head.output.*", "classifier.*")
    elif head == "masked":
        made.add("head.dense.*", "lm_head.dense.*")
        made.add("head.norm.*", "lm_head.layer_norm.*")
        made.add("head.output.bias", "lm_head.bias")
    made.unused = ("roberta.pooler", "lm_head.decoder")
    return made


def _distilbert(values: Values, head: str) -> Published:
    made = _bert_like(values, "distilbert", head, segments=0)
    if values.flag("sinusoidal_pos_embds", False):  # the table is in the file all the same
        made.tables["encoder"]["positions"] = "learned"
    K = values.size("dim") // values.size("n_heads")
    for i in range(values.size("n_layers")):
        ours, theirs = f"encoder.body.blocks.{i}.", f"distilbert.transformer.layer.{i}."
        names = [f"{theirs}attention.{part}_lin.*" for part in "qkv"]
        made.add(f"{ours}attention.qkv.*", *names, layout=Heads(K))
        made.add(f"{ours}attention.out.*", f"{theirs}attention.out_lin.*")
        made.add(f"{ours}attention_norm.*", f"{theirs}sa_layer_norm.*")
        made.add(f"{ours}feed_forward.up.*", f"{theirs}ffn.lin1.*")
        made.add(f"{ours}feed_forward.down.*", f"{theirs}ffn.lin2.*")
        made.add(f"{ours}feed_forward_norm.*", f"{theirs}output_layer_norm.*")
    if head == "classify":
        made.add("head.dense.*", "pre_classifier.*")
        made.add("head.output.*", "classifier.*")
        made.tables["head"] |= {"pool": "first", "dense": "relu"}
    elif head == "tag":
        made.add("head.output.*", "classifier.*")
    elif head == "masked":
        made.add("head.dense.*", "vocab_transform.*")
        made.add("head.norm.*", "vocab_layer_norm.*")
        made.add("head.output.bias", "vocab_projector.bias")
    made.unused = ("vocab_projector.weight",)
    return made


def _bert_like(values: Values, prefix: str, head: str, segments: int, offset: int = 0) -> Published:
    """What BERT, RoBERTa and DistilBERT share: the embeddings, and the settings of all layers."""
    positions = values.size("max_position_embeddings", default=512) - offset
    rate = values.number("hidden_dropout_prob", "dropout", default=0.1)
    encoder: dict[str, Any] = {
        "kind": "transformer",
        "dim": values.size("hidden_size", "dim"),
        "num_layers": values.size("num_hidden_layers", "n_layers"),
        "num_heads": values.size("num_attention_heads", "n_heads"),
        "ff_dim": values.size("intermediate_size", "hidden_dim"),
        "dropout": rate,
        "attention_dropout": values.number(
            "attention_probs_dropout_prob", "attention_dropout", default=0.1
        ),
        "norm_first": False,
        "norm_embedding": True,
        "norm_eps": values.number("layer_norm_eps", default=1e-12),
        "activation": values.activation("hidden_act", "activation", default="gelu"),
        "positions": "learned",
        "max_positions": positions,
        "position_offset": offset,
        "scale_embedding": False,
        "segments": segments,
    }
    kind = "masked" if head == "none" else head
    top = {"masked": "per_token", "classify": "pooled", "tag": "per_word"}[kind]
    tables: dict[str, dict[str, Any]] = {"encoder": encoder, "head": {"kind": top}}
    if kind == "masked":
        dense = values.activation("hidden_act", "activation", default="gelu")
        tables["head"] |= {"dense": dense, "norm_eps": encoder["norm_eps"]}
    else:
        tables["head"]["dropout"] = values.number("classifier_dropout", default=rate)
    rows = values.size("vocab_size")
    made = Published(prefix, kind, tables, rows, positions, prefix=f"{prefix}.")
    made.add("encoder.stem.embedding.weight", f"{prefix}.embeddings.word_embeddings.weight")
    if segments:
        name = f"{prefix}.embeddings.token_type_embeddings.weight"
        made.add("encoder.stem.segments.weight", name)
    table = f"{prefix}.embeddings.position_embeddings.weight"
    made.add("encoder.body.positions.table.weight", table)
    made.add("encoder.body.first_norm.*", f"{prefix}.embeddings.LayerNorm.*")
    return made


def _bert_layers(made: Published, layers: str, values: Values) -> None:
    K = values.size("hidden_size") // values.size("num_attention_heads")
    for i in range(values.size("num_hidden_layers")):
        ours, theirs = f"encoder.body.blocks.{i}.", layers.format(i)
        names = [f"{theirs}attention.self.{part}.*" for part in ("query", "key", "value")]
        made.add(f"{ours}attention.qkv.*", *names, layout=Heads(K))
        made.add(f"{ours}attention.out.*", f"{theirs}attention.output.dense.*")
        made.add(f"{ours}attention_norm.*", f"{theirs}attention.output.LayerNorm.*")
        made.add(f"{ours}feed_forward.up.*", f"{theirs}intermediate.dense.*")
        made.add(f"{ours}feed_forward.down.*", f"{theirs}output.dense.*")
        made.add(f"{ours}feed_forward_norm.*", f"{theirs}output.LayerNorm.*")


# --- decoders -------------------------------------------------------------------------------------


def _gpt2(values: Values, head: str) -> Published:
    _require_no_head(values, head)
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
    made = Published("gpt2", "language", {"decoder": decoder}, rows, positions)
    made.prefix = "transformer."
    made.add("decoder.embedding.weight", "transformer.wte.weight")
    if not decoder["tied"]:
        made.add("decoder.output.weight", "lm_head.weight")
    made.add("decoder.stack.positions.table.weight", "transformer.wpe.weight")
    made.add("decoder.stack.norm.*", "transformer.ln_f.*")
    for i in range(layers):
        ours, theirs = f"decoder.stack.blocks.{i}.", f"transformer.h.{i}."
        heads = Heads(D // H, fused=True)
        made.add(f"{ours}attention.qkv.*", f"{theirs}attn.c_attn.*", layout=heads)
        made.add(f"{ours}attention.out.*", f"{theirs}attn.c_proj.*", layout=Transposed())
        made.add(f"{ours}attention_norm.*", f"{theirs}ln_1.*")
        made.add(f"{ours}feed_forward.up.*", f"{theirs}mlp.c_fc.*", layout=Transposed())
        made.add(f"{ours}feed_forward.down.*", f"{theirs}mlp.c_proj.*", layout=Transposed())
        made.add(f"{ours}feed_forward_norm.*", f"{theirs}ln_2.*")
    masks = [f"transformer.h.{i}.attn.{name}" for i in range(layers) for name in MASKS]
    made.unused = ("lm_head.weight", *masks)
    return made


MASKS = ("bias", "masked_bias")  # which older files keep


def _llama(values: Values, head: str) -> Published:
    _require_no_head(values, head)
    values.require("attention_bias", False)
    values.require("mlp_bias", False)
    values.require("rope_scaling", {})
    rope = values.found.get("rope_parameters") or {}
    if not isinstance(rope, dict) or rope.get("rope_type", "default") != "default":
        raise CheckpointError(
            f"{values.where}: rope_parameters: only rotary positions of type 'default' are "
            f"supported, not {str(rope)[:60]}"
        )
    theta = Values(rope | dict(values.found), values.where).number("rope_theta", default=10000.0)
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
        "rotary_theta": theta,
        "bias": False,
        "scale_embedding": False,
        "tied": values.flag("tie_word_embeddings", False),
        "output_bias": False,
    }
    rows = values.size("vocab_size")
    made = Published("llama", "language", {"decoder": decoder}, rows, positions, prefix="model.")
    made.add("decoder.embedding.weight", "model.embed_tokens.weight")
    if not decoder["tied"]:
        made.add("decoder.output.weight", "lm_head.weight")
    made.add("decoder.stack.norm.weight", "model.norm.weight")
    for i in range(layers):
        ours, theirs = f"decoder.stack.blocks.{i}.", f"model.layers.{i}."
        names = [f"{theirs}self_attn.{part}_proj.weight" for part in "qkv"]
        heads = Heads(K, H // G, rotary=True)
        made.add(f"{ours}attention.qkv.weight", *names, layout=heads)
        made.add(f"{ours}attention.out.weight", f"{theirs}self_attn.o_proj.weight")
        made.add(f"{ours}attention_norm.weight", f"{theirs}input_layernorm.weight")
        gates = [f"{theirs}mlp.{part}_proj.weight" for part in ("gate", "up")]
        made.add(f"{ours}feed_forward.up.weight", *gates, layout=Stacked())
        made.add(f"{ours}feed_forward.down.weight", f"{theirs}mlp.down_proj.weight")
        made.add(f"{ours}feed_forward_norm.weight", f"{theirs}post_attention_layernorm.weight")
    turns = [f"model.layers.{i}.self_attn.rotary_emb.inv_freq" for i in range(layers)]
    made.unused = ("lm_head.weight", *turns)
    return made


def _require_no_head(values: Values, head: str) -> None:
    if head != "none":
        raise CheckpointError(
            f"{values.where}: architectures: of {values.text('model_type', default='')} the "
            "language model can be imported, and no other head"
        )


# --- both -----------------------------------------------------------------------------------------


def _t5(values: Values, head: str) -> Published:
    _require_no_head(values, head)
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
    both: dict[str, Any] = {
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
    encoder = both | {"num_layers": layers}
    decoder = both | {"num_layers": decoders, "tied": tied, "output_bias": False}
    tables = {"encoder": encoder, "decoder": decoder}
    made = Published("t5", "translate", tables, values.size("vocab_size"), joint=True)
    factor = D**-0.5 if tied and scaled else 1.0
    made.add("encoder.stem.embedding.weight", "shared.weight", layout=Same(factor))
    if not tied:
        factor = D**-0.5 if scaled else 1.0
        made.add("decoder.output.weight", "lm_head.weight", layout=Same(factor))
    for ours, name, count in (
        ("encoder.body", "encoder", layers),
        ("decoder.stack", "decoder", decoders),
    ):
        first = f"{name}.block.0.layer.0.SelfAttention"
        made.add(f"{ours}.positions.table.weight", f"{first}.relative_attention_bias.weight")
        made.add(f"{ours}.norm.weight", f"{name}.final_layer_norm.weight")
        for i in range(count):
            _t5_block(made, f"{ours}.blocks.{i}.", f"{name}.block.{i}.layer.", K, gated)
    made.unused = ("encoder.embed_tokens", "decoder.embed_tokens", "lm_head.weight")
    # which some old files have, and which is never used
    made.unused += ("decoder.block.0.layer.1.EncDecAttention.relative_attention_bias",)
    return made


def _t5_block(made: Published, ours: str, theirs: str, head_dim: int, gated: bool) -> None:
    scale = sqrt(head_dim)
    names = [f"{theirs}0.SelfAttention.{part}.weight" for part in "qkv"]
    made.add(f"{ours}attention.qkv.weight", *names, layout=Heads(head_dim, factor=scale))
    made.add(f"{ours}attention.out.weight", f"{theirs}0.SelfAttention.o.weight")
    made.add(f"{ours}attention_norm.weight", f"{theirs}0.layer_norm.weight")
    last = 1
    if ours.startswith("decoder"):
        cross, last = f"{theirs}1.EncDecAttention", 2
        made.add(f"{ours}cross.query.weight", f"{cross}.q.weight", layout=Same(scale))
        kv = [f"{cross}.{part}.weight" for part in "kv"]
        made.add(f"{ours}cross.kv.weight", *kv, layout=MemoryHeads(head_dim))
        made.add(f"{ours}cross.out.weight", f"{cross}.o.weight")
        made.add(f"{ours}cross_norm.weight", f"{theirs}1.layer_norm.weight")
    dense = f"{theirs}{last}.DenseReluDense"
    if gated:
        names = [f"{dense}.wi_0.weight", f"{dense}.wi_1.weight"]
        made.add(f"{ours}feed_forward.up.weight", *names, layout=Stacked())
    else:
        made.add(f"{ours}feed_forward.up.weight", f"{dense}.wi.weight")
    made.add(f"{ours}feed_forward.down.weight", f"{dense}.wo.weight")
    made.add(f"{ours}feed_forward_norm.weight", f"{theirs}{last}.layer_norm.weight")


def _bart(values: Values, head: str) -> Published:
    made = _bart_like(values, head, "bart", "learned")
    for part in ("encoder", "decoder"):
        made.tables[part] |= {"norm_embedding": True, "position_offset": 2}
    for ours, part in (("encoder.body", "encoder"), ("decoder.stack", "decoder")):
        name = f"model.{part}.embed_positions.weight"
        made.add(f"{ours}.positions.table.weight", name)
        made.add(f"{ours}.first_norm.*", f"model.{part}.layernorm_embedding.*")
    return made


def _marian(values: Values, head: str) -> Published:
    values.require("share_encoder_decoder_embeddings", True)
    made = _bart_like(values, head, "marian", "sinusoidal_halves")
    made.unused += ("model.encoder.embed_positions", "model.decoder.embed_positions")
    return made


def _pegasus(values: Values, head: str) -> Published:
    """Marian with norms before each sublayer, and a last one."""
    made = _bart_like(values, head, "pegasus", "sinusoidal_halves")
    for ours, part in (("encoder.body", "encoder"), ("decoder.stack", "decoder")):
        made.tables[part]["norm_first"] = True
        made.add(f"{ours}.norm.*", f"model.{part}.layer_norm.*")
    made.unused += ("model.encoder.embed_positions", "model.decoder.embed_positions")
    return made


def _bart_like(values: Values, head: str, model_type: str, positions: str) -> Published:
    """What BART, Marian and Pegasus share."""
    _require_no_head(values, head)
    D = values.size("d_model")
    made_of: dict[str, dict[str, Any]] = {}
    rate = values.number("dropout", default=0.1)
    for part in ("encoder", "decoder"):
        made_of[part] = {
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
            made_of[part]["max_positions"] = longest
    values.require("normalize_before", False)
    values.require("add_final_layer_norm", False)
    made_of["decoder"] |= {"tied": values.flag("tie_word_embeddings", True)}
    positions_end = made_of["encoder"].get("max_positions")
    rows = values.size("vocab_size")
    made = Published(model_type, "translate", made_of, rows, positions_end, joint=True)
    made.add("encoder.stem.embedding.weight", "model.shared.weight")
    if not made_of["decoder"]["tied"]:
        made.add("decoder.output.weight", "lm_head.weight")
    zeros = Weight("decoder.output.bias", ("final_logits_bias",), Flat(), missing=0.0)
    made.weights.append(zeros)
    made.prefix = "model."
    for part, stack in (("encoder", "encoder.body"), ("decoder", "decoder.stack")):
        K = D // made_of[part]["num_heads"]
        for i in range(made_of[part]["num_layers"]):
            ours, theirs = f"{stack}.blocks.{i}.", f"model.{part}.layers.{i}."
            names = [f"{theirs}self_attn.{p}_proj.*" for p in "qkv"]
            made.add(f"{ours}attention.qkv.*", *names, layout=Heads(K))
            made.add(f"{ours}attention.out.*", f"{theirs}self_attn.out_proj.*")
            made.add(f"{ours}attention_norm.*", f"{theirs}self_attn_layer_norm.*")
            if part == "decoder":
                cross = f"{theirs}encoder_attn."
                made.add(f"{ours}cross.query.*", f"{cross}q_proj.*")
                kv = [f"{cross}{p}_proj.*" for p in "kv"]
                made.add(f"{ours}cross.kv.*", *kv, layout=MemoryHeads(K))
                made.add(f"{ours}cross.out.*", f"{cross}out_proj.*")
                made.add(f"{ours}cross_norm.*", f"{theirs}encoder_attn_layer_norm.*")
            made.add(f"{ours}feed_forward.up.*", f"{theirs}fc1.*")
            made.add(f"{ours}feed_forward.down.*", f"{theirs}fc2.*")
            made.add(f"{ours}feed_forward_norm.*", f"{theirs}final_layer_norm.*")
    made.unused = ("model.encoder.embed_tokens", "model.decoder.embed_tokens", "lm_head.weight")
    return made


ARCHITECTURES: dict[str, Callable[[Values, str], Published]] = {
    "bert": _bert,
    "roberta": _roberta,
    "distilbert": _distilbert,
    "gpt2": _gpt2,
    "llama": _llama,
    "t5": _t5,
    "bart": _bart,
    "marian": _marian,
    "pegasus": _pegasus,
}


def alternatives(name: str, prefix: str) -> Iterator[str]:
    """What a tensor may be called in a file: without its prefix, or as older files did."""
    for one in dict.fromkeys((name, name.removeprefix(prefix))):
        yield one
        yield one.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        )
    others = {"shared.weight": ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")}
    for mine, theirs in others.items():
        if name.endswith(mine):
            yield from (name.removesuffix(mine) + one for one in theirs)
