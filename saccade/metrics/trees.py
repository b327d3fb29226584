"""Trees in brackets, "(S (NP (DT the) (NN cat)) (VP (VBZ sits)))", and how alike two of them are.

A tree is a bracket with a label and at least one child; a child is a tree or a word.
"""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from saccade.metrics.text import check_references

Span = tuple[str, int, int]  # a label, and the words it spans: from, up to


class Tree(NamedTuple):
    """The words of a tree, and the spans of its brackets but those of single words with a tag."""

    words: list[str]
    spans: list[Span]  # the root's is the last


def parse_tree(text: str) -> Tree | None:
    """The tree that a text is; None if it is not well-formed."""
    tokens = text.replace("(", " ( ").replace(")", " ) ").split()
    words: list[str] = []
    spans: list[Span] = []
    open_ones: list[tuple[str, int, int, bool]] = []  # label, first word, children, any bracket
    at = 0
    while at < len(tokens):
        token = tokens[at]
        if token == "(":
            if at + 1 >= len(tokens) or tokens[at + 1] in "()" or (spans and not open_ones):
                return None  # no label, or a second tree
            if open_ones:
                label, first, children, _ = open_ones[-1]
                open_ones[-1] = label, first, children + 1, True
            open_ones.append((tokens[at + 1], len(words), 0, False))
            at += 2
            continue
        if not open_ones:
            return None
        label, first, children, brackets = open_ones[-1]
        if token != ")":
            words.append(token)
            open_ones[-1] = label, first, children + 1, brackets
        else:
            if not children:
                return None
            open_ones.pop()
            if brackets or children > 1 or not open_ones:  # else a tag on its word
                spans.append((label, first, len(words)))
        at += 1
    return Tree(words, spans) if spans and not open_ones else None


def bracket_scores(
    hypotheses: Sequence[str], references: Sequence[Sequence[str]]
) -> dict[str, float]:
    """Labelled bracket F1 in percent, as evalb has it, over the corpus and without the root.

    A hypothesis that is no tree, or has other words than the first reference, has no bracket right.
    `well_formed` is the share of trees among the hypotheses.
    """
    check_references(hypotheses, references)
    right = said = wanted = trees = 0
    for text, accepted in zip(hypotheses, references, strict=True):
        trees += parse_tree(text) is not None
        more = bracket_counts(text, accepted[0])
        right, said, wanted = right + more[0], said + more[1], wanted + more[2]
    precision, recall = 100 * right / max(said, 1), 100 * right / max(wanted, 1)
    both = precision + recall
    return {
        "bracket_f1": 2 * precision * recall / both if both else 0.0,
        "bracket_precision": precision,
        "bracket_recall": recall,
        "well_formed": 100 * trees / len(hypotheses),
    }


def bracket_counts(text: str, reference: str) -> tuple[int, int, int]:
    """How many brackets of a tree are right, how many it has, and how many it should have."""
    guess, gold = parse_tree(text), parse_tree(reference)
    own = Counter(guess.spans[:-1]) if guess is not None else Counter[Span]()
    due = Counter(gold.spans[:-1]) if gold is not None else Counter[Span]()
    same = guess is not None and gold is not None and guess.words == gold.words
    return (own & due).total() if same else 0, own.total(), due.total()
