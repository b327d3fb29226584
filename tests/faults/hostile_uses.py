"""More rows of the table of hostile edits: what does harm when a run is used, not when opened."""

import json
import os
import random
from collections.abc import Iterable, Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

from tests.faults.hostile import (
    CONFIG,
    LM,
    VOCABULARY,
    Apply,
    Edit,
    edited,
    in_json,
    replaced,
)
from tests.faults.processes import MB

DOUBLED = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
TEMPLATE = {
    "type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "x", "type_id": 0}}],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}],
    "special_tokens": {"x": {"id": "x", "ids": [999999], "tokens": ["x"]}},
}  # fmt: skip
PADDING = {"direction": "Right", "pad_id": 0, "pad_type_id": 0, "pad_token": "x",
           "pad_to_multiple_of": None}  # fmt: skip
ODD_PARTS: dict[str, Any] = {
    "normalizer": {"type": "Sequence", "normalizers": [DOUBLED] * 34},
    "padding": PADDING | {"strategy": {"Fixed": 3_000_000_000}},
    "post_processor": TEMPLATE,
    "added_tokens": [{"id": 5, "content": "a", "single_word": False, "lstrip": False,
                      "rstrip": False, "normalized": False, "special": True}],
}  # fmt: skip
# `score` and `load` read neither of these, and so need not refuse them.
USES = {LM: ("predict", "evaluate", "resume", "verify"), "attention": ("predict", "measure")}
OUTSIDE = ("/dev/zero", "/etc/passwd", "../outside/secret.txt", "deep/link", "deep/pipe", "a\0b")
ODD_SETTINGS = [
    "width = 10000000", "max_len = 1000000000", "max_ratio = 1e300", "batch_tokens = 1000000000000",
    "candidates = 100000000", "width = 1000\nmax_len = 100000", "workers = 100000",
    "alpha = 1e300", f"stop_after = {10**40}",
]  # fmt: skip


def set_decode(*lines: str) -> Apply:
    """Settings in [decode], instead of what is there of the same keys."""

    def change(data: bytes) -> bytes:
        keys = {line.split(" ")[0] for line in "\n".join(lines).split("\n")}
        before, found, after = data.decode().partition("[decode]\n")
        table, end, rest = after.partition("\n[")
        kept = [row for row in table.split("\n") if row.split(" ")[0] not in keys]
        return (
            "\n".join([before + found + "\n".join(lines), *kept]).encode() + (end + rest).encode()
        )

    return edited(CONFIG, change)


def naming(key: str, name: str) -> Apply:
    """A run whose own settings name something outside, or something that is not a regular file."""

    def apply(run: Path) -> None:
        (run / "deep").mkdir()
        (run / "deep" / "link").symlink_to(run.parent / "outside" / "secret.txt")
        os.mkfifo(run / "deep" / "pipe")
        set_decode(f"{key} = {json.dumps(name)}")(run)

    return apply


def endless(key: str) -> Apply:
    """A run that is not prepared yet, to be made from a device without an end."""
    unprepared = replaced("prepared = true", "prepared = false")
    return lambda run: (unprepared(run), replaced(*DEVICES[key])(run))


DEVICES = {
    "train": ('train = ["language.txt"]', 'train = ["/dev/zero"]'),
    "dev": ('train = ["language.txt"]\ndev = []', 'train = ["config.toml"]\ndev = ["/dev/zero"]'),
    "vocabulary": ('vocabulary = ""', 'vocabulary = "/dev/zero"'),
}


def tree(run: Path) -> None:
    """A unigram vocabulary that is small as a file, and large as the tree that HF makes of it."""
    numbers = random.Random(1)
    pieces = [["".join(numbers.choices("abcdefgh", k=500)), -1.0] for _ in range(2000)]
    path = run / "tokenizer.json"
    content = json.loads(path.read_text())
    names = list(content["tokenizer"]["model"]["vocab"])[:5]
    content["saccade"]["kind"] = "unigram"
    vocab = [[name, 0.0] for name in names] + pieces
    content["tokenizer"]["model"] = {"type": "Unigram", "unk_id": 1, "vocab": vocab}
    path.write_text(json.dumps(content))


def used(every: bool = False) -> Iterator[Edit]:
    """Each edit with every use of a run, or with one of them in turn."""
    for base, works in USES.items():
        turn = cycle((*works, "score"))

        def chosen(works: tuple[str, ...], turn: Iterator[str] = turn) -> Iterable[str]:
            return works if every else [next(turn)]

        for part, value in ODD_PARTS.items():
            apply = in_json(VOCABULARY, ("tokenizer", part), value)
            for work in chosen((*works, "score")):
                yield Edit(f"tokenizer: {part}", work, base, apply, says=f"tokenizer.{part}")
        for lines in ODD_SETTINGS:
            for work in chosen((*works, "score")):
                yield Edit(f"decode: {lines!r}", work, base, set_decode(lines), says="decode")
        turn = cycle(works)
        for name in OUTSIDE:
            for key in ("only", "model") if "deep" not in name else ("only",):
                for work in chosen(works, turn):
                    yield Edit(f"decode.{key} = {name!r}", work, base, naming(key, name))
    yield Edit("decode.only = '/dev/zero'", "exact", "attention", naming("only", "/dev/zero"))
    for key in DEVICES:
        yield Edit(f"data: {key} without an end", "resume", LM, endless(key), says="regular file")
    yield Edit("tokenizer: a large tree", "predict", LM, tree, allowance=16 * MB, says="of a tree")
