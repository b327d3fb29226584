"""Our tokenizers as the tokenizer.json of Hugging Face's: the same ids, without our code.

Ours cut a text into units in Python (`tokenizers._units`); here the same is said in HF's words.
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
    """The tokenizer.json of a tokenizer, with the marks that an encoder reads around a text."""
    frame = tokenizer.frame
    if isinstance(tokenizer, Imported):
        content = dict(tokenizer.content)
        names = {name: i for i, name in enumerate(tokenizer.tokens(range(len(tokenizer))))}
    else:
        content = _content(tokenizer)
        vocab = content["model"]["vocab"]
        listed = vocab if isinstance(vocab, dict) else {p: i for i, (p, _) in enumerate(vocab)}
        names = dict(listed)
    back = {i: name for name, i in names.items()}
    around = [[back[i] for i in ids] for ids in (frame.before, frame.after, frame.between)]
    return content | {"post_processor": template(names, *around)}


def special_roles(tokenizer: Tokenizer) -> dict[str, str]:
    """What the special tokens are called, as tokenizer_config.json says it."""
    names = tokenizer.tokens(range(len(tokenizer)))
    found = {}
    for role in ROLES:
        i: int | None = getattr(tokenizer.specials, role)
        if i is not None:
            found[f"{role}_token"] = names[i]
    found["cls_token"] = found["bos_token"]
    return found


def _content(tokenizer: Tokenizer) -> dict[str, Any]:
    config = tokenizer.config
    saved = json.loads(tokenizer.model_json)
    model = saved["model"]
    names = {f"{name[:-1]} >": name for name in special_names(config)}
    if config.kind == "bytes":
        letters = {chr(byte): _letter(byte) for byte in range(256)}

        def renamed(piece: str) -> str:
            return names.get(piece) or "".join(letters[one] for one in piece)

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
    lower = [{"type": "Lowercase"}] if config.lowercase else []
    lower += [{"type": "NFD"}] if config.decompose else []
    strip = {"type": "Strip", "strip_left": True, "strip_right": True}
    blanks = {"type": "Replace", "pattern": {"Regex": r"\s+"}, "content": " "}
    apart = _apart() if config.split_punctuation and config.kind in CUT_AT_BLANKS else []
    before: list[dict[str, Any]] = []
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
            before = [strip, blanks, end]
            cut = [_split({"String": " "}, "MergedWithPrevious")]
            decoder.append({"type": "Strip", "content": " ", "start": 0, "stop": 1})
        case "unigram":
            before = [strip, blanks, {"type": "Prepend", "prepend": " "}]
            cut = [_split({"String": " "}, "MergedWithNext")]
            decoder.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
        case _:
            byte = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
            byte |= {"use_regex": False}
            cut, decoder = [_split({"Regex": CHUNK.pattern}, "Isolated"), byte], [byte]
    return {
        "version": "1.0",
        "added_tokens": special_tokens(vocab, list(special_names(config))),
        "normalizer": {"type": "Sequence", "normalizers": [*lower, *apart, *before]},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": cut},
        "decoder": {"type": "Sequence", "decoders": decoder} if decoder else None,
        "model": model,
    }


def _apart() -> list[dict[str, Any]]:
    """Blanks between marks of punctuation or symbols and what they touch."""
    sides = (r"(?<=\S)(?=[\p{P}\p{S}])", r"(?<=[\p{P}\p{S}])(?=\S)")
    return [{"type": "Replace", "pattern": {"Regex": side}, "content": " "} for side in sides]


def _split(pattern: dict[str, str], behavior: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": False}


def _pair(merge: Any) -> tuple[str, str]:
    one, other = merge.split(" ") if isinstance(merge, str) else merge
    return one, other


def _letter(byte: int) -> str:
    """What HF's byte-level pieces call a byte."""
    return LETTERS[byte]


def _letters() -> list[str]:
    """GPT-2's letters for bytes: what can be seen stands for itself, the others follow U+0100."""
    seen = {*range(33, 127), *range(161, 173), *range(174, 256)}
    hidden = iter(range(256, 512))
    return [chr(byte) if byte in seen else chr(next(hidden)) for byte in range(256)]


LETTERS = _letters()
assert {*LETTERS} == {*pre_tokenizers.ByteLevel.alphabet()}
