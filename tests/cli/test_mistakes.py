"""What mistakes get: a clear line, its place, exit 2, and nothing lost."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import saccade
from saccade.errors import DataError
from tests.cli.conftest import refused
from tests.faults.corpora import lines, write
from tests.helpers import GOLDEN, corpus

TWO = "a\tb\n" * 3
BROKEN: dict[str, tuple[bytes, str]] = {
    "too many columns": (TWO.encode() + b"a\tb\tc\n", "train.tsv:4"),
    "too few columns": (TWO.encode() + b"a\n" + TWO.encode(), "train.tsv:4"),
    "not utf-8": (TWO.encode() + b"a\xff\tb\n", "train.tsv:4"),
    "a NUL byte": (TWO.encode() + b"a\0\tb\n", "train.tsv:4"),
    "a blank target": (TWO.encode() + b"a\t  \n", "train.tsv:4"),
    "empty": (b"", "train.tsv"),
    "blank": (b"\n \n\n", "no examples: all its lines are blank"),
    "old Mac": (TWO.replace("\n", "\r").encode(), "lines end in \\r"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_named_with_its_line(name: str, tmp_path: Path, call) -> None:
    data, where = BROKEN[name]
    path = tmp_path / "train.tsv"
    path.write_bytes(data)
    done = call("train", path, "--task", "translate", "--out", tmp_path / "run")
    assert done.code == 2
    assert where in done.err
    assert "Traceback" not in done.err
    assert len(done.err.splitlines()) <= 12
    assert not (tmp_path / "run" / "config.toml").exists()
    checked = call("check", path, "--task", "translate")
    assert checked.code == 1
    assert where in checked.out + checked.err


def test_a_tsv_without_tabs_is_no_language_model_unless_that_is_said(tmp_path: Path, call) -> None:
    path = tmp_path / "train.tsv"
    path.write_text("".join(f"word{i} form{i}\n" for i in range(50)))
    for verb in ("train", "check"):
        done = call(verb, path, *([] if verb == "check" else ["--out", tmp_path / "run"]))
        assert done.code == (2 if verb == "train" else 1)
        assert "none of the first lines of this .tsv has a tab" in done.out + done.err
        assert "--task language" in done.out + done.err
    assert not (tmp_path / "run").exists()
    assert "one-column" not in call("check", path, "--task", "language").out
    named = path.rename(tmp_path / "train.txt")
    assert "one-column" not in call("check", named).out


def test_misaligned_files_are_refused(tmp_path: Path, call) -> None:
    (tmp_path / "a.de").write_text("eins\nzwei\ndrei\n")
    (tmp_path / "a.en").write_text("one\ntwo\n")
    files = tmp_path / "a.de", tmp_path / "a.en"
    done = call("train", *files, "--out", tmp_path / "run")
    assert done.code == 2
    assert "a.de:3" in done.err
    assert call("check", *files).code == 1


def test_a_missing_file_is_named(tmp_path: Path, call) -> None:
    done = call("train", tmp_path / "nowhere.tsv")
    assert done.code == 2
    assert "nowhere.tsv" in done.err
    assert len(done.err.splitlines()) <= 3


def test_a_label_that_training_never_saw_is_refused(tmp_path: Path, call) -> None:
    train, dev = tmp_path / "train.tsv", tmp_path / "dev.tsv"
    train.write_text("".join(f"text {i}\t{'good' if i % 2 else 'bad'}\n" for i in range(40)))
    dev.write_text("one\tgood\ntwo\tugly\n")
    done = call("train", train, "--dev", dev, "--out", tmp_path / "run", "--task", "classify")
    assert done.code == 2
    assert "dev.tsv:2" in done.err
    assert "ugly" in done.err
    checked = call("check", train, "--dev", dev, "--task", "classify")
    assert checked.code == 1
    assert "dev.tsv:2" in checked.out


def test_a_clean_file_has_no_defects(tmp_path: Path, call) -> None:
    done = call("check", *write(lines(), tmp_path)[0])
    assert done.code == 0
    assert "no errors or warnings" in done.err
    assert "tokenizer" in done.out  # information is no defect
    assert "warning" not in done.out


def test_what_is_found_is_a_table_or_json(tmp_path: Path, call) -> None:
    files = lines()
    files["train.en"][9] += "\u200b"
    files["train.de"].append("")
    train, dev = write(files, tmp_path)
    words = [*train, "--dev", dev[0], "--dev", dev[1]]
    done = call("check", *words)
    assert done.code == 1
    assert done.err == "1 error, 1 warning\n"
    head, *rows = done.out.splitlines()
    assert head.split()[:4] == ["level", "code", "count", "where"]
    assert rows[0].split()[:4] == ["error", "misaligned", "1", f"{train[0]}:301"]
    assert "-> make both from one file again" in rows[1]
    assert rows[2].split()[:4] == ["warning", "invisible", "1", f"{train[1]}:10"]
    assert "ZERO WIDTH SPACE" in rows[2]
    assert "\\u200b" in rows[2]
    done = call("check", *words, "--json")
    assert done.code == 1
    found = {one["code"]: one for one in map(json.loads, done.out.splitlines())}
    assert found["invisible"]["where"] == f"{train[1]}:10"
    assert found["invisible"]["level"] == "warning"
    assert found["invisible"]["places"][0].keys() == {"where", "message", "text"}
    assert found["misaligned"]["level"] == "error"
    assert all({"count", "message", "advice"} <= one.keys() for one in found.values())


def test_check_imports_no_torch(tmp_path: Path) -> None:
    code = (
        "import sys; sys.argv = ['saccade', 'check', *sys.argv[1:]]\n"
        "from saccade import cli\n"
        "try: cli.main()\n"
        "except SystemExit as left: assert left.code == 0\n"
        "assert 'torch' not in sys.modules, 'torch was imported'"
    )
    command = [sys.executable, "-c", code, *write(lines(), tmp_path)[0]]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("verb", ["train", "check"])
def test_a_second_dev_file_without_its_option_is_understood(verb: str, tmp_path, call) -> None:
    train, dev = write(lines(), tmp_path)
    done = call(verb, *train, "--dev", *dev)
    assert done.code == 2
    assert "3 training files, but 1 dev file" in done.err
    assert f"--dev {dev[0]} --dev {dev[1]}" in done.err
    first = call(verb, "--dev", dev[0], dev[1], *train)
    assert f"--dev {dev[0]} --dev {dev[1]}" in first.err
    two = call(verb, *train, "--dev", dev[0])
    assert two.code == 2
    assert "--dev before each dev file" in two.err


def test_mistakes_in_settings_are_told_together(tmp_path: Path, call) -> None:
    path = corpus(tmp_path, "translate")
    done = call(
        "train", path, "--set", "encoder.kind=transformer", "--set", "encoder.dims=9",
        "--set", "train.stepz=1", "--set", "encoder.dim=63", "--set", "train.rate=fast",
    )  # fmt: skip
    assert done.code == 2
    assert "'encoder.dims' (did you mean 'encoder.dim'?)" in done.err
    assert "'train.stepz' (did you mean 'train.steps'?)" in done.err
    assert "divisible by num_heads" in done.err
    assert "train.rate" in done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize(
    "settings",
    [
        ["decoder.attention=additive"],
        ["decoder.attention=off"],
        ["task.target.kind=char"],
        ["encoder.kind=transformer", "encoder.num_heads=8"],
        ["encoder.dim=32"],
        ["size=tiny"],
        ["task.source.size=300"],
    ],
)
@pytest.mark.parametrize("words", [True, False], ids=["words", "sentences"])
def test_one_setting_alone_is_enough(
    settings: list[str], words: bool, tmp_path: Path, call
) -> None:
    """What else must change with it is chosen to fit."""
    path = tmp_path / "data.tsv"
    noun = ["dog", "cat", "bird", "fish", "cow"]
    rows = [f"{a}{b}\t{b}{a}" if words else f"the {a} and {b} x{i}\tder {a} und {b} x{i}"
            for i, (a, b) in enumerate((a, b) for a in noun for b in noun)]  # fmt: skip
    path.write_text("\n".join(rows) + "\n")
    chosen = [word for setting in settings for word in ("--set", setting)]
    if not words and settings == ["decoder.attention=additive"]:
        chosen += ["--set", "decoder.kind=recurrent"]
    if not words and settings == ["decoder.attention=off"]:
        chosen += ["--set", "decoder.kind=recurrent"]
    done = call("train", path, "--out", tmp_path / "run", "--set", "train.steps=1", *chosen)
    assert done.code == 0, done.err


def test_a_configuration_file_is_read_and_its_mistakes_are_placed(tmp_path: Path, call) -> None:
    path = corpus(tmp_path, "translate")
    good = tmp_path / "good.toml"
    good.write_text(
        f'[data]\ntrain = ["{path}"]\n[train]\nsteps = 3\n[encoder]\nkind = "recurrent"\ndim = 16\n'
    )
    assert call("train", good, "--out", tmp_path / "run").code == 0
    bad = tmp_path / "bad.toml"
    bad.write_text(good.read_text() + "layers = 3\n")
    done = call("train", bad, "--out", tmp_path / "other")
    assert done.code == 2
    assert "bad.toml: unknown key 'encoder.layers' (did you mean 'encoder.num_layers'?)" in done.err
    bad.write_text("this is not toml")
    assert "not TOML" in call("train", bad).err


def test_a_run_is_not_overwritten(run: Path, call) -> None:
    done = call("train", corpus(run.parent, "translate"), "--out", run)
    assert done.code == 2
    assert "holds a run already" in done.err


@pytest.mark.parametrize(
    ("wish", "message"),
    [
        ("--width 0", "decode.width"),
        ("--width 2 --nbest 5", "finds at most 2; ask for fewer, or set the width to 5"),
        ("--nbest 0", "at least 1"),
        ("--widht 3", "--width"),
        ("--width wide", "--width"),
        ("--set decode.alpha=nan", "decode.alpha"),
        ("--set decode.temprature=2", "did you mean 'decode.temperature'"),
        ("--set decode.groups=3", "divisible by groups"),
        (
            "--set decode.temperature=0.7",
            "decode.temperature is a setting of sampling; set decode.kind to 'sample'",
        ),
        ("--sample --width 3", "decode.width is a setting of beam search; leave out --sample"),
        ("--set decode.kind=exact", "choose one of beam, sample"),
        ("--set train.steps=3", "only the keys of decode"),
        ("--engine onnx", "choose one of auto, torch, ctranslate2"),
        ("--engine ctranslate2", "recurrent"),
        ("--prefix 日本", "outside the vocabulary"),
        ("--prefixes one.txt", "fewer prefixes"),
        ("--prefixes nowhere.txt", "nowhere.txt"),
        ("--details", "--json"),
        ("--stream --nbest 2", "leave out"),
        ("--with nowhere", "not a run"),
        ("--set decode.model=nowhere", "not a run"),
        ("--set decode.model={run}", "'language' is needed"),
        ("--set decode.only=nowhere.txt", "nowhere.txt"),
        ("--set decode.only=other.txt", "other.txt"),
        ('--set decode.banned=["日"]', "decode.banned"),
    ],
)
def test_predictions_that_cannot_be_are_refused(
    wish: str, message: str, run: Path, words: Path, call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(words.parent)
    Path("one.txt").write_text("a\n")
    Path("other.txt").write_text("日本\n")
    refused(call("predict", run, words, *wish.format(run=run).split()), message)


def test_exact_searches_and_exports_that_cannot_be_are_refused(
    run: Path, fast: Path, tmp_path: Path, call
) -> None:
    data = corpus(tmp_path, "translate")
    refused(call("exact", run, data, "--budget", 0), "budget")
    refused(call("exact", run, data, "--order", "worst"), "choose one of depth, best")
    limited = call("exact", run, data, "--limit", -1)
    assert (limited.code, "--limit" in limited.err, "Traceback" in limited.err) == (2, True, False)
    refused(call("score", run, data, "--set", "decode.nosuch=1"), "decode.nosuch: to score is not")
    refused(call("exact", run, tmp_path / "nowhere.tsv"), "nowhere.tsv")
    refused(call("export", fast, "--to", "nonsense"), "there are ctranslate2, huggingface")
    refused(call("export", fast), "--to")
    refused(call("export", run, "--to", "ctranslate2"), "recurrent")


@pytest.mark.parametrize("size", ["inf", "nan", "-inf", "0"])
def test_a_server_needs_a_largest_request(size: str, run: Path, call) -> None:
    refused(call("serve", run, "--body-mb", size), f"--body-mb {size}: ")


@pytest.mark.parametrize("key", ["", " \n"])
def test_an_empty_key_is_not_the_same_as_none(
    key: str, run: Path, tmp_path: Path, call, monkeypatch: pytest.MonkeyPatch
) -> None:
    def served(*_: object, **__: object) -> None:
        raise AssertionError("it serves without a key")

    monkeypatch.setattr("saccade.serve.running.run_server", served)
    path = tmp_path / "key"
    path.write_text(key)
    refused(call("serve", run, "--key-file", path), f"--key-file {path}: there is no key in it")
    monkeypatch.setenv("SACCADE_KEY", key)
    refused(call("serve", run), "SACCADE_KEY: there is no key in it")


def test_no_run_is_no_run(tmp_path: Path, call) -> None:
    done = call("predict", tmp_path)
    assert done.code == 2
    assert "not a run: it has no config.toml" in done.err
    (tmp_path / "file").write_text("")
    refused(call("predict", tmp_path / "file"), "not a run: it is a file")
    refused(call("predict", tmp_path / "nowhere"), "not a run: there is no such folder")
    for n in range(7):
        (tmp_path / f"run{n}").mkdir()
        (tmp_path / f"run{n}" / "config.toml").write_text("")
    refused(call("predict", tmp_path), f"runs in it are {tmp_path / 'run0'}, ")
    refused(call("predict", tmp_path), f"{tmp_path / 'run4'} and 2 more")


def test_a_run_is_not_made_where_a_file_is(tmp_path: Path, call) -> None:
    path = corpus(tmp_path, "translate")
    refused(call("train", path, "--out", path), f"{path}: is a file; name a folder (--out)")


def test_undecodable_input_is_named_with_its_line(run: Path, call) -> None:
    source = run.parent / "bad.txt"
    source.write_bytes(b"abc\n\xff\n")
    done = call("predict", run, source, "--stream")
    assert done.code == 2
    assert "bad.txt:2" in done.err


def test_a_damaged_model_is_named(run: Path, call, tmp_path: Path) -> None:
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    (copy / "model.safetensors").write_bytes(b"nonsense")
    source = run.parent / "in.txt"
    source.write_text("abc\n")
    done = call("predict", copy, source)
    assert done.code == 2
    assert "model.safetensors" in done.err


def test_a_run_to_start_from_is_named_by_from(tmp_path: Path, call) -> None:
    path, run = corpus(tmp_path, "classify"), GOLDEN / "language-model"
    small = ("--set", "train.steps=2", "--set", "train.processes=1", "--out", tmp_path / "run")
    done = call("train", path, "--task", "classify", "--from", run, *small)
    assert done.code == 0
    assert f"taken from {run}: a vocabulary of" in done.err
    assert "\nnew: head" in done.err
    start = ("--set", f"start.run={run}", "--set", "start.kind=frozen")
    assert call("check", path, "--task", "classify", *start).code in (0, 1)
    more = ("--set", "encoder.dim=99", "--out", tmp_path / "other")
    refused(call("train", path, "--task", "classify", "--from", run, *more), "encoder.dim is 99")
    more = ("--from", tmp_path, "--out", tmp_path / "other")
    refused(call("train", path, *more), "not a run")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes")
def test_a_pipe_is_refused_where_it_would_be_read_twice(tmp_path: Path, call) -> None:
    """What the first reading took would be missing in the second."""
    pipe = tmp_path / "train.tsv"
    os.mkfifo(pipe)
    refused(call("train", pipe, "--out", tmp_path / "run"), "train.tsv: a pipe, which cannot be")
    refused(call("train", pipe, "--task", "forecast"), "a pipe, which cannot be read several times")
    with pytest.raises(DataError, match="a pipe"):
        saccade.train(str(pipe), out=tmp_path / "run")
    checked = call("check", pipe)
    assert checked.code == 1
    assert "a pipe" in checked.out
    assert not (tmp_path / "run").exists()


def test_standard_input_is_read_by_predict_alone(run: Path, tmp_path: Path, call) -> None:
    said = "-: standard input is read by predict alone"
    refused(call("train", "-", "--out", tmp_path / "run"), said)
    refused(call("evaluate", run, "-"), said)
    refused(call("score", run, "-"), said)


def test_a_text_in_place_of_a_file_is_told_how_to_be_read(run: Path, call) -> None:
    refused(call("predict", run, "hello there"), f"echo 'hello there' | saccade predict {run}")
    refused(call("predict", run, "there.txt"), "there.txt: no such file; check the path\n")


def test_a_key_of_decode_without_its_table_is_told_the_whole(run: Path, call) -> None:
    refused(call("predict", run, "--set", "width=3"), "--set width: did you mean decode.width?")
    refused(call("predict", run, "--set", "train.steps=3"), "only the keys of decode")


def test_examples_of_one_label_are_not_trained_on(tmp_path: Path, call) -> None:
    path = tmp_path / "same.tsv"
    path.write_text("".join(f"text number {i}\tsame\n" for i in range(300)))
    done = call("train", path, "--task", "classify", "--out", tmp_path / "run")
    refused(done, "same.tsv: all examples have the label 'same': there is nothing to learn")
    assert not (tmp_path / "run").exists()


def test_a_path_is_no_misspelled_preset(tmp_path: Path, call) -> None:
    refused(call("plan", tmp_path / "gpt2x"), "gpt2x: no such file or run; check the path")
    refused(call("plan", "gpt3-2.8b"), "did you mean 'gpt3-2.7b'?")


def test_bounds_of_a_server_are_checked(run: Path, call) -> None:
    refused(call("serve", run, "--port", 99999), "--port 99999: a number from 0 to 65,535")
    for option in ("--port", "--waiting", "--seconds", "--body-mb", "--width"):
        refused(call("serve", run, option, -1), f"{option} -1: ")


def test_measuring_on_what_was_learned_is_said(tmp_path: Path, call) -> None:
    path = corpus(tmp_path, "translate")
    few = ("--set", "train.steps=1", "--set", "train.processes=1", "--set", "encoder.dim=8")
    done = call("train", path, "--dev", path, "--out", tmp_path / "run", *few)
    assert done.code == 0
    assert f"{path}: is learned from and measured on: metrics tell what is memorised" in done.err
