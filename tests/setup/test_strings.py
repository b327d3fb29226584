"""What is chosen for pairs of short strings: edits where there are few, letters apart, copies."""

from pathlib import Path
from typing import Any

import pytest

import saccade
from saccade.config import Config, EditDecoder, RecurrentDecoder
from saccade.setup.choose import MANY_STRINGS, MAX_TO_EDIT, fill_config, gather
from saccade.setup.survey import Survey

STEMS = ["talk", "walk", "look", "jump", "play", "open", "turn", "call", "ask", "cook"]


def inflections() -> list[str]:
    rows = []
    for number in range(40):
        word = STEMS[number % 10] + "aeio"[number // 10]
        rows += [f"{word}\t{word}ed\tV;PST\n", f"{word}\t{word}ing\tV;V.PTCP;PRS\n"]
    return rows


def chosen(folder: Path, rows: list[str], **settings: Any) -> Config:
    path = folder / "words.tsv"
    path.write_text("".join(rows), encoding="utf-8")
    raw, where = gather(path, task="translate")
    return fill_config(raw | settings, where)[0]


def test_few_words_are_edited_and_letters_of_one_script_copied(tmp_path: Path) -> None:
    config = chosen(tmp_path, inflections())
    assert isinstance(config.decoder, EditDecoder)
    assert config.task.joint
    assert config.decoder.copies
    assert list(config.task.columns) == ["3"]


def test_a_key_of_another_decoder_chooses_that_decoder(tmp_path: Path) -> None:
    config = chosen(tmp_path, inflections(), decoder={"attention": "dot"})
    assert isinstance(config.decoder, RecurrentDecoder)
    assert config.decoder.attention == "dot"
    assert not config.task.joint


def test_two_vocabularies_leave_nothing_to_copy(tmp_path: Path) -> None:
    config = chosen(tmp_path, inflections(), task={"kind": "translate", "joint": False})
    assert isinstance(config.decoder, EditDecoder)
    assert not config.decoder.copies


def test_many_words_are_attended_to() -> None:
    from saccade.setup.choose import defaults

    seen = Survey(count=MAX_TO_EDIT, sampled=10, single_sources=10, source_lengths=[5])
    assert defaults("translate", seen)["decoder"]["kind"] == "recurrent"
    seen.count -= 1
    assert defaults("translate", seen)["decoder"]["kind"] == "edit"
    seen.count = MANY_STRINGS
    many = defaults("translate", seen)
    assert (many["encoder"]["dim"], many["decoder"]["dim"]) == (512, 512)
    assert many["train"]["epochs"] == 35
    assert defaults("translate", seen, minutes=3.0)["encoder"]["dim"] == 192  # learns faster


@pytest.mark.parametrize(
    ("letters", "apart"), [("가각나낙다닥", True), ("abcdef", False), ("é", False)]
)
def test_letters_stand_apart_where_fewer_are_left(
    letters: str, apart: bool, tmp_path: Path
) -> None:
    rows = [f"{letters[i % len(letters)]}{i % 7}\tp {i % 5} q\n" for i in range(60)]
    assert chosen(tmp_path, rows).task.source.decompose is apart


def test_lemmas_and_tags_are_learned_by_edits(tmp_path: Path) -> None:
    """Letters that were never seen in a stem's place are copied there."""
    rows = inflections()
    config = {"train.steps": 250, "train.processes": 1, "train.evaluate_every": 250}
    (tmp_path / "words.tsv").write_text("".join(rows), encoding="utf-8")
    run = saccade.train(tmp_path / "words.tsv", out=tmp_path / "run", settings=config, quiet=True)
    found = run.predict([("kalpo", "V;PST"), ("jurne", "V;V.PTCP;PRS")])
    assert [one.text for one in found] == ["kalpoed", "jurneing"]


def test_few_words_with_tags_are_hallucinated_and_other_strings_are_not(tmp_path: Path) -> None:
    assert chosen(tmp_path, inflections()).task.hallucinate == 0.5  # type: ignore[union-attr]
    own = chosen(tmp_path, inflections(), task={"kind": "translate", "hallucinate": 0.0})
    assert own.task.hallucinate == 0.0  # type: ignore[union-attr]
    spelling = [row.replace("\tV", "V").replace("ed", "edd") for row in inflections()]
    pairs = ["\t".join(row.rstrip().split("\t")[:2]) + "\n" for row in spelling]
    assert chosen(tmp_path, pairs).task.hallucinate == 0.0  # type: ignore[union-attr]
    many = [
        row.replace("\t", f"{i:b}\t".translate({48: "m", 49: "n"}), 1)
        for i in range(13)
        for row in inflections()
    ]
    assert chosen(tmp_path, many).task.hallucinate == 0.0  # type: ignore[union-attr]
