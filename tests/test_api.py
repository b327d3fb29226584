"""The package from Python: its names, and what a run says of itself and of odd inputs."""

import subprocess
import sys
from pathlib import Path

import pytest

import saccade
from saccade.errors import ConfigError, DataError
from saccade.runs.run import Run
from tests.small_runs import TORCH, small_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return small_run(tmp_path_factory.mktemp("api"), "gru_off")


def test_the_public_names_are_all_that_is_shown() -> None:
    assert set(dir(saccade)) == {*saccade.__all__, "__version__"}
    assert {"train", "load", "Run", "watch", "TrainingError"} <= set(dir(saccade))
    assert all(getattr(saccade, name) is not None for name in dir(saccade))
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        saccade.trian  # noqa: B018


def test_looking_at_the_package_imports_no_torch() -> None:
    code = "import sys, saccade; dir(saccade); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_run_says_what_it_is(run: Run) -> None:
    size = sum(parameter.numel() for parameter in run.network.parameters())
    assert repr(run) == f"<Run {run.folder}: translate, {size:,} parameters, cpu>"


def test_one_text_is_one_input(run: Run) -> None:
    (listed,) = run.predict(["abcd"], settings=TORCH)
    assert run.predict("abcd", settings=TORCH) == listed
    assert list(run.stream("abcd")) == [listed]
    begun = run.predict(["abcd", "ab"], settings=TORCH, prefixes="ba")
    assert all(one.text.startswith("ba") for one in begun)
    assert run.predict("abcd", settings=TORCH, prefixes="ba") == begun[0]


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (["ab", None], "input 2: expected a text, or a tuple of texts, found None"),
        ([("ab", 3)], r"input 1: expected a text, or a tuple of texts, found \('ab', 3\)"),
        ([float("nan")], "input 1: .* found nan"),
        ([b"ab"], "input 1: .* found b'ab'"),
        ([{"source": "ab"}], "input 1: .* found {'source': 'ab'}"),
        (None, "expected a text, or a list of them, found None"),
        (3, "expected a text, or a list of them, found 3"),
        ([("a", "b")], r"input 1: expected 1 column \(source\), found 2; leave out the target"),
    ],
)
def test_what_is_no_text_is_named(inputs: object, message: str, run: Run) -> None:
    with pytest.raises(DataError, match=message):
        run.predict(inputs)  # type: ignore[call-overload]


def test_columns_that_are_missing_are_named(tmp_path: Path) -> None:
    data = {"train": [str(tmp_path / "inflection.tsv")]}
    rows = [f"go{i % 7}\twent{i}\tV;PST;{i % 3}" for i in range(60)]
    (tmp_path / "inflection.tsv").write_text("\n".join(rows) + "\n")
    run = small_run(tmp_path / "run", "gru_off", data=data)
    message = r"input 1: expected 2 columns \(source 1, source 2\), found 1; put a tab between"
    with pytest.raises(DataError, match=message):
        run.predict("go1")
    three = r"pairs.tsv:1: expected 3 columns \(source 1, target, source 2\), found 2"
    (tmp_path / "pairs.tsv").write_text("go\twent\n")
    with pytest.raises(DataError, match=three):
        run.evaluate(tmp_path / "pairs.tsv")


def test_python_is_not_advised_options_of_the_command_line(run: Run) -> None:
    for settings in ({"width": 2}, {"risk": "chrf", "candidates": 2}):
        with pytest.raises(ConfigError) as error:
            run.predict(["ab"], nbest=3, settings=settings)
        assert "--" not in str(error.value)
        assert "to 3" in str(error.value)


@pytest.mark.parametrize("kind", ["word", "bpe", "unigram", "char", "bytes"])
def test_a_language_model_goes_on_from_what_was_written(kind: str, tmp_path: Path) -> None:
    task = {"kind": "language", "tokenizer": {"kind": kind, "size": 300, "lowercase": True}}
    run = small_run(tmp_path / "run", "gru_off", kind="language", task=task)
    texts = ["Abc  dä b ", "cAb"]
    rules = {"min_len": 4, "max_len": 8}
    for text, one in zip(texts, run.predict(texts, 1, settings=TORCH | rules), strict=True):
        assert one.text.startswith(text)
        assert one.text == "".join(run.stream_text(text, rules))
        assert "<unk>" not in one.text
        more = one.text[len(text) :]
        assert more.strip()
        if kind in ("word", "bpe", "unigram"):
            assert more.startswith(" ") == (not text.endswith(" "))
    unknown = [one.unknown for one in run.predict(texts, settings=TORCH)]
    assert unknown == {"word": [1, 1], "bytes": [0, 0]}.get(kind, [1, 0])
