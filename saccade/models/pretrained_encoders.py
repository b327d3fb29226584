"""Published encoders: BERT, RoBERTa and DistilBERT."""

from typing import Any

from saccade.models.layouts import Heads
from saccade.models.pretrained_parts import Published, Values


def bert(values: Values, head: str) -> Published:
    values.require("position_embedding_type", "absolute")
    values.require("is_decoder", False)
    arch = _bert_like(values, "bert", head, segments=values.size("type_vocab_size", default=2))
    encoder = "bert.encoder.layer"
    _bert_layers(arch, f"{encoder}.{{}}.", values)
    if head == "classify":
        arch.add("head.dense.*", "bert.pooler.dense.*")
        arch.add("head.output.*", "classifier.*")
        arch.tables["head"] |= {"pool": "first", "dense": "tanh"}
    elif head == "tag":
        arch.add("head.output.*", "classifier.*")
    elif head == "masked":
        arch.add("head.dense.*", "cls.predictions.transform.dense.*")
        arch.add("head.norm.*", "cls.predictions.transform.LayerNorm.*")
        arch.add("head.output.bias", "cls.predictions.bias")
    arch.unused = ("bert.pooler", "cls.seq_relationship", "cls.predictions.decoder")
    return arch


def roberta(values: Values, head: str) -> Published:
    values.require("position_embedding_type", "absolute")
    values.require("is_decoder", False)
    offset = (values.token("pad_token_id", 1) or 0) + 1
    segments = values.size("type_vocab_size", default=1)
    arch = _bert_like(values, "roberta", head, segments, offset)
    _bert_layers(arch, "roberta.encoder.layer.{}.", values)
    if head == "classify":
        arch.add("head.dense.*", "classifier.dense.*")
        arch.add("head.output.*", "classifier.out_proj.*")
        arch.tables["head"] |= {"pool": "first", "dense": "tanh"}
    elif head == "tag":
        arch.add("head.output.*", "classifier.*")
    elif head == "masked":
        arch.add("head.dense.*", "lm_head.dense.*")
        arch.add("head.norm.*", "lm_head.layer_norm.*")
        arch.add("head.output.bias", "lm_head.bias")
    arch.unused = ("roberta.pooler", "lm_head.decoder")
    return arch


def distilbert(values: Values, head: str) -> Published:
    arch = _bert_like(values, "distilbert", head, segments=0)
    if values.flag("sinusoidal_pos_embds", False):  # the table is in the file all the same
        arch.tables["encoder"]["positions"] = "learned"
    K = values.size("dim") // values.size("n_heads")
    for i in range(values.size("n_layers")):
        ours, theirs = f"encoder.body.blocks.{i}.", f"distilbert.transformer.layer.{i}."
        names = [f"{theirs}attention.{part}_lin.*" for part in "qkv"]
        arch.add(f"{ours}attention.qkv.*", *names, layout=Heads(K))
        arch.add(f"{ours}attention.out.*", f"{theirs}attention.out_lin.*")
        arch.add(f"{ours}attention_norm.*", f"{theirs}sa_layer_norm.*")
        arch.add(f"{ours}feed_forward.up.*", f"{theirs}ffn.lin1.*")
        arch.add(f"{ours}feed_forward.down.*", f"{theirs}ffn.lin2.*")
        arch.add(f"{ours}feed_forward_norm.*", f"{theirs}output_layer_norm.*")
    if head == "classify":
        arch.add("head.dense.*", "pre_classifier.*")
        arch.add("head.output.*", "classifier.*")
        arch.tables["head"] |= {"pool": "first", "dense": "relu"}
    elif head == "tag":
        arch.add("head.output.*", "classifier.*")
    elif head == "masked":
        arch.add("head.dense.*", "vocab_transform.*")
        arch.add("head.norm.*", "vocab_layer_norm.*")
        arch.add("head.output.bias", "vocab_projector.bias")
    arch.unused = ("vocab_projector.weight",)
    return arch


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
    arch = Published(prefix, kind, tables, rows, positions, prefix=f"{prefix}.")
    arch.add("encoder.stem.embedding.weight", f"{prefix}.embeddings.word_embeddings.weight")
    if segments:
        name = f"{prefix}.embeddings.token_type_embeddings.weight"
        arch.add("encoder.stem.segments.weight", name)
    table = f"{prefix}.embeddings.position_embeddings.weight"
    arch.add("encoder.body.positions.table.weight", table)
    arch.add("encoder.body.first_norm.*", f"{prefix}.embeddings.LayerNorm.*")
    return arch


def _bert_layers(arch: Published, layers: str, values: Values) -> None:
    K = values.size("hidden_size") // values.size("num_attention_heads")
    for i in range(values.size("num_hidden_layers")):
        ours, theirs = f"encoder.body.blocks.{i}.", layers.format(i)
        names = [f"{theirs}attention.self.{part}.*" for part in ("query", "key", "value")]
        arch.add(f"{ours}attention.qkv.*", *names, layout=Heads(K))
        arch.add(f"{ours}attention.out.*", f"{theirs}attention.output.dense.*")
        arch.add(f"{ours}attention_norm.*", f"{theirs}attention.output.LayerNorm.*")
        arch.add(f"{ours}feed_forward.up.*", f"{theirs}intermediate.dense.*")
        arch.add(f"{ours}feed_forward.down.*", f"{theirs}output.dense.*")
        arch.add(f"{ours}feed_forward_norm.*", f"{theirs}output.LayerNorm.*")
