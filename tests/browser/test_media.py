"""The studio page on what is not plain text: pictures, sound, series, blanks and word vectors."""

import random
import re

import pytest

import saccade
from saccade.runs.run import Run, load
from saccade.serve.http import create_app
from saccade.setup.choose import fill_config, gather
from saccade.setup.prepare import prepare
from tests import media
from tests.architectures import DECODERS
from tests.browser.conftest import serving
from tests.helpers import GOLDEN
from tests.series import QUICK, table

PICTURE = {"kind": "picture", "height": 32, "width": 32, "cell": 8, "channels": 8}
SOUND = {"kind": "sound", "rate": media.RATE, "bands": 10, "stride": 2}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("media")


@pytest.fixture(scope="module")
def served(folder):
    runs = {
        "photos": untrained(media.captions(folder, 12), "image", PICTURE, {"kind": "none"}),
        "speech": untrained(media.speech(folder, 12), "1", SOUND, {"kind": "recurrent"}),
        "series": saccade.train(
            table(folder), task="forecast", out=folder / "series", settings=QUICK, quiet=True
        ),
        "blanks": load(GOLDEN / "masked", "cpu"),
        "words": vectors(folder),
    }
    with serving(create_app(runs)) as address:
        yield address


def untrained(data, column, reader, encoder):
    """A run with random weights that says something of each picture, or of each sound."""
    raw, where = gather(data, task="translate")
    raw["task"] |= {"columns": {column: reader}, "target": {"kind": "word"}}
    raw["encoder"] = encoder | {"dim": 16}
    raw["decoder"] = DECODERS["lstm_additive_cell"]
    raw["decode"] = {"min_len": 3, "max_len": 5}
    config, _ = fill_config(raw, where)
    folder = data.parent / f"of-{column}"
    folder.mkdir()
    task = prepare(config, folder).task
    return Run(folder, config, task, task.build().eval())


def vectors(folder):
    draws = random.Random(1)
    words = ["king", "queen", "man", "woman", "horse"]
    lines = [" ".join(draws.choices(words, k=8)) for _ in range(60)]
    path = folder / "words.txt"
    path.write_text("\n".join(lines), encoding="utf-8")
    settings = {"task.objective.kind": "skipgram", "train.steps": 3, "train.processes": 1}
    settings |= {"encoder.dim": 8}
    return saccade.train(path, task="pretrain", out=folder / "w2v", settings=settings, quiet=True)


def test_a_picture_is_dropped_in_and_each_word_lights_where_it_looked(page, folder):
    one = page("run=photos")
    one.set_input_files("input[type=file]", folder / "pictures" / "0.png")
    one.wait_for_selector(".view-caption_path .frames canvas")
    words = one.eval_on_selector_all(".view .token", "all => all.map(w => w.textContent)")
    assert len(words) >= 3
    assert one.locator(".frames figcaption").all_inner_texts() == words
    before = one.evaluate("document.querySelector('.gaze').toDataURL()")
    one.hover(".view .token >> nth=2")
    assert one.evaluate("document.querySelector('.gaze').toDataURL()") != before
    one.click(".view .token >> nth=1")
    one.wait_for_function("() => location.hash.includes('o.word=1')")
    again = page(one.url.partition("#")[2])  # the picture is in the link
    again.wait_for_selector(".view .token[aria-pressed=true]")
    assert again.inner_text(".view .token[aria-pressed=true]") == words[1]


def test_speech_is_aligned_under_its_waveform(page, folder):
    one = page("run=speech")
    one.set_input_files("input[type=file]", folder / "sounds" / "0.wav")
    one.wait_for_selector(".view-speech .wave .sound")
    tokens = one.eval_on_selector_all(".answer .token", "all => all.map(t => t.textContent)")
    shown = one.eval_on_selector_all(".marks .rowname", "all => all.map(t => t.textContent)")
    assert shown[:-1] == tokens[:-1]
    assert re.search(r"0\.\d s", one.inner_text(".view-speech"))


def test_a_table_goes_on_with_its_intervals(page, folder):
    one = page("run=series")
    one.fill(
        "textarea",
        "day,a,b,holiday,cause\n" + "\n".join(f"2020-{i},{i % 12},{i % 7},0,1" for i in range(30)),
    )
    one.wait_for_selector(".view-forecast .band")
    assert one.locator(".view-forecast .chart").count() == 4
    assert "4 ahead" in one.inner_text(".view-forecast .facts >> nth=0")


def test_blanks_are_filled_in(page):
    one = page("run=blanks&in=a+%3Cmask%3E+b&nbest=3&view=tokens")
    one.wait_for_selector(".filled")
    assert one.inner_text(".tokens").split() == ["a", "b", "b"]
    assert one.inner_text(".filled >> nth=0") == "b"
    one.wait_for_selector(".view-tokens .column")
    one.fill("textarea", "a b")
    one.wait_for_selector(".answer code")


def test_words_have_neighbours_and_answer_analogies(page):
    one = page("run=words")
    one.fill("input[data-name=word]", "king")
    one.wait_for_selector("[aria-label=neighbours] .row")
    near = one.locator("[aria-label=neighbours] .name").all_inner_texts()
    assert sorted(near) == ["horse", "man", "queen", "woman"]
    for name, word in (("a", "man"), ("b", "king"), ("c", "woman")):
        one.fill(f"input[data-name={name}]", word)
    one.wait_for_selector("[aria-label=analogy] .row")
    assert "o.a=man&o.b=king&o.c=woman" in one.url.replace("o.word=king&", "")
    one.fill("input[data-name=word]", "unicorn")
    one.wait_for_selector(".view .problem")
    assert "unicorn" in one.inner_text(".view .problem")
