"""Export of our tokenizers to Hugging Face's tokenizer.json, which gives the same ids.

Ours cut a text into units in Python (`tokenizers._units`); here HF's normalizers and pre-tokenizers
do the same.
"""

import json
from typing import Any

from tokenizers import pre_tokenizers

from saccade.text.imported import Imported
from saccade.text.published import special_tokens, template
from saccade.text.tokenizers import CHUNK, Tokenizer, special_names

CUT_AT_BLANKS = ("word", "bpe", "unigram")
ROLES = ("pad", "unk", "bos", "eos", "sep", "mask")


def tokenizer_json(tokenizer: Tokenizer) -> dict[str, Any]:
    """The tokenizer.json of a tokenizer, with the special tokens that an encoder reads around a
    text."""
    frame = tokenizer.frame
    if isinstance(tokenizer, Imported):
        content = dict(tokenizer.content)
        names = {name: i for i, name in enumerate(tokenizer.tokens(range(len(tokenizer))))}
    else:
        content = _content(tokenizer)
        vocab = content["model"]["vocab"]
        names = dict(vocab) if isinstance(vocab, dict) else {p: i for i, (p, _) in enumerate(vocab)}
    pieces = {i: name for name, i in names.items()}
    around = [[pieces[i] for i in ids] for ids in (frame.before, frame.after, frame.between)]
    return content | {"post_processor": template(names, *around)}


def special_roles(tokenizer: Tokenizer) -> dict[str, str]:
    """The names of the special tokens, as in tokenizer_config.json."""
    names = tokenizer.tokens(range(len(tokenizer)))
    roles = {}
    for role in ROLES:
        i: int | None = getattr(tokenizer.specials, role)
        if i is not None:
            roles[f"{role}_token"] = names[i]
    roles["cls_token"] = roles["bos_token"]
    return roles


def _content(tokenizer: Tokenizer) -> dict[str, Any]:
    config = tokenizer.config
    saved = json.loads(tokenizer.model_json)
    model = saved["model"]
    names = {f"{name[:-1]} >": name for name in special_names(config)}
    if config.kind == "bytes":
        letters = {chr(byte): LETTERS[byte] for byte in range(256)}

        def renamed(piece: str) -> str:
            return names.get(piece) or "".join(letters[char] for char in piece)

        model["merges"] = [[renamed(a), renamed(b)] for a, b in map(_pair, model["merges"])]
    else:

        def renamed(piece: str) -> str:
            return names.get(piece, piece)

    if model["type"] == "Unigram":
        model["vocab"] = [[renamed(piece), score] for piece, score in model["vocab"]]
        vocab = {piece: i for i, (piece, _) in enumerate(model["vocab"])}
    else:
        vocab = model["vocab"] = {renamed(piece): i for piece, i in model["vocab"].items()}
        model["unk_token"] = "<unk>"
    normalizers: list[dict[str, Any]] = [{"type": "Lowercase"}] if config.lowercase else []
    normalizers += [{"type": "NFD"}] if config.decompose else []
    strip = {"type": "Strip", "strip_left": True, "strip_right": True}
    blanks = {"type": "Replace", "pattern": {"Regex": r"\s+"}, "content": " "}
    if config.split_punctuation and config.kind in CUT_AT_BLANKS:
        normalizers += _split_punctuation()
    cut: list[dict[str, Any]] = []
    decoder: list[dict[str, Any]] = [{"type": "Fuse"}]
    match config.kind:
        case "word":
            cut = [{"type": "WhitespaceSplit"}]
            if config.separator:
                cut = [_split({"String": config.separator}, "Removed")]
            decoder = []
        case "char":
            cut = [_split({"Regex": r"[\s\S]"}, "Isolated")]
        case "bpe":
            end = {"type": "Replace", "pattern": {"Regex": r"(?<=\S)\z"}, "content": " "}
            normalizers += [strip, blanks, end]
            cut = [_split({"String": " "}, "MergedWithPrevious")]
            decoder.append({"type": "Strip", "content": " ", "start": 0, "stop": 1})
        case "unigram":
            normalizers += [strip, blanks, {"type": "Prepend", "prepend": " "}]
            cut = [_split({"String": " "}, "MergedWithNext")]
            decoder.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
        case _:
            byte = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
            byte |= {"use_regex": False}
            cut, decoder = [_split({"Regex": CHUNK.pattern}, "Isolated"), byte], [byte]
    return {
        "version": "1.0",
        "added_tokens": special_tokens(vocab, list(special_names(config))),
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": cut},
        "decoder": {"type": "Sequence", "decoders": decoder} if decoder else None,
        "model": model,
    }


def _split_punctuation() -> list[dict[str, Any]]:
    """Normalizers that put blanks around punctuation and symbols."""
    sides = (r"(?<=\S)(?=[\p{P}\p{S}])", r"(?<=[\p{P}\p{S}])(?=\S)")
    return [{"type": "Replace", "pattern": {"Regex": side}, "content": " "} for side in sides]


def _split(pattern: dict[str, str], behavior: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": False}


def _pair(merge: Any) -> tuple[str, str]:
    left, right = merge.split(" ") if isinstance(merge, str) else merge
    return left, right


def _letters() -> list[str]:
    """GPT-2's characters for bytes: printable ones unchanged, the others from U+0100 on."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    substitutes = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(substitutes)) for byte in range(256)]


LETTERS = _letters()
assert {*LETTERS} == {*pre_tokenizers.ByteLevel.alphabet()}
