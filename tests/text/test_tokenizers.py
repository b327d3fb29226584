"""Strings to ids and back."""

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from saccade.config import Tokenizer as Config
from saccade.errors import CheckpointError, ConfigError, DataError
from saccade.text import SPECIALS, Specials, Tokenizer

PAD, UNK, BOS, EOS, SEP = Specials().ids

KINDS = ("word", "char", "bpe", "bytes", "unigram")
LINES = [
    "the cat sat on the mat",
    "a cat, a hat and a bat: the mat!",
    "die Katze saß auf der Matte",
    "कहानी हिन्दी में है",
    "今日は猫がいる。",
    "tab\there, line\nthere, U+2028\u2028too  and 🐈‍⬛",
]
law = settings(derandomize=True, deadline=None, max_examples=150)


def trained(kind: str, lines: list[str] = LINES, **choices: object) -> Tokenizer:
    return Tokenizer.train(Config(kind=kind, **choices), lines)


TRAINED = {kind: trained(kind, size=400) for kind in KINDS}
known_text = st.text(st.sampled_from(sorted(set("".join(LINES)))))
known_words = st.lists(st.sampled_from(sorted({w for line in LINES for w in line.split()})))


def round_trip(tokenizer: Tokenizer, text: str) -> str:
    return tokenizer.decode(tokenizer.encode([text]))[0]


# --- there and back -------------------------------------------------------------------------------


@law
@given(st.text())
@example("\0 \r\n\t\u2028\u3000 \x85\xa0 👩‍👩‍👧 e\u0301 <eos></w>▁Ġ")
def test_bytes_give_every_text_back(text: str) -> None:
    bytes_ = TRAINED["bytes"]
    assert bytes_.lossless
    assert round_trip(bytes_, text) == text
    assert min(bytes_.encode([text])[0], default=9) > SEP


@law
@given(st.text())
@example(" \0\r\n\t\u2028\x85 ")
def test_characters_give_every_text_back(text: str) -> None:
    char = trained("char", [text, "x"], size=2000)
    assert char.lossless
    assert round_trip(char, text) == text
    assert [len(ids) for ids in char.encode([text])] == [len(text)]


@law
@given(known_text)
def test_pieces_give_all_back_but_runs_of_blanks(text: str) -> None:
    for kind in ("bpe", "unigram"):
        assert not TRAINED[kind].lossless
        assert round_trip(TRAINED[kind], text) == " ".join(text.split())


@law
@given(known_words)
def test_words_give_known_words_back(words: list[str]) -> None:
    assert round_trip(TRAINED["word"], "  ".join(words)) == " ".join(words)


@pytest.mark.parametrize("kind", KINDS)
def test_a_list_of_texts_is_encoded_as_each_alone(kind: str) -> None:
    tokenizer = TRAINED[kind]
    assert tokenizer.encode([*LINES, ""]) == [tokenizer.encode([line])[0] for line in [*LINES, ""]]
    assert tokenizer.encode([]) == tokenizer.decode([]) == []


@pytest.mark.parametrize("kind", KINDS)
def test_half_a_surrogate_pair_is_a_replacement_character(kind: str) -> None:
    tokenizer = trained(kind, ["a \ufffd b"], size=300)
    assert round_trip(tokenizer, "a \ud800 b") == "a \ufffd b"
    assert len(trained(kind, ["a \ud800 b"], size=300)) == len(tokenizer)


# --- specials and the unknown ---------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("split", [False, True])
def test_specials_cannot_be_injected(kind: str, split: bool) -> None:
    if split and kind in ("char", "bytes"):
        pytest.skip("there are no words to split")
    inside = tuple(f"{name[:-1]} >" for name in SPECIALS)  # their names within
    attacks = [*SPECIALS, *inside, "</w>", "a</w>b </w>", "▁<eos>", "Ġ<pad>", "<eos>" * 3]
    lines = [*attacks, "<eos>x<pad>"] * 20  # even where they are the most frequent of all
    tokenizer = trained(kind, lines, size=500, split_punctuation=split)
    for attack in [*attacks, *(f"x{a} {a}x{a}" for a in attacks)]:
        ids = tokenizer.encode([attack])[0]
        assert not {PAD, BOS, EOS, SEP} & set(ids), attack
        if kind != "word":
            assert UNK not in ids
            if not (split and kind in ("bpe", "unigram")):
                assert tokenizer.decode([ids]) == [attack]


@pytest.mark.parametrize("split", [False, True])
def test_the_unk_of_wikitext_is_unk(split: bool) -> None:
    word = trained("word", ["the <unk> of <unk> , the cat"], split_punctuation=split)
    the, of, comma, cat = (word.encode([w])[0] for w in ("the", "of", ",", "cat"))
    assert word.encode(["the <unk> of , cat"])[0] == [*the, UNK, *of, *comma, *cat]
    assert len(word) == len(SPECIALS) + 4


def test_every_special_written_out_is_an_unknown_word() -> None:
    word = trained("word", list(SPECIALS) * 3 + ["a"])
    assert word.encode(list(SPECIALS)) == [[UNK]] * 5


@pytest.mark.parametrize("kind", ["word", "char", "bpe", "unigram"])
def test_unseen_characters_are_unk(kind: str) -> None:
    tokenizer = TRAINED[kind]
    ids = tokenizer.encode(["Ж"])[0]
    assert UNK in ids
    assert tokenizer.decode([ids]) == ["<unk>"]
    assert "<unk>" in tokenizer.tokens(ids)


@pytest.mark.parametrize("kind", KINDS)
def test_decoding_leaves_out_all_specials_but_unk(kind: str) -> None:
    tokenizer = TRAINED[kind]
    ids = tokenizer.encode(["the cat"])[0]
    assert tokenizer.decode([[BOS, *ids, EOS, SEP, PAD, PAD]]) == ["the cat"]
    assert tokenizer.decode([[BOS, UNK, EOS]]) == ["<unk>"]
    assert tokenizer.tokens([PAD, UNK, BOS, EOS, SEP]) == list(SPECIALS)


# --- the vocabulary -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [6, 12, 40, 265, 500])
def test_no_vocabulary_is_larger_than_asked(kind: str, size: int) -> None:
    if kind == "bytes" and size < 261:
        with pytest.raises(ConfigError, match="at least 261"):
            trained(kind, size=size)
    else:
        tokenizer = trained(kind, size=size)
        assert len(SPECIALS) < len(tokenizer) <= size
        tokenizer.encode(LINES)


def test_a_vocabulary_of_specials_only_is_refused() -> None:
    with pytest.raises(ConfigError, match="char needs a size of at least 6"):
        trained("char", size=5)


def test_the_most_frequent_stay_and_equals_go_by_name() -> None:
    word = trained("word", ["b b b c c a a d"], size=7)
    assert word.tokens(range(5, len(word))) == ["b", "a"]
    char = trained("char", ["bbbccaad"], min_count=2)
    assert char.tokens(range(5, len(char))) == ["b", "a", "c"]


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_rare_characters_are_in_no_piece(kind: str) -> None:
    tokenizer = trained(kind, ["the cat sat on the mat"] * 9 + ["xylophone xylophone"], min_count=3)
    assert not any("x" in piece for piece in tokenizer.tokens(range(5, len(tokenizer))))
    assert UNK in tokenizer.encode(["xylophone"])[0]
    assert UNK not in tokenizer.encode(["the mat"])[0]


def test_lowercase_loses_the_case_and_says_so() -> None:
    for kind in KINDS:
        tokenizer = trained(kind, ["The CAT"], size=300, lowercase=True)
        assert round_trip(tokenizer, "THE cat") == "the cat"
        assert not tokenizer.lossless


@pytest.mark.parametrize("kind", ["word", "bpe", "unigram"])
def test_punctuation_is_cut_off_and_vowel_signs_are_not(kind: str) -> None:
    tokenizer = trained(kind, ["हिन्दी, “end.”"], split_punctuation=True)
    assert round_trip(tokenizer, "“हिन्दी.”") == "“ हिन्दी . ”"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", ["x", " x", "ab", "x" * 500, "a b c d e f g", "\0", "🐈", "a\0b"])
def test_a_tiny_corpus_is_enough(kind: str, text: str) -> None:
    for size in (262, 8000):
        tokenizer = trained(kind, [text], size=size)
        assert round_trip(tokenizer, text) == (text if tokenizer.lossless else text.strip(" "))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lines", [[], [""], ["", ""]])
def test_an_empty_corpus_is_an_error(kind: str, lines: list[str]) -> None:
    with pytest.raises(DataError, match="the training text is empty"):
        trained(kind, lines)


def test_what_reading_the_lines_raises_is_not_hidden() -> None:
    def lines() -> Iterator[str]:
        yield "a"
        raise DataError("train.txt:2: not UTF-8")

    for kind in KINDS:
        with pytest.raises(DataError, match=r"train\.txt:2"):
            Tokenizer.train(Config(kind=kind), lines())


@pytest.mark.parametrize("kind", KINDS)
def test_training_is_deterministic(kind: str, tmp_path: Path) -> None:
    lines = ["abab cdcd efef ghgh ijij", *LINES] * 5  # equals, which HF's hash tables would shuffle
    for turn in "123":
        trained(kind, lines, size=300).save(tmp_path / turn)
    assert len({(tmp_path / turn).read_bytes() for turn in "123"}) == 1


# --- words ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_the_words_of_a_sentence_are_encoded_as_the_sentence_is(kind: str) -> None:
    sentences = [line.split() for line in LINES]
    for words, (ids, owners) in zip(sentences, TRAINED[kind].encode_words(sentences), strict=True):
        assert ids == TRAINED[kind].encode([" ".join(words)])[0]
        assert len(ids) == len(owners)
        for index, word in enumerate(words):
            own = [i for i, owner in zip(ids, owners, strict=True) if owner == index]
            assert TRAINED[kind].decode([own])[0].strip() == word


@pytest.mark.parametrize("kind", KINDS)
@law
@given(st.lists(st.text(max_size=4), max_size=6))
@example(["", "a", "", " ", "Ж Ж", "\u2028"])
def test_every_word_has_an_id(kind: str, words: list[str]) -> None:
    [(ids, owners)] = TRAINED[kind].encode_words([words])
    assert len(ids) == len(owners)
    assert owners == sorted(owners)
    assert set(owners) == set(range(len(words)))


# --- what is shown --------------------------------------------------------------------------------


def test_shown_pieces_are_readable() -> None:
    lines = ["saß saß 🐈"] * 3
    bytes_, unigram = trained("bytes", lines, size=300), trained("unigram", lines)
    assert bytes_.tokens(bytes_.encode(["saß saß"])[0]) == ["saß", " saß"]
    assert "".join(unigram.tokens(unigram.encode(["saß saß"])[0])) == "▁saß▁saß"
    lone = trained("bytes", ["x"], size=261)
    assert lone.tokens(lone.encode(["é"])[0]) == ["\\xc3", "\\xa9"]
    assert lone.decode([lone.encode(["é"])[0][:1]]) == ["\ufffd"]


# --- files and processes --------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_tokenizer_is_the_same(kind: str, tmp_path: Path) -> None:
    first = TRAINED[kind]
    first.save(tmp_path / "a.json")
    again = Tokenizer.load(tmp_path / "a.json")
    texts = [*LINES, "Ж", "unseen <eos>"]
    assert again.config == first.config
    assert len(again) == len(first)
    assert (
        again.encode(texts)
        == first.encode(texts)
        == pickle.loads(pickle.dumps(first)).encode(texts)
    )
    assert again.tokens(range(len(again))) == first.tokens(range(len(first)))
    again.save(tmp_path / "b.json")
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()


def test_a_damaged_file_is_a_checkpoint_error(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    TRAINED["bpe"].save(path)
    whole = path.read_text(encoding="utf-8")
    gap, missing = json.loads(whole), json.loads(whole)
    gap["tokenizer"]["model"]["vocab"]["extra"] = 900
    del missing["tokenizer"]["model"]["vocab"]["<pad >"]
    for damage in (
        "",
        "{}",
        "[]",
        "\udcff",
        whole[:-9],
        whole.replace("bpe", "bqe"),
        json.dumps(gap),
        json.dumps(missing),
    ):
        path.write_bytes(damage.encode("utf-8", "surrogateescape"))
        with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
            Tokenizer.load(path)
    with pytest.raises(CheckpointError, match=r"none\.json"):
        Tokenizer.load(tmp_path / "none.json")


DOUBLED = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
STRANGE_PARTS: list[tuple[str, str, object]] = [  # the kind, the part, and what a stranger wrote
    *(("bpe", part, {"type": "Sequence"}) for part in ("pre_tokenizer", "decoder")),
    ("bpe", "normalizer", {"type": "Sequence", "normalizers": [DOUBLED] * 34}),
    ("bpe", "post_processor", {"type": "TemplateProcessing", "ids": [999999]}),
    ("bpe", "padding", {"strategy": {"Fixed": 3_000_000_000}, "pad_id": 0}),
    ("bpe", "truncation", {"max_length": 1}),
    ("bpe", "added_tokens", [{"id": 7, "content": "x"}]),
    ("bpe", "model.dropout", 0.5),
    ("bpe", "model.type", "WordPiece"),
    ("bpe", "model.byte_fallback", True),
    ("bpe", "model.unk_token", "x"),
    ("bpe", "model.merges", [["q", "q"]]),
    ("word", "model.vocab", {"a": 2**70}),
    ("word", "model.vocab", {"a": True}),
    ("word", "model.unk_token", "x"),
    ("unigram", "model.unk_id", 999999),
    ("unigram", "model.vocab", [["a", float("nan")]]),
    ("unigram", "model.vocab", [["a", 1e308]]),
]


@pytest.mark.parametrize(("kind", "part", "value"), STRANGE_PARTS)
def test_a_part_that_is_not_ours_is_named_and_refused(
    kind: str, part: str, value: object, tmp_path: Path
) -> None:
    path = tmp_path / "tokenizer.json"
    TRAINED[kind].save(path)
    content = json.loads(path.read_text(encoding="utf-8"))
    *tables, last = part.split(".")
    (content["tokenizer"][tables[0]] if tables else content["tokenizer"])[last] = value
    path.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(CheckpointError, match=rf"tokenizer\.{'.'.join([*tables, last])}\b"):
        Tokenizer.load(path)


@pytest.mark.parametrize(
    ("kind", "piece"), [("word", "x" * 513), ("unigram", "x" * 513), ("bytes", "日")]
)
def test_a_piece_that_cannot_be_is_refused(kind: str, piece: str, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    TRAINED[kind].save(path)
    content = json.loads(path.read_text(encoding="utf-8"))
    vocab = content["tokenizer"]["model"]["vocab"]
    if kind == "unigram":
        vocab.append([piece, -1.0])
    else:
        vocab[piece] = len(vocab)
    path.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(CheckpointError, match="a piece "):
        Tokenizer.load(path)


def test_what_is_too_large_to_be_loaded_is_not_learned(tmp_path: Path) -> None:
    tokenizer = trained("word", [f"{'y' * 513} ab"])
    assert tokenizer.encode(["ab " + "y" * 513])[0][1] == tokenizer.specials.unk
    long = trained("bpe", ["z" * 5000] * 3)
    assert max(map(len, long.tokens(range(len(long))))) <= 512
    for one in (tokenizer, long):
        one.save(tmp_path / "a.json")
        assert len(Tokenizer.load(tmp_path / "a.json")) == len(one)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_worker_encodes_without_a_warning() -> None:
    program = """
import os
from saccade.config import Tokenizer as Config
from saccade.text import Tokenizer
bpe = Tokenizer.train(Config(), ["a b c"] * 100)
ids = bpe.encode(["a b c"] * 100)
child = os.fork()
if child == 0:
    os._exit(0 if bpe.encode(["a b c"] * 100) == ids else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    free = {key: value for key, value in os.environ.items() if key != "TOKENIZERS_PARALLELISM"}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=free, timeout=60
    )
    assert (done.stdout, done.stderr) == ("0\n", "")


def test_decomposed_characters_are_fewer_and_composed_again() -> None:
    texts = ["é à ê", "한국", "éa"]
    plain = trained("char", texts)
    apart = trained("char", texts, decompose=True)
    assert len(apart.encode(["한"])[0]) == 3  # its three letters
    assert apart.decode(apart.encode(texts)) == texts
    assert apart.decode(apart.encode(["àé"])) == ["àé"]
    assert not apart.lossless
    assert plain.lossless
    assert apart.specials.unk not in apart.encode(["è"])[0]  # e and the accent of à
    assert plain.specials.unk in plain.encode(["è"])[0]


def test_only_characters_are_decomposed() -> None:
    with pytest.raises(ValueError, match="decompose is about single characters"):
        Config(kind="bpe", decompose=True)
