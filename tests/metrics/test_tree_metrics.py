"""Brackets: which texts are trees, and how many brackets two trees share."""

import pytest

from saccade.metrics.trees import bracket_scores, parse_tree

CAT = "(S (NP (DT the) (NN cat)) (VP (VBZ sits)))"


def test_a_tree_has_words_and_the_spans_of_brackets_that_are_no_tags() -> None:
    tree = parse_tree(CAT)
    assert tree is not None
    assert tree.words == ["the", "cat", "sits"]
    assert tree.spans == [("NP", 0, 2), ("VP", 2, 3), ("S", 0, 3)]
    assert parse_tree("( S ( NP XX XX ) XX )") == (["XX"] * 3, [("NP", 0, 2), ("S", 0, 3)])
    assert parse_tree("(NN cat)") == (["cat"], [("NN", 0, 1)])  # the root counts in any case


@pytest.mark.parametrize(
    "text",
    ["", "cat", "(S", "(S (NP cat)", "(S cat))", "()", "(S)", "((NP cat))", "(S cat) (S cat)"],
)
def test_what_is_no_tree_is_none(text: str) -> None:
    assert parse_tree(text) is None


def test_bracket_f1_is_over_the_corpus_and_without_the_root() -> None:
    gold = [[CAT], ["(S (NP (PRP he)) (VP (VBZ is) (ADJP (JJ tall))))"]]
    other = "(X (NP (DT the) (NN cat) (VBZ sits)))"  # NP spans too much
    scores = bracket_scores([other, gold[1][0]], gold)
    assert scores["bracket_precision"] == pytest.approx(100 * 3 / 4)
    assert scores["bracket_recall"] == pytest.approx(100 * 3 / 5)
    assert scores["bracket_f1"] == pytest.approx(100 * 2 * 3 / 9)
    assert scores["well_formed"] == 100.0
    assert bracket_scores([gold[0][0], gold[1][0]], gold)["bracket_f1"] == 100.0


def test_a_text_that_is_no_tree_or_has_other_words_has_nothing_right() -> None:
    scores = bracket_scores(["(S (NP the cat", CAT.replace("cat", "dog")], [[CAT], [CAT]])
    assert scores["bracket_f1"] == scores["bracket_precision"] == 0.0
    assert scores["well_formed"] == 50.0


def test_a_bracket_that_comes_twice_counts_twice() -> None:
    gold = "(S (NP (NP (DT the) (NN cat))) (VP (VBZ sits)))"
    assert bracket_scores([CAT], [[gold]])["bracket_recall"] == pytest.approx(100 * 2 / 3)
