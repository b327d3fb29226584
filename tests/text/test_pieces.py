"""Pieces are joined in the order in which they were learned."""

import pytest

from saccade.config import Tokenizer as Config
from saccade.text import SPECIALS, Tokenizer

PAIRS = ("ab", "bc")


@pytest.mark.parametrize("kind", ["bpe", "bytes"])
def test_the_pair_that_was_learned_first_is_joined_first(kind: str) -> None:
    """In "5abc5", b can go to either side: to the one that was more frequent in training."""
    for more, pieces in (("ab", ["ab", "c"]), ("bc", ["a", "bc"])):
        lines = [f"{i}{more}{i}" for i in range(9)]
        lines += [f"{i}{pair}{i}" for i in range(5) for pair in PAIRS]
        letters = len(SPECIALS) + (256 if kind == "bytes" else 13)  # a b c, digits and a blank
        tokenizer = Tokenizer.train(Config(kind=kind, size=letters + 2), lines)
        learned = tokenizer.tokens(range(letters, len(tokenizer)))
        assert learned == [more, *(pair for pair in PAIRS if pair != more)]
        assert tokenizer.tokens(tokenizer.encode(["5abc5"])[0])[1:3] == pieces


def test_long_pieces_are_built_from_the_ones_before() -> None:
    lines = ["abcd"] * 20 + ["ab"] * 10 + ["cd"] * 5
    bpe = Tokenizer.train(Config(kind="bpe", size=100), lines)
    assert bpe.tokens(bpe.encode(["abcd"])[0]) == ["abcd</w>"]
    assert bpe.tokens(bpe.encode(["abab"])[0]) == ["ab", "ab</w>"]
