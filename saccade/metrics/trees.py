"""Bracketed trees, "(S (NP (DT the) (NN cat)) (VP (VBZ sits)))", and bracket F1.

A tree is a bracket with a label and at least one child; a child is a tree or a word.
"""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from saccade.metrics.text import check_references

Span = tuple[str, int, int]  # label, first word, end (excluded)


class Tree(NamedTuple):
    """The words of a tree, and the spans of its brackets without part-of-speech tags."""

    words: list[str]
    spans: list[Span]  # the root's is the last


def parse_tree(text: str) -> Tree | None:
    """The tree that a text is; None if it is not well-formed."""
    tokens = text.replace("(", " ( ").replace(")", " ) ").split()
    words: list[str] = []
    spans: list[Span] = []
    # open brackets: label, first word, number of children, whether one of them is a bracket
    stack: list[tuple[str, int, int, bool]] = []
    at = 0
    while at < len(tokens):
        token = tokens[at]
        if token == "(":
            if at + 1 >= len(tokens) or tokens[at + 1] in "()" or (spans and not stack):
                return None  # no label, or a second tree
            if stack:
                label, first, children, _ = stack[-1]
                stack[-1] = label, first, children + 1, True
            stack.append((tokens[at + 1], len(words), 0, False))
            at += 2
            continue
        if not stack:
            return None
        label, first, children, has_brackets = stack[-1]
        if token != ")":
            words.append(token)
            stack[-1] = label, first, children + 1, has_brackets
        else:
            if not children:
                return None
            stack.pop()
            if has_brackets or children > 1 or not stack:  # else a part-of-speech tag
                spans.append((label, first, len(words)))
        at += 1
    return Tree(words, spans) if spans and not stack else None


def bracket_scores(
    hypotheses: Sequence[str], references: Sequence[Sequence[str]]
) -> dict[str, float]:
    """Labelled bracket F1 in percent, as by evalb, over the corpus and without the root.

    A hypothesis that is not a tree, or has other words than the first reference, has no correct
    brackets. `well_formed` is the percentage of hypotheses that are trees.
    """
    check_references(hypotheses, references)
    right = guessed = expected = trees = 0
    for text, accepted in zip(hypotheses, references, strict=True):
        trees += parse_tree(text) is not None
        counts = bracket_counts(text, accepted[0])
        right, guessed, expected = right + counts[0], guessed + counts[1], expected + counts[2]
    precision, recall = 100 * right / max(guessed, 1), 100 * right / max(expected, 1)
    both = precision + recall
    return {
        "bracket_f1": 2 * precision * recall / both if both else 0.0,
        "bracket_precision": precision,
        "bracket_recall": recall,
        "well_formed": 100 * trees / len(hypotheses),
    }


def bracket_counts(text: str, reference: str) -> tuple[int, int, int]:
    """The number of correct brackets of a tree, of its brackets, and of the reference's."""
    guess, gold = parse_tree(text), parse_tree(reference)
    ours = Counter(guess.spans[:-1]) if guess is not None else Counter[Span]()
    theirs = Counter(gold.spans[:-1]) if gold is not None else Counter[Span]()
    same = guess is not None and gold is not None and guess.words == gold.words
    return (ours & theirs).total() if same else 0, ours.total(), theirs.total()
