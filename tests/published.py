"""Tiny random networks of published architectures, as folders in the Hugging Face layout."""

import json
import struct
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from saccade.config import parse
from saccade.models.build import build_meta
from saccade.models.pretrained import published
from saccade.text import published as older
from saccade.text.vocab import Inventory

LETTERS = "abcdefghijklmnop"
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
WORDPIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, *(f"##{x}" for x in LETTERS)]
BYTES = {**{n: i for i, n in enumerate(SPECIAL)}, **{x: i + 5 for i, x in enumerate("Ġ" + LETTERS)}}
GPT2 = {**{x: i for i, x in enumerate("Ġ" + LETTERS)}, "ab": 17, "<|endoftext|>": 18}
BERT: dict[str, Any] = {
    "vocab_size": len(WORDPIECES),
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 24,
    "max_position_embeddings": 40,
}
BART: dict[str, Any] = {
    "vocab_size": len(BYTES),
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 20,
    "max_position_embeddings": 40,
}
T5: dict[str, Any] = {
    "d_model": 16,
    "d_kv": 6,
    "num_heads": 4,
    "d_ff": 24,
    "num_layers": 2,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 12,
    "decoder_start_token_id": 0,
}
LLAMA: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 24,
    "max_position_embeddings": 64,
}


def spm(names: list[str], kind: int) -> bytes:
    """A model of SentencePiece, as bytes: <unk> and marks first, then letters and two pieces."""

    def field(number: int, content: bytes) -> bytes:
        return bytes([number << 3 | 2, len(content)]) + content

    kinds = {"<unk>": older.UNKNOWN}
    pieces = [*names, "▁", *LETTERS, "▁a", "ab"]
    found = b""
    for i, piece in enumerate(pieces):
        sort = kinds.get(piece, older.CONTROL if piece in names else older.NORMAL)
        score = struct.pack("<f", 0.0 if piece in names else -float(i))
        found += field(1, field(1, piece.encode()) + b"\x15" + score + bytes([3 << 3, sort]))
    return found + field(2, bytes([3 << 3, kind]))


def vocabulary(folder: Path, kind: str) -> int:
    """Write the older vocabulary files of an architecture; how many ids there are."""
    match kind:
        case "bert" | "distilbert":
            (folder / "vocab.txt").write_text("\n".join(WORDPIECES) + "\n")
            return len(WORDPIECES)
        case "roberta" | "bart" | "gpt2":
            vocab = GPT2 if kind == "gpt2" else BYTES
            (folder / "vocab.json").write_text(json.dumps(vocab))
            merges = "#version: 0.2\n" + ("a b\n" if kind == "gpt2" else "")
            (folder / "merges.txt").write_text(merges)
            return len(vocab)
        case "llama":
            (folder / "tokenizer.model").write_bytes(spm(["<unk>", "<s>", "</s>"], older.BPE))
            return 3 + 19
        case "t5":
            content = spm(["<pad>", "</s>", "<unk>"], older.UNIGRAM)
            (folder / "spiece.model").write_bytes(content)
            return 3 + 19 + 4  # with sentinels
        case _:
            for name in ("source.spm", "target.spm"):
                (folder / name).write_bytes(spm(["</s>", "<unk>"], older.UNIGRAM))
            pieces = ["</s>", "<unk>", "▁", *LETTERS, "▁a", "ab", "<pad>"]
            (folder / "vocab.json").write_text(json.dumps({p: i for i, p in enumerate(pieces)}))
            return len(pieces)


def write(folder: Path, raw: dict[str, Any], shards: int = 1) -> dict[str, Tensor]:
    """A folder of random tensors that a config.json describes, without `transformers`; they."""
    folder.mkdir(parents=True, exist_ok=True)
    raw = raw | {"vocab_size": raw.get("vocab_size", vocabulary(folder, raw["model_type"]))}
    (folder / "config.json").write_text(json.dumps(raw))
    made = published(raw, "config.json")
    task = {"kind": made.kind} | ({"context": 8} if made.kind == "language" else {})
    config = parse({"task": task, "data": {"max_len": 8}, **made.tables}, "test")
    network = build_meta(config, [Inventory(made.rows, (0, 1, 2, 3, 4))], Inventory(made.rows))
    numbers = torch.Generator().manual_seed(1)
    shapes = {name: p.shape for name, p in network.named_parameters()}
    tensors: dict[str, Tensor] = {}
    for rule in made.weights:
        own = torch.randn(shapes[rule.ours], generator=numbers) * 0.3
        parts = [part.contiguous().clone() for part in rule.layout.split(own)]
        tensors |= dict(zip(rule.theirs, parts, strict=True))
    names = list(tensors)
    table = {}
    for i in range(shards):
        file = f"model-{i + 1:05}-of-{shards:05}.safetensors" if shards > 1 else "model.safetensors"
        some = names[i * len(names) // shards : (i + 1) * len(names) // shards]
        save_file({name: tensors[name] for name in some}, folder / file)
        table |= dict.fromkeys(some, file)
    if shards > 1:
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": table}))
    return tensors


def make(folder: Path, kind: str, name: str, **settings: Any) -> Any:
    """A network of `transformers` with random weights, saved in a folder with its vocabulary."""
    import transformers

    folder.mkdir(parents=True, exist_ok=True)
    rows = vocabulary(folder, kind)
    tables = {"bert": BERT, "roberta": BERT, "bart": BART, "t5": T5, "llama": LLAMA}
    own: dict[str, Any] = dict(tables.get(kind, {}))
    if kind == "marian":
        own = BART | {"pad_token_id": rows - 1, "decoder_start_token_id": rows - 1}
        own |= {"eos_token_id": 0, "bos_token_id": 0, "forced_eos_token_id": None}
    if kind == "distilbert":
        own = {"dim": 16, "n_layers": 2, "n_heads": 4, "hidden_dim": 24}
        own |= {"max_position_embeddings": 40}
    if kind == "roberta":
        own |= {"type_vocab_size": 1, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
    if kind == "bart":
        own |= {"forced_bos_token_id": 0, "forced_eos_token_id": None, "num_beams": 1}
    if kind == "gpt2":
        own = {"n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 40}
        own |= {"bos_token_id": 18, "eos_token_id": 18}
    config = transformers.AutoConfig.for_model(kind, **(own | {"vocab_size": rows} | settings))
    torch.manual_seed(3)
    model = getattr(transformers, name)(config)
    with torch.no_grad():
        for parameter in (p for p in model.parameters() if p.requires_grad):
            parameter.add_(0.3 * torch.randn_like(parameter))
        if hasattr(model, "final_logits_bias"):
            model.final_logits_bias.add_(0.3 * torch.randn_like(model.final_logits_bias))
            model.final_logits_bias[:, config.eos_token_id] += 2.0  # so that most texts end
    model.eval().save_pretrained(folder)
    return model
