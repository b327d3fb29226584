"""Labels to numbers and back."""

from pathlib import Path

import pytest

from saccade.errors import CheckpointError, DataError
from saccade.text import Vocab


def test_the_most_frequent_label_comes_first_and_equals_go_by_name() -> None:
    vocab = Vocab(["N", "V", "N", "B", "A"])
    assert vocab.labels == ("N", "A", "B", "V")
    assert len(vocab) == 4
    assert [vocab.index(label) for label in vocab.labels] == [0, 1, 2, 3]
    assert [vocab.label(i) for i in range(4)] == list(vocab.labels)


def test_an_unknown_label_names_the_near_ones() -> None:
    with pytest.raises(DataError, match=r"'positiv': did you mean 'positive'\?"):
        Vocab(["positive", "negative"]).index("positiv")
    with pytest.raises(DataError, match=r"the labels are '0', '1', .* and 2 more"):
        Vocab(map(str, range(12))).index("x")


def test_a_saved_vocabulary_is_the_same(tmp_path: Path) -> None:
    vocab = Vocab(["zwei", "zwei", "日", "", "a\nb"])
    vocab.save(tmp_path / "labels.json")
    again = Vocab.load(tmp_path / "labels.json")
    assert (again.labels, again.counts) == (vocab.labels, vocab.counts)


def test_no_labels_are_an_error() -> None:
    with pytest.raises(DataError, match="no labels"):
        Vocab([])


@pytest.mark.parametrize("damage", ["", "{", "{}", "[]", '["a"]', '{"a": "b"}', "3"])
def test_a_damaged_vocabulary_is_a_checkpoint_error(damage: str, tmp_path: Path) -> None:
    path = tmp_path / "labels.json"
    path.write_text(damage)
    with pytest.raises(CheckpointError, match=r"labels\.json"):
        Vocab.load(path)
