"""Words by what they are and how they are written: the stem of a tagger."""

from pathlib import Path

import pytest
import torch

import saccade
from saccade.config import Tokenizer as Settings
from saccade.config import parse
from saccade.data.batches import padded
from saccade.data.fields import Words
from saccade.errors import ConfigError
from saccade.inspect.view import view
from saccade.models.build import build
from saccade.models.networks import Tagger
from saccade.nn.dropout import RowSlice, slice_of
from saccade.nn.padded import Padded
from saccade.text.tokenizers import Tokenizer
from tests.architectures import ENCODERS

SENTENCES = [("the", "cat", "sat"), ("a", "cat"), ("unbelievably", "the", "hat", "sat", "a")]


def tokenizer() -> Tokenizer:
    settings = Settings(kind="word", spelled=True, min_count=2)
    return Tokenizer.train(settings, [" ".join(words) for words in SENTENCES])


def read(*sentences: tuple[str, ...]) -> Padded:
    column = Words(tokenizer()).encode(sentences)
    return padded(column, torch.arange(len(sentences)).numpy())


def tagger(encoder: str = "lstm") -> Tagger:
    raw = {
        "task": {"kind": "tag", "tokenizer": {"kind": "word", "spelled": True}},
        "encoder": ENCODERS[encoder],
        "head": {"kind": "per_word", "dropout": 0.0},
        "data": {"max_len": 40},
    }
    ids = tokenizer().inventory
    net = build(parse(raw, "test"), [ids], ids._replace(size=5), seed=3).eval()
    assert isinstance(net, Tagger)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return net


def test_a_word_is_its_id_and_then_its_characters() -> None:
    own = tokenizer()
    ((ids, words),) = own.encode_words([("cat", "hat")])
    assert own.tokens(ids) == ["cat", " c", " a", " t", "<unk>", " h", " a", " t"]  # "hat" is rare
    assert words == [0, 0, 0, 0, 1, 1, 1, 1]
    assert own.encode_words([("a",)])[0][0][0] != own.encode_words([("a",)])[0][0][1]


@pytest.mark.parametrize("encoder", ["lstm", "transformer", "convolution"])
def test_there_are_labels_for_each_word_and_a_batch_is_its_rows(encoder: str) -> None:
    net = tagger(encoder)
    with torch.inference_mode():
        whole = net.logits((read(*SENTENCES),))
        assert whole.shape == (3, 5, 5)
        for logits, words in zip(whole, SENTENCES, strict=True):
            alone = net.logits((read(words),))[0]
            assert torch.allclose(logits[: len(words)], alone, atol=1e-5)


def test_a_word_is_known_by_its_characters_and_by_no_others() -> None:
    """Words that are not in the vocabulary differ by how they are written, wherever they stand."""
    stem = tagger().encoder.stem  # type: ignore[union-attr]
    with torch.inference_mode():
        one = stem(read(("hat", "mat", "cat"))).values[0]  # type: ignore[operator]
        other = stem(read(("cat", "sat", "mat", "hat"))).values[0]  # type: ignore[operator]
    assert torch.allclose(one[0], other[3], atol=1e-5)
    assert torch.allclose(one[2], other[0], atol=1e-5)
    assert not torch.allclose(one[0], one[1], atol=1e-2)


def test_a_known_word_is_more_than_its_characters() -> None:
    net, source = tagger(), read(("cat",))
    unknown = source.values.clone()
    unknown[0, 0] = 1  # <unk>
    stem = net.encoder.stem  # type: ignore[union-attr]
    with torch.inference_mode():
        known = stem(source).values  # type: ignore[operator]
        only = stem(Padded(unknown, source.lengths, source.words)).values  # type: ignore[operator]
    assert not torch.allclose(known, only, atol=1e-2)


def test_part_of_a_batch_is_as_wide_as_the_whole() -> None:
    net, whole = tagger(), read(*SENTENCES)
    part = whole.rows(torch.tensor([0, 1]))
    with torch.inference_mode(), slice_of(RowSlice(0, 2, 3, words=5)):
        logits = net.logits((part,))
        words = net.encoder.stem(part).values  # type: ignore[union-attr, operator]
    assert words.shape[1] == 5  # dropout draws as many numbers for a row as in the whole
    assert logits.shape[1] == 5
    with torch.inference_mode():
        assert torch.allclose(logits[:, :3], net.logits((whole,))[:2, :3], atol=1e-5)


def test_a_tagger_spells_its_words_by_default(tmp_path: Path) -> None:
    """Endings decide the labels here; words of the test were never read."""
    endings = {"ing": "G", "ed": "D", "s": "S"}
    stems = [a + b + c for a in "ptk" for b in "aeiou" for c in "lmnr"]
    rows = []
    for number, stem in enumerate(stems):
        forms = [stem[: 3 + number % 2] + end for end in endings]
        turn = number % 3
        pairs = list(zip(forms, endings.values(), strict=True))
        rows += [f"{form}\t{tag}\n" for form, tag in pairs[turn:] + pairs[:turn]] + ["\n"]
    (tmp_path / "tags.conll").write_text("".join(rows), encoding="utf-8")
    settings = {"train.steps": 60, "train.processes": 1, "encoder.dim": 32}
    folder = tmp_path / "run"
    run = saccade.train(tmp_path / "tags.conll", out=folder, settings=settings, quiet=True)
    assert run.config.task.reader.spelled
    assert run.predict("wubing xoked yazs").text == "G D S"
    again = saccade.load(folder)
    assert again.predict("wubing xoked yazs").text == "G D S"
    seen = view(run, "wubing xoked", "saliency")
    assert isinstance(seen, dict)
    assert seen["tokens"] == ["wubing", "xoked"]


def test_what_cannot_be_spelled_is_refused() -> None:
    head = {"head": {"kind": "per_word"}, "encoder": ENCODERS["lstm"]}
    spelled = {"kind": "word", "spelled": True}
    with pytest.raises(ConfigError, match="cuts them already"):
        parse({"task": {"kind": "tag", "tokenizer": {"spelled": True}}} | head, "test")
    characters = {"task": {"kind": "tag", "tokenizer": spelled}, "data": {"units": "characters"}}
    with pytest.raises(ConfigError, match="one character"):
        parse(characters | head, "test")
    pooled = {"head": {"kind": "pooled"}, "encoder": ENCODERS["lstm"]}
    with pytest.raises(ConfigError, match="task 'tag' alone"):
        parse({"task": {"kind": "classify", "tokenizer": spelled}} | pooled, "test")


def test_of_words_that_are_spelled_only_characters_are_unknown() -> None:
    """A word that the vocabulary lacks is read by its characters all the same."""
    assert tokenizer().unknown("the zebra sat") == ["z", "r"]
    assert tokenizer().unknown("that beast") == []
