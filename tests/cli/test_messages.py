"""What the command line says: true, with the file and the line, and with commands to paste."""

import json
import shlex
import sys
from pathlib import Path

import pytest

import saccade
from tests.cli.conftest import QUICK, TINY, refused, shell
from tests.helpers import corpus

INFLECTION = ["--task", "translate", "--set", "data.source=[1,2]", "--set", "data.target=3"]


def test_the_version_is_told() -> None:
    done = shell("--version")
    assert (done.returncode, done.stdout) == (0, f"saccade {saccade.__version__}\n")


def test_the_package_is_the_command(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    import runpy

    monkeypatch.setattr(sys, "argv", ["saccade", "--version"])
    with pytest.raises(SystemExit) as left:
        runpy.run_module("saccade", run_name="__main__")
    assert not left.value.code
    assert capfd.readouterr().out == f"saccade {saccade.__version__}\n"


def test_a_run_that_came_to_nothing_leaves_nothing(tmp_path: Path, call) -> None:
    path = tmp_path / "long words.tsv"
    path.write_text("".join(f"{'ab' * i}\t{'ba' * i}\n" for i in range(5, 40)))
    out = tmp_path / "my run"
    done = call("train", path, "--out", out, *QUICK, "--set", "data.max_len=3")
    assert done.code == 2
    assert "longer than data.max_len (3)" in done.err
    assert "config.toml" not in done.err
    assert not out.exists()
    out.mkdir()
    for name in ("metrics.jsonl", "notes.txt"):
        (out / name).write_text("mine")
    assert call("train", path, "--out", out, *QUICK, "--set", "data.max_len=3").code == 2
    assert {one.name: one.read_text() for one in out.iterdir()} == dict.fromkeys(
        ("metrics.jsonl", "notes.txt"), "mine"
    )
    fp16 = ["--set", "train.precision=fp16", "--set", "train.device=cpu"]
    assert call("train", path, "--out", tmp_path / "other", *fp16).code == 2
    assert not (tmp_path / "other").exists()


def test_a_run_does_not_overwrite_what_is_there(tmp_path: Path, call) -> None:
    (tmp_path / "data").mkdir()
    path = corpus(tmp_path / "data", "translate")
    refused(call("train", path, "--out", tmp_path, *QUICK), "has 'data' in it")
    assert path.exists()


def test_paths_with_blanks_can_be_pasted(tmp_path: Path, call) -> None:
    out = tmp_path / "my run"
    done = call("train", corpus(tmp_path, "translate"), "--out", out, *QUICK, *TINY)
    assert done.code == 0, done.err
    assert f"all settings are in {out / 'config.toml'}" in done.err
    assert f"next: saccade predict {shlex.quote(str(out))} FILE" in done.err
    text = (out / "config.toml").read_text()
    (out / "config.toml").write_text(text.replace("prepared = true", "prepared = false"))
    again = call("predict", out)
    assert f"saccade resume {shlex.quote(str(out))}" in again.err
    (tmp_path / "a b.tsv").write_text("a\tb\n" * 20 + "a\n" * 9)
    broken = call("train", tmp_path / "a b.tsv", "--out", tmp_path / "x")
    assert broken.err.splitlines()[-1].endswith(shlex.quote(str(tmp_path / "a b.tsv")))


def test_a_missing_file_is_all_there_is_to_say(run: Path, tmp_path: Path, call) -> None:
    for words in (("evaluate", run), ("score", run), ("train",)):
        done = call(*words, tmp_path / "nowhere.tsv")
        message = f"{tmp_path / 'nowhere.tsv'}: no such file; check the path"
        assert done.err == f"saccade: {message}\n"


def test_wrong_columns_are_named_by_all_commands_alike(run: Path, tmp_path: Path, call) -> None:
    three, two, one = (tmp_path / f"{n}.tsv" for n in ("three", "two", "one"))
    three.write_text("ab\tba\tx\n" * 3)
    two.write_text("ab\tba\n" * 3)
    one.write_text("ab\n" * 3)
    both = "1: expected 2 columns (source, target), found"
    for verb in ("evaluate", "score", "exact"):
        refused(call(verb, run, three), f"three.tsv:{both} 3; give a file with the columns of")
        refused(call(verb, run, one), f"one.tsv:{both} 1; give a file with the columns of")
        assert "saccade check" not in call(verb, run, one).err
    source = "1: expected 1 column (source), found"
    refused(call("predict", run, two), f"two.tsv:{source} 2; leave out the target")
    refused(call("predict", run, three), f"three.tsv:{source} 3; leave out the others")
    refused(call("predict", run, three, "--stream"), f"three.tsv:{source} 3; leave out the others")
    assert call("predict", run, one).code == 0
    lines = [corpus(tmp_path, "language")] * 3
    refused(call("train", *map(str, lines), "--dev", two), "3 training files, but 1 dev file")


def test_a_language_model_leaves_what_was_written(tmp_path: Path, call) -> None:
    path, run = corpus(tmp_path, "language"), tmp_path / "run"
    assert call("train", path, "--out", run, *QUICK, "--set", "decoder.dim=16").code == 0
    (tmp_path / "in.txt").write_text("日本 ab\nabc\nXab ")
    said = "3 characters of the input in 2 lines not in the model's vocabulary"
    for more in ([], ["--width", 2], ["--stream"]):
        done = call("predict", run, tmp_path / "in.txt", *more)
        begun = [line[:5] for line in done.out.split("\n")]
        assert [begun[0], begun[1][:3], begun[2][:4]] == ["日本 ab", "abc", "Xab "]
        assert "<unk>" not in done.out
        assert said in done.err
    found = call("predict", run, tmp_path / "in.txt", "--json").out.splitlines()
    assert '"unknown": 2' in found[0]
    assert "unknown" not in found[1]


def test_what_the_model_has_no_token_for_is_named_with_its_line(
    run: Path, tmp_path: Path, call
) -> None:
    (tmp_path / "in.txt").write_text("abc\n日a本日\n\nab\n")
    done = call("predict", run, tmp_path / "in.txt")
    assert (done.code, len(done.out.splitlines())) == (0, 4)
    where, count = done.err.splitlines()
    assert where == f"{tmp_path / 'in.txt'}:2: not in the model's vocabulary: '日', '本'"
    assert count.startswith("3 characters of the input in 1 line not in the model's vocabulary")
    assert "as given" not in count  # which is for a language model
    found = [json.loads(one) for one in shell(
        "predict", run, tmp_path / "in.txt", "--json"
    ).stdout.splitlines()]  # fmt: skip
    assert (found[1][0]["unknown"], found[1][0]["unknown_units"]) == (3, ["日", "本"])
    assert all("unknown" not in found[n][0] for n in (0, 2, 3))


def test_answers_can_have_the_numbers_of_their_inputs(run: Path, words: Path, call) -> None:
    plain = call("predict", run, words).out.splitlines()
    numbered = call("predict", run, words, "--number").out.splitlines()
    assert numbered == [f"{i}\t{line}" for i, line in enumerate(plain, 1)]
    several = call("predict", run, words, "--number", "--nbest", 2).out.splitlines()
    assert {line.split("\t")[0] for line in several} == {"1", "2", "3", "4"}
    refused(call("predict", run, words, "--number", "--json"), "--number is for lines of text")


def test_warnings_may_pass_a_check(tmp_path: Path, call) -> None:
    path = corpus(tmp_path, "translate")
    path.write_text(path.read_text() + path.read_text().splitlines()[0] + "\n")
    assert call("check", path).code == 1
    passed = call("check", path, "--errors")
    assert passed.code == 0
    assert "0 errors, " in passed.err
    path.write_text(path.read_text() + "one column\n")
    assert call("check", path, "--errors").code == 1


def test_a_tag_that_was_never_seen_is_named(tmp_path: Path, call) -> None:
    path, run = tmp_path / "infl.tsv", tmp_path / "run"
    words = [f"{a}{b}{c}" for a in "abcd" for b in "abcd" for c in "abcd"]
    rows = [f"{word}\t{tags}\t{word}{tags[-1]}" for word in words for tags in ("N;PL", "N;SG")]
    path.write_text("\n".join(rows) + "\n")
    small = [*INFLECTION, "--set", "encoder.dim=16", "--set", "decoder.dim=16"]
    assert call("train", path, "--out", run, *QUICK, *small).code == 0
    (tmp_path / "in.txt").write_text("abc\tN;PL\nabc\tXX;PL\n")
    done = call("predict", run, tmp_path / "in.txt")
    assert "in.txt:2: not in the model's vocabulary: 'XX'" in done.err
    assert "1 word of the input in 1 line" in done.err


@pytest.mark.parametrize("more", [[], ["--json"], ["--shard", "1/1"]])
def test_a_line_that_is_no_text_leaves_its_line_empty(
    more: list[str], run: Path, tmp_path: Path, call
) -> None:
    path = tmp_path / "in.txt"
    path.write_bytes(b"abc\nb\xffa\na\0b\ncab\n")
    done = call("predict", run, path, *more)
    assert (done.code, len(done.out.splitlines())) == (0, 4)
    assert f"{path}:2: not UTF-8 at byte 2 of the line; left empty" in done.err
    assert f"{path}:3: a NUL at byte 2 of the line; left empty" in done.err
    assert "2 lines could not be answered" in done.err
    path.write_bytes(path.read_bytes().replace(b"b\xffa", b"").replace(b"a\0b", b""))
    sound = call("predict", run, path, *more).out.splitlines()
    assert [sound[0], sound[3]] == [done.out.splitlines()[n] for n in (0, 3)]


def test_check_cuts_tags_as_train_would(tmp_path: Path, call) -> None:
    path = tmp_path / "infl.tsv"
    words = [f"{a}{b}{c}" for a in "abcd" for b in "abcd" for c in "abcd"]
    rows = [f"{word}\t{tags}\t{word}{tags[-1]}" for word in words for tags in ("N;PL", "N;SG")]
    path.write_text("\n".join(rows) + "\n")
    out = call("check", path, *INFLECTION).out
    assert "source and target: char" in out
    assert "source 2: word" in out
    assert "3 + 2 + 4 pieces: " in out
    assert "→ N PL →" in out or "→ N SG →" in out
    assert "N ; " not in out


def test_one_label_is_not_an_imbalance(tmp_path: Path, call) -> None:
    path = tmp_path / "same.tsv"
    path.write_text("".join(f"text number {i}\tsame\n" for i in range(300)))
    done = call("check", path, "--task", "classify")
    assert "all 300 examples have the label 'same'" in done.out
    assert "imbalance" not in done.out
    path.write_text(path.read_text() + "another text\tother\n")
    done = call("check", path, "--task", "classify")
    assert "'other' has 1 of 301 examples, 'same' has 300" in done.out
