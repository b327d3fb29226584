"""Media on the command line: train with no configuration, predict, evaluate, and every mistake."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import soundfile
import torch
from PIL import Image

import saccade
from saccade.config import Data
from saccade.data.layout import detect_layout
from saccade.errors import DataError
from saccade.runs import files
from saccade.training.events import Finished
from saccade.training.session import resume
from saccade.verify import verify
from tests import media
from tests.cli.conftest import Outcome, refused, shell
from tests.helpers import GOLDEN

Call = Callable[..., Outcome]
PICTURE = {"task.columns.image.height": 16, "task.columns.image.width": 16}
PICTURE |= {"task.columns.image.cell": 8, "task.columns.image.channels": 8}
QUICK = {"train.steps": 4, "train.evaluate_every": 4, "train.processes": 1, "encoder.dim": 16}
FILES: dict[str, Any] = {
    "captions": (media.captions, PICTURE | {"decoder.dim": 16}),
    "vqa": (media.questions, PICTURE | {"encoder.num_heads": 2, "data.dev_share": 0.2}),
    "digits": (media.digits, {}),
    "speech": (
        media.speech,
        {"decoder.dim": 16, "task.columns.1.speed": 0.1, "train.ctc": 0.3},
    ),
    "series": (media.series, {}),
    "steps": (media.steps, {}),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A small run of each kind, in a folder with its media."""
    made = {}
    for name, (write, settings) in FILES.items():
        folder = tmp_path_factory.mktemp(name)
        run = folder / "run"
        saccade.train(write(folder), out=run, settings=QUICK | settings, quiet=True)
        made[name] = run
    return made


@pytest.mark.parametrize(
    ("name", "task", "said"),
    [
        ("captions", "translate", "pictures in 'image', 'captions' has 9 different texts"),
        ("vqa", "classify", "pictures in 'image' and text in 'question', 'answer' has 6 different"),
        ("digits", "classify", "sounds in 1, 2 has 10 different labels in 300 lines: classify"),
        ("speech", "translate", "sounds in 1, 2 has 300 different texts in 300 lines: translate"),
        ("series", "classify", "numbers in 'series', 'label' has 3 different labels"),
        ("steps", "tag", "numbers in 'series', a label for each step: tag"),
    ],
)
def test_files_of_media_are_understood(name: str, task: str, said: str, tmp_path: Path) -> None:
    with (
        mock.patch.object(soundfile, "write"),  # the names alone tell
        mock.patch.object(Image.Image, "save"),
    ):
        rows = {"digits": 300, "speech": 300}.get(name, 120)
        layout = detect_layout([FILES[name][0](tmp_path, rows)], Data())
    assert layout.task == task
    assert said in layout.reason


def test_a_header_names_the_target_and_other_columns_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "train.tsv"
    rows = [f"wav/{i}.wav\t{i % 10}\t{('ann', 'bob')[i % 2]}" for i in range(200)]
    path.write_text("\n".join(["path\tdigit\tspeaker", *rows]) + "\n")
    layout = detect_layout([path], Data())
    assert (layout.source, layout.target, layout.task) == (("path",), "digit", "classify")
    path.write_text("\n".join(rows) + "\n")
    assert detect_layout([path], Data()).target == 2
    chosen = detect_layout([path], Data(source=(1,), target=3), "classify")
    assert (chosen.source, chosen.target) == ((1,), 3)


def test_text_that_speaks_of_files_is_text(tmp_path: Path) -> None:
    path = tmp_path / "train.tsv"
    rows = [f"please open photo{i}.png for me\tI opened it {i}" for i in range(60)]
    path.write_text("\n".join(rows) + "\n")
    assert not detect_layout([path], Data()).media


def test_what_was_understood_is_said_in_one_line(tmp_path: Path, call: Call) -> None:
    settings = [f"--set={key}={value}" for key, value in (QUICK | PICTURE).items()]
    done = call("train", media.captions(tmp_path), "--out", tmp_path / "run", *settings)
    assert done.code == 0, done.err
    assert "captions.jsonl: pictures in 'image', 'captions' has" in done.err.splitlines()[0]
    assert "sequence_error\t" in done.out


# --- what a run can do ----------------------------------------------------------------------------


def test_predict_reads_a_photo_a_list_jsonl_and_standard_input(
    runs: dict[str, Path], call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = runs["captions"]
    folder = run.parent
    alone = call("predict", run, folder / "pictures" / "3.png")
    assert (alone.code, alone.err) == (0, "")
    assert len(alone.out.splitlines()) == 1
    (folder / "list.txt").write_text("pictures/3.png\n\npictures/4.png\n")
    listed = call("predict", run, folder / "list.txt").out.split("\n")
    assert listed[0] == alone.out.strip()
    assert listed[1] == ""
    lines = (folder / "captions.jsonl").read_text().splitlines()
    (folder / "some.jsonl").write_text("\n".join(lines[3:5]) + "\n")
    assert call("predict", run, folder / "some.jsonl").out.split("\n") == [
        listed[0],
        listed[2],
        "",
    ]
    monkeypatch.chdir(folder)
    assert shell("predict", "run", stdin="pictures/3.png\n").stdout == alone.out


def test_a_question_stands_beside_its_picture(runs: dict[str, Path], call: Call) -> None:
    folder = runs["vqa"].parent
    (folder / "asked.tsv").write_text("pictures/1.png\twhat shape is it?\n")
    done = call("predict", runs["vqa"], folder / "asked.tsv")
    assert done.code == 0, done.err
    assert done.out.strip() in {*media.COLOURS, *media.SHAPES}
    sources = [(str(folder / "pictures/1.png"), "what shape is it?")]
    assert saccade.load(runs["vqa"]).predict(sources)[0].text == done.out.strip()


def test_what_cannot_be_read_is_a_warning_and_an_empty_line(
    runs: dict[str, Path], call: Call, tmp_path: Path
) -> None:
    for name in ("captions", "digits"):
        folder, suffix = runs[name].parent, {"captions": "png", "digits": "wav"}[name]
        good = {"captions": "pictures/3.png", "digits": "sounds/3.wav"}[name]
        (folder / f"bad.{suffix}").write_bytes(b"nothing that can be read")
        (tmp_path / f"x.{suffix}").write_bytes(b"")
        bad = [f"bad.{suffix}", f"gone.{suffix}", str(tmp_path / f"x.{suffix}"), "../x"]
        (folder / "list.txt").write_text("\n".join([good, *bad, good]) + "\n")
        done = call("predict", runs[name], folder / "list.txt")
        assert done.code == 0, done.err
        lines = done.out.split("\n")
        assert lines[0] == lines[5] != ""
        assert lines[1:5] == [""] * 4
        assert "list.txt:2: " in done.err
        assert "list.txt:3: " in done.err
        assert "no such file; check the path; left empty" in done.err
        assert "list.txt:4: " in done.err
        assert done.err.count("is outside the folder") == 2
        assert "4 lines could not be answered" in done.err


def test_a_root_permits_what_a_list_may_not_name(
    runs: dict[str, Path], call: Call, tmp_path: Path
) -> None:
    run = runs["captions"]
    photo = run.parent / "pictures" / "3.png"
    (tmp_path / "list.txt").write_text(f"{photo}\n")
    assert "is outside the folder" in call("predict", run, tmp_path / "list.txt").err
    done = call("predict", run, tmp_path / "list.txt", "--set", f"data.root={run.parent}")
    assert done.out == call("predict", run, photo).out
    media.write_jsonl(tmp_path / "dev.jsonl", [{"image": str(photo), "captions": ["a red circle"]}])
    for command in ("evaluate", "score"):
        refused(call(command, run, tmp_path / "dev.jsonl"), "dev.jsonl:1: ")
        root = f"data.root={run.parent}"
        assert call(command, run, tmp_path / "dev.jsonl", "--set", root).code == 0


@pytest.mark.parametrize("name", FILES)
def test_a_run_of_media_is_enough_by_itself(
    name: str, runs: dict[str, Path], tmp_path: Path
) -> None:
    before = saccade.load(runs[name]).evaluate()
    shutil.copytree(runs[name], tmp_path / "run")  # and none of its media
    assert saccade.load(tmp_path / "run").evaluate() == before
    events = list(resume(tmp_path / "run", settings={"train.steps": 6}))
    assert isinstance(events[-1], Finished)
    assert events[-1].step == 6


@pytest.mark.parametrize("name", FILES)
def test_every_law_holds_on_a_run_of_media(name: str, runs: dict[str, Path]) -> None:
    laws = list(verify(runs[name]))
    assert [law.name for law in laws if law.passed is False] == []
    assert sum(law.passed is True for law in laws) >= 4


def test_evaluate_and_score_read_files(runs: dict[str, Path], call: Call) -> None:
    for name, file in (("captions", "captions.jsonl"), ("digits", "digits.tsv")):
        data = runs[name].parent / file
        assert call("evaluate", runs[name], data).code == 0
        scored = call("score", runs[name], data)
        assert len(scored.out.splitlines()) == len(data.read_text().splitlines())


def test_each_file_is_kept_once_however_many_examples_name_it(runs: dict[str, Path]) -> None:
    data = runs["captions"] / "data"
    rows = np.fromfile(data / "train.source.rows", np.int64)
    assert len(rows) == 2 * len(set(rows.tolist()))  # two captions for each picture
    size = (data / "train.source.values").stat().st_size
    assert size == len(set(rows.tolist())) * 16 * 16 * 3


@pytest.mark.parametrize("name", ["captions", "speech", "series"])
def test_rows_made_anew_are_the_rows_that_were_kept(
    name: str, runs: dict[str, Path], tmp_path: Path
) -> None:
    write, settings = FILES[name]
    more = QUICK | settings | {"data.cache_mb": 0, "train.workers": 2}
    saccade.train(write(tmp_path), out=tmp_path / "run", settings=more, quiet=True)
    kept = files.read_tensors(runs[name] / "model.safetensors")
    made = files.read_tensors(tmp_path / "run" / "model.safetensors")
    assert all(torch.equal(kept[key], made[key]) for key in kept)
    assert b"[" in (tmp_path / "run" / "data" / "train.source.values").read_bytes()[:1]


def test_a_search_listens_to_ctc_where_there_is_some(
    runs: dict[str, Path], tmp_path: Path, call: Call
) -> None:
    share = ["--set", "decode.ctc=0.2"]
    found = json.loads(call("evaluate", runs["speech"], *share, "--json").out)
    assert {"word_error", "char_error", "sequence_error"} < found.keys()
    some = runs["speech"].parent / "speech.tsv"
    done = call("exact", runs["speech"], some, *share, "--set", "decode.max_len=2", "--budget=50")
    assert done.code == 0, done.err
    photo = runs["captions"].parent / "pictures" / "0.png"
    done = call("predict", runs["captions"], photo, *share)
    refused(done, "decode.ctc: this run was trained without")
    for value in ("1.0", "-0.1", "much"):
        wrong = call("evaluate", runs["speech"], "--set", f"decode.ctc={value}")
        refused(wrong, "decode.ctc")
    made = call("train", media.captions(tmp_path), "--out", tmp_path / "run", *share)
    assert made.code == 2
    assert "requires train.ctc" in made.err


def test_a_label_can_be_a_source(tmp_path: Path, call: Call) -> None:
    path = tmp_path / "reviews.tsv"
    texts = {"good": "what a fine film", "bad": "what a waste"}
    rows = [f"{label}\tno {i}\t{texts[label]} {i}" for i, label in enumerate([*texts] * 20)]
    path.write_text("\n".join(rows) + "\n")
    settings = [
        "--set=task.columns.1.kind=label",
        "--set=data.source=[1, 2]",
        "--set=data.target=3",
    ]
    settings += [f"--set={key}={value}" for key, value in QUICK.items()]
    run = tmp_path / "run"
    done = call("train", path, "--task", "translate", "--out", run, *settings)
    assert done.code == 0, done.err
    (tmp_path / "in.tsv").write_text("good\tno 1\nwonderful\tno 2\n")
    said = call("predict", run, tmp_path / "in.tsv")
    assert said.code == 0
    assert "in.tsv:2: unknown label 'wonderful': the labels are" in said.err


def test_examples_from_memory_may_name_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    media.shapes(tmp_path, 40)
    monkeypatch.chdir(tmp_path)
    rows = [(f"pictures/{i}.png", f"caption number {i}") for i in range(40)]
    settings = QUICK | {"task.columns.1.height": 16, "task.columns.1.width": 16}
    run = saccade.train(rows, out=tmp_path / "run", settings=settings, quiet=True)
    assert run.task.config.task.columns["1"].kind == "picture"
    assert not run.predict("pictures/3.png").problem
    assert run.predict("pictures/999.png").problem


def test_each_step_of_a_series_has_a_label(
    runs: dict[str, Path], call: Call, tmp_path: Path
) -> None:
    run = saccade.load(runs["steps"])
    found = run.predict(["[[1, 0], [-1, 0], [2, 2]]", "[[1, 0, 5]]", "[[1, 1]]"])
    assert [len(one.text.split()) for one in found] == [3, 0, 1]
    assert "has vectors of 3 numbers" in found[1].problem
    path = media.steps(tmp_path)
    with path.open("a") as file:
        file.write(json.dumps({"series": [[1, 2], [3, 4]], "tags": ["high"]}) + "\n")
    done = call("train", path, "--out", tmp_path / "run")
    assert done.code == 2
    assert "steps.jsonl:61: 2 steps, but 1 label; write one label for every step" in done.err


# --- mistakes -------------------------------------------------------------------------------------


def test_train_names_the_line_of_a_path_that_leads_nowhere(tmp_path: Path, call: Call) -> None:
    path = media.captions(tmp_path)
    (tmp_path / "pictures" / "7.png").unlink()
    done = call("train", path, "--out", tmp_path / "run")
    refused(Outcome(done.code, done.out, done.err.split("\n", 1)[1]), "captions.jsonl:8: ")
    assert "pictures/7.png: no such file; check the path" in done.err
    assert not (tmp_path / "run").exists()


def test_train_names_a_picture_that_is_damaged(tmp_path: Path, call: Call) -> None:
    path = media.captions(tmp_path)
    picture = tmp_path / "pictures" / "7.png"
    picture.write_bytes(picture.read_bytes()[:60])
    done = call("train", path, "--out", tmp_path / "run")
    assert done.code == 2
    assert "captions.jsonl:8: " in done.err
    assert "7.png: damaged: " in done.err
    assert "Traceback" not in done.err


def test_train_refuses_paths_that_leave_the_folder(tmp_path: Path, call: Call) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    media.captions(tmp_path)
    rows = [{"image": f"../pictures/{i}.png", "caption": f"number {i}"} for i in range(40)]
    path = media.write_jsonl(folder / "captions.jsonl", rows)
    done = call("train", path, "--out", tmp_path / "run")
    assert done.code == 2
    assert "captions.jsonl:1: '../pictures/0.png' is outside the folder" in done.err
    settings = [f"--set={key}={value}" for key, value in (QUICK | PICTURE).items()]
    root = f"--set=data.root={tmp_path}"
    more = ["--set=data.cache_mb=0", "--set=train.workers=0"]
    done = call("train", path, "--out", tmp_path / "run", *settings, *more, root)
    assert done.code == 0, done.err
    # A run's own root permits nothing: it may be a stranger's.
    with pytest.raises(DataError, match="is outside the folder"):
        list(resume(tmp_path / "run", settings={"train.steps": 6}))
    again = call("resume", tmp_path / "run", "--set=train.steps=6", root)
    assert again.code == 0, again.err


def test_check_lists_what_is_wrong_with_pictures(tmp_path: Path, call: Call) -> None:
    path = media.captions(tmp_path)
    pictures = tmp_path / "pictures"
    (pictures / "0.png").unlink()
    (pictures / "1.png").write_bytes(b"nothing")
    shutil.copy(pictures / "2.png", pictures / "3.png")
    Image.new("RGB", (1, 1)).save(pictures / "4.png")
    Image.new("RGB", (1000, 20), "red").save(pictures / "5.png")
    Image.new("RGB", (32, 32), "white").save(pictures / "6.png")
    found = _findings(call("check", path, "--json"))
    assert [where for where, _ in found["media"]] == ["captions.jsonl:1", "captions.jsonl:2"]
    assert ("captions.jsonl:4", "the same content as pictures/2.png at ") in found["same-file"]
    assert {where for where, _ in found["odd-size"]} == {"captions.jsonl:5", "captions.jsonl:6"}
    assert [where for where, _ in found["blank-media"]] == ["captions.jsonl:6", "captions.jsonl:7"]


def test_check_lists_what_is_wrong_with_sounds(tmp_path: Path, call: Call) -> None:
    path = media.digits(tmp_path)
    sounds = tmp_path / "sounds"
    soundfile.write(sounds / "0.wav", np.zeros(0), 8000)
    soundfile.write(sounds / "1.wav", np.zeros(2000), 8000)
    loud = np.clip(3 * np.sin(np.arange(2000) / 9), -1, 1)
    soundfile.write(sounds / "2.wav", loud, 8000)
    media.tone(sounds / "3.wav", 400.0, 60.0)
    dev = tmp_path / "dev.tsv"
    dev.write_text("copy.wav\t3\n")
    shutil.copy(sounds / "4.wav", tmp_path / "copy.wav")
    found = _findings(call("check", path, "--dev", dev, "--json"))
    assert [where for where, _ in found["media"]] == ["digits.tsv:1"]
    assert [where for where, _ in found["silent"]] == ["digits.tsv:2"]
    assert [where for where, _ in found["clipped"]] == ["digits.tsv:3"]
    assert [where for where, _ in found["odd-size"]] == ["digits.tsv:4"]
    assert [where for where, _ in found["leak"]] == ["dev.tsv:1"]


def _findings(done: Outcome) -> dict[str, list[tuple[str, str]]]:
    """The places of each code: file and line, and how the message begins."""
    assert done.code == 1
    found: dict[str, list[tuple[str, str]]] = {}
    for line in done.out.splitlines():
        record = json.loads(line)
        for place in record["places"]:
            begin = place["message"].partition(str(Path(place["where"]).parent))[0]
            found.setdefault(record["code"], []).append((Path(place["where"]).name, begin))
    return found


def test_clean_media_have_no_defects(tmp_path: Path, call: Call) -> None:
    assert call("check", media.digits(tmp_path)).err.strip() == "no errors or warnings"


def test_a_run_of_text_imports_no_library_of_media() -> None:
    code = (
        "import sys, saccade\n"
        f"saccade.load({str(GOLDEN / 'attention')!r}).predict('abc')\n"
        "found = {name.partition('.')[0] for name in sys.modules}\n"
        "assert not found & {'PIL', 'soundfile', 'soxr', 'librosa'}, found"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
