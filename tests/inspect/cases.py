"""Cases of every architecture, small, with random weights: views are tried on each."""

from functools import cache

import torch

from saccade.inspect.case import Case, GeneratedCase, LabelCase, LanguageModelCase
from saccade.nn.padded import Padded
from tests.architectures import (
    DECODERS,
    ENCODERS,
    generator,
    language_model,
    network,
    source_batch,
)

IDS = [7, 5, 9, 3]  # what is said, the end last
NAMES = [f"w{i}" for i in range(6)]
ALONE = [  # decoders that need no source
    name
    for name, decoder in DECODERS.items()
    if decoder.get("attention", "off") == "off"
    and decoder.get("first_state") is None
    and decoder["kind"] != "edit"
]
CASES = (
    *(f"said {name}" for name in DECODERS),
    *(f"read {name}" for name in ENCODERS),
    *(f"on {name}" for name in ALONE),
    *(f"classify {name}" for name in ENCODERS),
    *(f"tag {name}" for name in ENCODERS),
)


@cache
def case_of(name: str) -> Case:
    """One for all tests: nobody changes it."""
    kind, _, part = name.partition(" ")
    source, said = source_batch((6,)), [f"t{i}" for i in IDS]
    if kind in ("said", "read"):
        net = generator("lstm", part) if kind == "said" else generator(part, "transformer")
        read = ["<bos>", *said[:-1]]
        return GeneratedCase(net, (source,), [NAMES], said, "", read, marks=[2], ids=IDS)
    if kind == "on":
        read = ["<eos>", *said[:-1]]
        return LanguageModelCase(
            language_model(part), (), [read], said, "", read, marks=[3], ids=IDS
        )
    torch.manual_seed(4)
    if kind == "tag":
        source = Padded(source.values, source.lengths, torch.tensor([[0, 0, 1, 2, 2, 2]]))
    labels = [3] if kind == "classify" else [1, 4, 2]
    return LabelCase(
        network(kind, part), (source,), [NAMES], list(map(str, labels)), "", ids=labels
    )
