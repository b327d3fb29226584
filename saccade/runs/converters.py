"""Two small formats of published weights: llama2.c's, and the arrays of g2p_en.

llama2.c, legacy format (github.com/karpathy/llama2.c): seven integers, then all weights in single
precision, layer by layer within each kind; its tokenizer is a second file, tok*.bin.
g2p_en (github.com/Kyubyong/g2p): the arrays of a GRU that reads letters and one that writes phones.
"""

import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers as hf
import torch
from tokenizers import models
from torch import Tensor

from saccade import config as c
from saccade.data.fields import TargetText, Text
from saccade.errors import CheckpointError
from saccade.models.pretrained import published
from saccade.runs import guard
from saccade.runs.importing import Converted, regular_file, task_of
from saccade.tasks.translate import Translate
from saccade.text import published as older
from saccade.text.imported import imported
from saccade.text.tokenizers import Tokenizer, special_names
from saccade.text.vocab import Specials

MAX_ARRAYS_BYTES = 1 << 30
HEADER = struct.Struct("<7i")


def converted_file(path: Path) -> Converted:
    """A file, or a folder of files, in one of these formats."""
    found = sorted(path.iterdir()) if path.is_dir() else [path]
    arrays = [one for one in found if one.suffix == ".npz"]
    if arrays:
        return g2p(arrays[0])
    binary = [one for one in found if one.suffix == ".bin" and not one.name.startswith("tok")]
    named = sorted(path.glob("tok*.bin") if path.is_dir() else path.parent.glob("tok*.bin"))
    if binary and named and HEADER.size < binary[0].stat().st_size:
        return llama2c(binary[0], named[0])
    if path.is_dir() and not found:
        raise CheckpointError(f"{path}: is empty")
    if any(one.suffix in (".bin", ".pt", ".pth", ".ckpt", ".pkl") for one in found):
        raise CheckpointError(
            f"{path}: holds pickled weights, which can run a stranger's code when they are read: "
            "convert them to safetensors where you trust them, with their config.json beside them"
        )
    raise CheckpointError(
        f"{path}: unknown format: expected a folder with config.json and model.safetensors"
    )


# --- llama2.c -------------------------------------------------------------------------------------


def llama2c(path: Path, tokenizer: Path) -> Converted:
    """A model of llama2.c in its legacy format."""
    path = regular_file(path)
    with path.open("rb") as file:
        D, F, L, H, G, V, T = HEADER.unpack(file.read(HEADER.size))
    tied, V = V > 0, abs(V)
    if not all(0 < n <= 1 << 24 for n in (D, F, L, H, G, V, T)) or D % H or H % G or L > 256:
        raise CheckpointError(f"{path}: not a llama2.c model: impossible sizes")
    K = D // H
    sizes = {  # in the file's order, by our names; {} is the layer
        "decoder.embedding.weight": (V, D),
        "decoder.stack.blocks.{}.attention_norm.weight": (L, D),
        "q": (L, H * K, D),
        "k": (L, G * K, D),
        "v": (L, G * K, D),
        "decoder.stack.blocks.{}.attention.out.weight": (L, D, H * K),
        "decoder.stack.blocks.{}.feed_forward_norm.weight": (L, D),
        "gate": (L, F, D),
        "decoder.stack.blocks.{}.feed_forward.down.weight": (L, D, F),
        "up": (L, F, D),
        "decoder.stack.norm.weight": (D,),
        "rotations": (2, T, K // 2),  # which are computed here
        "decoder.output.weight": (0 if tied else V, D),
    }
    places, end = {}, HEADER.size
    for name, shape in sizes.items():
        places[name], end = end, end + 4 * int(np.prod(shape, dtype=np.int64))
    if end != path.stat().st_size:
        raise CheckpointError(f"{path}: not a llama2.c model: {end:,} bytes expected")

    def read(name: str, layer: int | None = None) -> Tensor:
        shape = sizes[name] if layer is None else sizes[name][1:]
        count = int(np.prod(shape, dtype=np.int64))
        place = places[name] + 4 * count * (layer or 0)
        return torch.from_numpy(np.fromfile(path, np.float32, count, offset=place)).view(shape)

    def weight(name: str, shape: tuple[int, ...]) -> Iterator[Tensor]:
        if "blocks" not in name:
            yield read(name)
            return
        parts = name.split(".")
        layer, generic = int(parts[3]), ".".join([*parts[:3], "{}", *parts[4:]])
        if generic.endswith("qkv.weight"):
            query, key, value = (read(one, layer) for one in "qkv")  # pairs are neighbours here too
            grouped = [t.view(G, -1, K, D) for t in (query, key, value)]
            yield torch.cat(grouped, 1).view(shape)
        elif generic.endswith("up.weight"):
            yield torch.cat([read("gate", layer), read("up", layer)])
        else:
            yield read(generic, layer)

    raw = {
        "model_type": "llama",
        "hidden_size": D,
        "intermediate_size": F,
        "num_hidden_layers": L,
        "num_attention_heads": H,
        "num_key_value_heads": G,
        "vocab_size": V,
        "max_position_embeddings": T,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": tied,
    }
    made = published(raw, str(path))
    content = older.scored_bpe(tokens_of(regular_file(tokenizer), V))
    unk, bos, eos = 0, 1, 2
    special = Specials(eos, unk, bos, eos, eos)
    found = imported(content, V, special, line=(bos,), where=str(tokenizer))
    task = task_of(made, raw, path.parent, found, found)
    return Converted(task, weight, [f"{path}: llama2.c, decoder of {L} layers x {D}"])


def tokens_of(path: Path, count: int) -> list[tuple[str, float, int]]:
    """The pieces of llama2.c's tokenizer with their scores and kinds."""
    content = path.read_bytes() if path.stat().st_size < 1 << 25 else b""
    pieces: list[tuple[str, float, int]] = []
    at = 4  # the longest piece comes first
    try:
        while at < len(content):
            score, size = struct.unpack_from("<fi", content, at)
            if not 0 <= size <= 512:
                raise ValueError("a piece of impossible length")
            text = content[at + 8 : at + 8 + size].decode()
            at += 8 + size
            kind = older.NORMAL
            if len(pieces) < 3:
                text, kind = ("<unk>", "<s>", "</s>")[len(pieces)], older.CONTROL
                kind = older.UNKNOWN if text == "<unk>" else kind
            elif len(text) == 6 and text.startswith("<0x"):
                kind = older.BYTE
            pieces.append((text.replace(" ", "▁"), score, kind))
    except (struct.error, ValueError) as error:
        raise CheckpointError(f"{path}: not a llama2.c tokenizer: {error}") from None
    if len(pieces) != count:
        raise CheckpointError(f"{path}: {len(pieces):,} pieces, and the model has {count:,}")
    return pieces


# --- g2p_en ---------------------------------------------------------------------------------------

LETTERS = ("<pad>", "<unk>", "</s>", *"abcdefghijklmnopqrstuvwxyz")
CONSONANTS = "B CH D DH F G HH JH K L M N NG P R S SH T TH V W Y Z ZH"
VOWELS = "AA AE AH AO AW AY EH ER EY IH IY OW OY UH UW"
STRESSED = [f"{vowel}{stress}" for vowel in VOWELS.split() for stress in "012"]
PHONES = ("<pad>", "<unk>", "<s>", "</s>", *sorted([*CONSONANTS.split(), *STRESSED, "UW"]))
NAMES = {
    "encoder.stem.embedding.weight": "enc_emb",
    "encoder.body.layers.layers.0.weight_ih_l0": "enc_w_ih",
    "encoder.body.layers.layers.0.weight_hh_l0": "enc_w_hh",
    "encoder.body.layers.layers.0.bias_ih_l0": "enc_b_ih",
    "encoder.body.layers.layers.0.bias_hh_l0": "enc_b_hh",
    "decoder.embedding.weight": "dec_emb",
    "decoder.layers.layers.0.weight_ih_l0": "dec_w_ih",
    "decoder.layers.layers.0.weight_hh_l0": "dec_w_hh",
    "decoder.layers.layers.0.bias_ih_l0": "dec_b_ih",
    "decoder.layers.layers.0.bias_hh_l0": "dec_b_hh",
    "decoder.output.weight": "fc_w",
    "decoder.output.bias": "fc_b",
}
NEVER = -30.0  # the logit of a token that g2p_en does not have


def g2p(path: Path) -> Converted:
    """The arrays of g2p_en: a GRU that reads letters, and one that writes phones."""
    arrays = arrays_of(regular_file(path), set(NAMES.values()))
    D = arrays["enc_w_hh"].shape[-1]
    letters, phones = arrays["enc_emb"].shape[0], arrays["dec_emb"].shape[0]
    if letters != len(LETTERS) or phones > len(PHONES):
        raise CheckpointError(f"{path}: {letters} letters and {phones} phones are not g2p_en's")
    tokenizers = {"source": ("char", LETTERS), "target": ("word", PHONES)}
    made, rows = {}, {}
    for side, (kind, names) in tokenizers.items():
        own = [n for n in names if n not in ("<pad>", "<unk>", "<s>", "</s>")]
        settings = c.Tokenizer(kind=kind, lowercase=side == "source")  # type: ignore[arg-type]
        all_names = [f"{name[:-1]} >" for name in special_names(settings)] + own
        vocab = {name: i for i, name in enumerate(all_names)}
        made[side] = Tokenizer(settings, hf.Tokenizer(models.WordLevel(vocab, "<unk >")))
        theirs = {"<pad >": "<pad>", "<unk >": "<unk>", "<bos >": "<s>", "<eos >": "</s>"}
        found = [theirs.get(name, name) for name in all_names]
        rows[side] = [names.index(n) if n in names else -1 for n in found]
    half: dict[str, Any] = {"kind": "recurrent", "cell": "gru", "dim": D, "dropout": 0.0}
    config = c.parse(
        {
            "task": {
                "kind": "translate",
                "source": made["source"].config.model_dump(),
                "target": made["target"].config.model_dump(),
                "metric": "sequence_error",
            },
            "data": {"format": "tsv", "source": [1], "target": 2, "columns": 2, "max_len": 64},
            "encoder": half | {"bidirectional": False},
            "decoder": half | {"attention": "off", "first_state": "copied", "tied": False},
            "decode": {"width": 1, "max_len": 20},
        },
        str(path),
    )
    task = Translate(config, (Text(made["source"]),), TargetText(made["target"]))

    def weight(name: str, shape: tuple[int, ...]) -> Iterator[Tensor]:
        tensor = torch.from_numpy(arrays[NAMES[name]].astype(np.float32))
        if "emb" in NAMES[name]:
            tensor = tensor / D**0.5  # embeddings are multiplied by it
        if shape[0] != tensor.size(0):
            side = "source" if "encoder" in name else "target"
            filled = torch.full(shape, NEVER if name.endswith("bias") else 0.0)
            for i, j in enumerate(rows[side]):
                if j >= 0:
                    filled[i] = tensor[j]
            tensor = filled
        if tuple(tensor.shape) != shape:
            raise CheckpointError(f"{path}: {NAMES[name]} is {tuple(tensor.shape)}, not {shape}")
        yield tensor

    return Converted(task, weight, [f"{path}: g2p_en, letters to phones, GRUs of {D}"])


def arrays_of(path: Path, names: set[str]) -> dict[str, Any]:
    """The arrays of an .npz file, all of them small, none of them a pickle."""
    try:
        with zipfile.ZipFile(path) as archive:
            if sum(entry.file_size for entry in archive.infolist()) > MAX_ARRAYS_BYTES:
                raise CheckpointError(f"{path}: would take more than {MAX_ARRAYS_BYTES >> 20} MB")
            if lost := sorted(names - {name.removesuffix(".npy") for name in archive.namelist()}):
                raise CheckpointError(f"{path}: not the arrays of g2p_en: it has no '{lost[0]}'")
            return {name: _array(archive, name) for name in names}
    except (OSError, ValueError, zipfile.BadZipFile, KeyError) as error:
        raise CheckpointError(f"{path}: cannot be read: {guard.shortened(error)}") from None


def _array(archive: zipfile.ZipFile, name: str) -> Any:
    with archive.open(f"{name}.npy") as file:
        return np.lib.format.read_array(file, allow_pickle=False)
