"""What users do wrong: every mistake is told in a few lines, with the way out, and exit 2."""

import random
import shutil
import sys
from pathlib import Path
from typing import Any, get_origin

import pytest

from saccade import cli
from saccade.config import Config, kind_of, models_in, parse
from saccade.errors import ConfigError
from tests.helpers import GOLDEN, corpus

# --- misspelt keys --------------------------------------------------------------------------------

BASE: dict[str, dict[str, Any]] = {
    "translate": {"encoder": {"kind": "recurrent"}, "decoder": {"kind": "recurrent"}},
    "language": {"decoder": {"kind": "transformer"}},
    "classify": {"encoder": {"kind": "convolution"}, "head": {"kind": "pooled"}},
    "tag": {"encoder": {"kind": "transformer"}, "head": {"kind": "per_word"}},
}


def keys_of(task: str) -> list[tuple[str, ...]]:
    """Every key that a configuration of this task can have."""
    found: list[tuple[str, ...]] = []

    def walk(model: Any, path: tuple[str, ...]) -> None:
        for name, field in model.model_fields.items():
            if name == "kind":
                continue
            inner = models_in(field.annotation)
            kinds = BASE[task] | {"decode": {"kind": "beam"}}
            chosen = kinds.get(name, {}).get("kind") if not path else None
            wanted = task if name == "task" and not path else chosen
            some = [one for one in inner if not kind_of(one) or kind_of(one) == wanted]
            if inner and not path and name in ("encoder", "decoder", "head") and not chosen:
                continue
            found.append((*path, name))
            if get_origin(field.annotation) is dict:  # of names that the user chooses
                continue
            for one in some[:1]:
                walk(one, (*path, name))

    walk(Config, ())
    return found


def misspelt(word: str, numbers: random.Random) -> str:
    """One slip of the fingers: two letters swapped, one left out, one twice, one wrong."""
    place = numbers.randrange(len(word))
    match numbers.randrange(4):
        case 0:
            place = min(place, len(word) - 2)
            return word[:place] + word[place + 1] + word[place] + word[place + 2 :]
        case 1:
            return word[:place] + word[place + 1 :]
        case 2:
            return word[: place + 1] + word[place:]
        case _:
            return word[:place] + numbers.choice("abcdefghijklmnopqrstuvwxyz") + word[place + 1 :]


def test_three_hundred_misspelt_keys_are_refused_with_the_right_suggestion() -> None:
    numbers, missed, count = random.Random(9), [], 0
    while count < 300:
        task = sorted(BASE)[count % len(BASE)]
        known = keys_of(task)
        path = numbers.choice(known)
        wrong = misspelt(path[-1], numbers)
        if (*path[:-1], wrong) in known or not wrong:
            continue
        count += 1
        raw: dict[str, Any] = {"task": {"kind": task}}
        raw |= {name: dict(table) for name, table in BASE[task].items()}
        table = raw
        for name in path[:-1]:
            table = table.setdefault(name, {})
        table[wrong] = 1
        with pytest.raises(ConfigError) as caught:
            parse(raw, "run.toml")
        lines = [line for line in str(caught.value).splitlines() if "unknown key" in line]
        assert len(lines) == 1, str(caught.value)
        assert f"'{'.'.join((*path[:-1], wrong))}'" in lines[0]
        if f"(did you mean '{'.'.join(path)}'?)" not in lines[0]:
            missed.append((".".join(path), wrong, lines[0]))
    assert len(missed) <= 0.05 * count, missed


# --- sixty mistakes -------------------------------------------------------------------------------

TRAIN = "train {tsv} --out {new}"
MISTAKES: dict[str, str] = {
    "no such command": "trian {tsv}",
    "no such option": "train {tsv} --lr 0.1",
    "an option without its value": "train {tsv} --out",
    "no data": "train",
    "no such file": "train {tmp}/nowhere.tsv",
    "a folder as data": "train {tmp}",
    "an empty file": "train {tmp}/empty.tsv",
    "a binary file": "train {tmp}/binary.tsv",
    "one column": "train {tmp}/one.tsv --task translate",
    "ragged columns": "train {tmp}/ragged.tsv --task translate --out {new}",
    "a quote that is not closed": "train {tmp}/data.csv --task translate --out {new}",
    "bad JSON": "train {tmp}/bad.jsonl --task classify",
    "misaligned files": "train {tmp}/a.de {tmp}/a.en --out {new}",
    "two files of two columns": "train {tmp}/one.tsv {tmp}/ragged.tsv",
    "one line": "train {tmp}/single.tsv --task translate --out {new}",
    "no such task": "train {tsv} --task translation",
    "no such dev file": TRAIN + " --dev {tmp}/nowhere.tsv",
    "an unknown label in dev": "train {tmp}/label.tsv --dev {tmp}/dev.tsv --out {new}",
    "a run that is there": "train {tsv} --out {run}",
    "a file where the run should be": "train {tsv} --out {tsv}",
    "a run below a file": "train {tsv} --out {tsv}/run",
    "a setting without a value": TRAIN + " --set train.steps",
    "a setting without a key": TRAIN + " --set =3",
    "an unknown key": TRAIN + " --set train.stepz=3",
    "an unknown table": TRAIN + " --set trian.steps=3",
    "a word for a number": TRAIN + " --set train.steps=many",
    "a negative number": TRAIN + " --set train.steps=-1",
    "zero": TRAIN + " --set train.batch_tokens=0",
    "infinity": TRAIN + " --set train.rate=inf",
    "a share above one": TRAIN + " --set encoder.dropout=1.5",
    "no such kind": TRAIN + " --set encoder.kind=lstm",
    "no such choice": TRAIN + " --set train.schedule=cosin",
    "no such size": TRAIN + " --set size=huge",
    "heads that do not divide": TRAIN + " --set encoder.kind=transformer --set encoder.dim=30",
    "a table as a number": TRAIN + " --set train=3",
    "a head on a translator": TRAIN + " --set head.kind=pooled",
    "too small a vocabulary": TRAIN + " --set task.target.size=5",
    "fp16 on a CPU": TRAIN + " --set train.precision=fp16 --set train.device=cpu",
    "no such device": TRAIN + " --set train.device=tpu",
    "too many workers": TRAIN + " --set train.workers=1000",
    "a column that is not there": TRAIN + " --set data.target=7",
    "everything too long": TRAIN + " --set data.max_len=1",
    "no such configuration": "train {tmp}/nowhere.toml",
    "a configuration that is no TOML": "train {tmp}/bad.toml",
    "a configuration without data": "train {tmp}/empty.toml",
    "a configuration with many mistakes": "train {tmp}/many.toml",
    "resume: no run": "resume {tmp}",
    "resume: no such folder": "resume {tmp}/nowhere",
    "resume: another setting": "resume {model} --set train.rate=0.1",
    "resume: a lower limit": "resume {model} --set train.steps=3",
    "resume: a limit it does not have": "resume {model} --set train.epochs=3",
    "resume: a word for a limit": "resume {model} --set train.steps=many",
    "resume: damaged checkpoints": "resume {damaged}",
    "resume: no data any more": "resume {run} --set train.steps=500",
    "predict: no run": "predict {tmp} {tsv}",
    "predict: no such file": "predict {run} {tmp}/nowhere.txt",
    "predict: not UTF-8": "predict {run} {tmp}/latin.txt --stream",
    "predict: a beam of none": "predict {run} {tmp}/in.txt --width 0",
    "predict: weights that are gone": "predict {gone} {tmp}/in.txt",
    "evaluate: no dev set any more": "evaluate {run}",
    "evaluate: one column": "evaluate {run} {tmp}/one.tsv",
    "score: no such file": "score {run} {tmp}/nowhere.tsv",
    "check: no such file": "check {tmp}/nowhere.tsv --task walk",
    "verify: no run": "verify {tmp}",
}


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The files and runs that the mistakes are made with."""
    tmp = tmp_path_factory.mktemp("mistakes")
    wrong = "".join(f"wrong_{i} = {i}\n" for i in range(40))
    for name, text in {
        "empty.tsv": "", "one.tsv": "a\nb\nc\n", "ragged.tsv": "a\tb\nc\td\ne\nf\tg\th\n" * 20,
        "data.csv": 'a,b\n"c,d\n', "bad.jsonl": '{"text": "a", "label": "b"}\n{"text": \n' * 20,
        "a.de": "eins\nzwei\ndrei\n", "a.en": "one\ntwo\n", "single.tsv": "a\tb\n",
        "label.tsv": "one two\tx\nthree\ty\n" * 20, "dev.tsv": "one\tz\n", "in.txt": "abc\n",
        "bad.toml": "this is no TOML", "empty.toml": "",
        "many.toml": f"{wrong}[data]\ntrain = ['x.tsv']\n",
    }.items():  # fmt: skip
        (tmp / name).write_text(text)
    (tmp / "binary.tsv").write_bytes(bytes(range(256)) * 20)
    (tmp / "latin.txt").write_bytes("caf\u00e9\n".encode("latin-1"))
    for name, golden in (("run", "attention"), ("gone", "attention"), ("model", "language-model"),
                         ("damaged", "language-model")):  # fmt: skip
        shutil.copytree(GOLDEN / golden, tmp / name)
    (tmp / "gone" / "model.safetensors").unlink()
    for file in (tmp / "damaged" / "checkpoints").glob("*/state.json"):
        file.write_text("{}")
    names = {"run": tmp / "run", "gone": tmp / "gone", "model": tmp / "model"}
    names |= {"damaged": tmp / "damaged", "tsv": corpus(tmp, "translate"), "tmp": tmp}
    return {name: str(path) for name, path in names.items()}


def test_there_are_sixty_mistakes() -> None:
    assert len(MISTAKES) >= 60


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_told_in_a_few_lines(
    name: str,
    places: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    words = MISTAKES[name].format(**places, new=tmp_path / "new").split(" ")
    monkeypatch.setattr(sys, "argv", ["saccade", *words])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as left:
        cli.main()
    out, err = capfd.readouterr()
    assert left.value.code == 2, out + err
    assert out == ""
    assert "Traceback" not in err
    assert 1 <= len(err.splitlines()) <= 12, err
    assert max(map(len, err.splitlines())) < 500, err
    assert not (tmp_path / "new" / "config.toml").exists()
