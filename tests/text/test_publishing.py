"""A tokenizer.json that we write cuts a text as we do, without our code."""

import json

import pytest
import tokenizers as hf

from saccade.config import Tokenizer as Settings
from saccade.text.publishing import tokenizer_json
from saccade.text.tokenizers import Tokenizer

LINES = [
    "It's a (very) good day, isn't it?! Yes... “indeed” – 3.50 € or $4",
    "  two  blanks\tand a tab, x_y-z 1/2 #tag @name a+b=c",
    "Größe, naïve: «ça va» ¿qué? हिन्दी।",
    "the end.",
]


KINDS = [(kind, False) for kind in ("word", "bpe", "unigram", "char", "bytes")]
KINDS += [(kind, True) for kind in ("word", "bpe", "unigram")]


@pytest.mark.parametrize(("kind", "apart"), KINDS)
@pytest.mark.parametrize("lower", [False, True])
def test_theirs_has_our_ids(kind: str, apart: bool, lower: bool) -> None:
    settings = {"kind": kind, "size": 400, "split_punctuation": apart, "lowercase": lower}
    ours = Tokenizer.train(Settings.model_validate(settings), LINES)
    theirs = hf.Tokenizer.from_str(json.dumps(tokenizer_json(ours)))
    texts = [*LINES, "A new day, (it's) “over”!", "?", "end."]
    found = [theirs.encode(text, add_special_tokens=False).ids for text in texts]
    assert found == ours.encode(texts)
