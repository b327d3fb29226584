"""The course's worked example of byte-pair encoding: {low: 5, lower: 2, newest: 6, widest: 3}."""

from saccade.config import Tokenizer as Config
from saccade.text import SPECIALS, Tokenizer

CORPUS = ["low"] * 5 + ["lower"] * 2 + ["newest"] * 6 + ["widest"] * 3
LETTERS = len(SPECIALS) + len(set("lowernewestwidest "))


def test_bpe_joins_the_pairs_of_the_course_in_their_order() -> None:
    """e+s joins first, the first merges build est</w>, then lo and low."""
    bpe = Tokenizer.train(Config(kind="bpe", size=LETTERS + 5), CORPUS)
    assert bpe.tokens(range(LETTERS, len(bpe))) == ["es", "t</w>", "est</w>", "lo", "low"]


def test_a_word_never_seen_is_cut_into_known_pieces() -> None:
    for size in (LETTERS + 5, 8000):  # the later merges do not spoil it
        bpe = Tokenizer.train(Config(kind="bpe", size=size), CORPUS)
        assert bpe.tokens(bpe.encode(["lowest"])[0]) == ["low", "est</w>"]
