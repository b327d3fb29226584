"""Hallucinated pairs: other letters in a stem, on both sides, and all else as it was."""

from pathlib import Path

import numpy as np
import pytest

import saccade
from saccade.config import parse
from saccade.data.corpora import Column, Corpus
from saccade.data.hallucinate import hallucinated
from saccade.errors import ConfigError
from tests.architectures import RECURRENT, TRANSFORMER
from tests.setup.test_strings import inflections

LETTERS = range(10, 40)
END, BEGIN, BLANK = 3, 2, 5
TAGS = [[6, 7, END], [8, END]]
# lawine -> lawinen; gehen -> ging: nothing of three letters is shared but in the first
PAIRS = [
    ([21, 10, 32, 18, 23, 14, END], [BEGIN, 21, 10, 32, 18, 23, 14, 23, END]),
    ([16, 14, 17, 14, 23, END], [BEGIN, 16, 18, 23, 16, END]),
]


def corpus(times: int = 50) -> Corpus:
    pairs = PAIRS * times
    sources = Column.of([source for source, _ in pairs]), Column.of(TAGS * times)
    return Corpus(sources, Column.of([target for _, target in pairs]))


def test_the_stem_is_other_letters_and_the_rest_as_it_was() -> None:
    plain = corpus()
    made = hallucinated(plain, LETTERS, 1.0, 1, 1)
    source, target = made.sources[0], made.tokens
    assert isinstance(source, Column)
    assert made.sources[1] is plain.sources[1]
    assert made.lengths.tolist() == plain.lengths.tolist()
    changed = 0
    for row in range(0, 100, 2):
        word, form = source[row], target[row]
        assert word[:6] == form[1:7]  # both sides have the same letters
        assert (word[0], word[5]) == (21, 14)  # at the ends of a long stem they stay
        assert form[7:] == [23, END]
        assert set(word[:6]) <= set(LETTERS)
        changed += sum(a != b for a, b in zip(word, PAIRS[0][0], strict=True))
    assert changed == pytest.approx(50 * 4 * 0.5, abs=25)
    for row in range(1, 100, 2):
        assert (source[row], target[row]) == PAIRS[1]


def test_a_pair_is_a_function_of_seed_epoch_and_index() -> None:
    def rows(made: Corpus) -> list[list[int]]:
        return [made.tokens[row] for row in range(len(made))]

    made = rows(hallucinated(corpus(), LETTERS, 0.5, 1, 1))
    assert made == rows(hallucinated(corpus(), LETTERS, 0.5, 1, 1))
    assert made != rows(hallucinated(corpus(), LETTERS, 0.5, 1, 2))
    assert made != rows(hallucinated(corpus(), LETTERS, 0.5, 2, 1))
    assert made[:40] == rows(hallucinated(corpus(20), LETTERS, 0.5, 1, 1))  # whatever follows


def test_a_share_of_pairs_is_hallucinated() -> None:
    plain, made = corpus(500), hallucinated(corpus(500), LETTERS, 0.3, 1, 1)
    same = [plain.tokens[row] == made.tokens[row] for row in range(0, 1000, 2)]
    # of four letters one at least is another in 15 of 16 stems
    assert 1 - np.mean(same) == pytest.approx(0.3 * 15 / 16, abs=0.06)
    nothing = hallucinated(plain, LETTERS, 0.0, 1, 1)
    assert nothing.tokens.ids.tolist() == plain.tokens.ids.tolist()


def test_what_is_no_letter_stays() -> None:
    pairs = [([20, 21, BLANK, 22, 23, END], [BEGIN, 20, 21, BLANK, 22, 23, END])] * 20
    plain = Corpus((Column.of([s for s, _ in pairs]),), Column.of([t for _, t in pairs]))
    made = hallucinated(plain, LETTERS, 1.0, 1, 1)
    assert {made.tokens[row][3] for row in range(20)} == {BLANK}
    assert len({tuple(made.tokens[row]) for row in range(20)}) > 10


def test_training_reads_hallucinated_pairs(tmp_path: Path) -> None:
    """A stem is copied whatever its letters are: those of the test are in no training word."""
    (tmp_path / "words.tsv").write_text("".join(inflections()), encoding="utf-8")
    settings = {"task.hallucinate": 0.5, "train.steps": 2, "train.processes": 1}
    run = saccade.train(tmp_path / "words.tsv", out=tmp_path / "run", settings=settings, quiet=True)
    corpus = run.task.open_corpus(tmp_path / "run" / "data", "train")
    read = [row for batch in run.task.epoch(corpus, 1) for row in batch.target.values.tolist()]
    real = [corpus.tokens[row] for row in range(len(corpus))]
    made = sum([i for i in row if i] not in real for row in read)
    assert made / len(real) == pytest.approx(0.5, abs=0.2)


@pytest.mark.parametrize("task", [{}, {"joint": True}])
def test_both_sides_have_to_be_letters_of_one_vocabulary(task: dict[str, object]) -> None:
    raw = {
        "task": {"kind": "translate", "hallucinate": 0.5} | task,
        "encoder": RECURRENT,
        "decoder": TRANSFORMER,
    }
    with pytest.raises(ConfigError, match="hallucinate"):
        parse(raw, "test")
