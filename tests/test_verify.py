"""The laws on a run: they hold, they say where they do not apply, and they can fail."""

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from saccade import cli
from saccade import verify as laws
from saccade.models.decoders import RecurrentDecoder
from saccade.models.networks import Generator
from saccade.training import saving
from saccade.verify import LAWS, verify
from tests.helpers import SMALL, run_through, settings


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("verify")
    for name in SMALL:
        run_through(settings(name, folder, steps=3), folder / name)
    return folder


@pytest.mark.parametrize("name", SMALL)
def test_every_law_holds_on_every_kind_of_run(name: str, runs: Path) -> None:
    found = list(verify(runs / name))
    assert [law.name for law in found] == list(LAWS)
    labels = name in ("tagger", "classifier")
    assert [law.name for law in found if law.passed is None] == (
        ["cached = uncached", "beam of 1 = greedy"] if labels else []
    )
    assert all(law.passed is not False for law in found), "\n".join(map(str, found))


def call(monkeypatch: pytest.MonkeyPatch, *words: object) -> int:
    monkeypatch.setattr(sys, "argv", ["saccade", *map(str, words)])
    with pytest.raises(SystemExit) as left:
        cli.main()
    return int(left.value.code or 0)


def test_a_broken_law_is_found_and_is_exit_1(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = RecurrentDecoder.hidden

    def forgetful(self: RecurrentDecoder, tokens: torch.Tensor, state: object) -> object:
        hidden, after = real(self, tokens, state)
        return hidden, state if tokens.size(1) == 1 else after  # a step leaves no trace

    assert call(monkeypatch, "verify", runs / "language model", "--json") == 0
    laws = json.loads(capsys.readouterr().out)
    assert all(law["passed"] for law in laws)
    monkeypatch.setattr(RecurrentDecoder, "hidden", forgetful)
    assert call(monkeypatch, "verify", runs / "language model") == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("FAIL cached = uncached")


def a_row_sees_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    real = RecurrentDecoder.hidden

    def hidden(self: RecurrentDecoder, tokens: torch.Tensor, state: object) -> object:
        found, after = real(self, tokens, state)
        return found + found.mean(0, keepdim=True), after

    monkeypatch.setattr(RecurrentDecoder, "hidden", hidden)


def padding_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    real = RecurrentDecoder.hidden

    def hidden(self: RecurrentDecoder, tokens: torch.Tensor, state: object) -> object:
        found, after = real(self, tokens, state)
        return found * tokens.size(1), after

    monkeypatch.setattr(RecurrentDecoder, "hidden", hidden)


def greedy_ends_early(monkeypatch: pytest.MonkeyPatch) -> None:
    real = laws.greedy

    def greedy(*words: Any, **named: Any) -> Any:
        return [replace(one, tokens=one.tokens[:-1]) for one in real(*words, **named)]

    monkeypatch.setattr(laws, "greedy", greedy)


def each_part_is_a_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Generator.forward

    def forward(*words: Any) -> Any:
        found, carry = real(*words)
        return replace(found, sum=found.sum / found.count), carry

    monkeypatch.setattr(Generator, "forward", forward)


def the_optimiser_forgets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saving, "restore_tensors", lambda trainer, path: None)


BROKEN = {
    "batch = single": a_row_sees_the_others,
    "padding is invisible": padding_counts,
    "beam of 1 = greedy": greedy_ends_early,
    "accumulation = a big batch": each_part_is_a_mean,
    "stop and resume = straight through": the_optimiser_forgets,
}


@pytest.mark.parametrize("name", BROKEN)
def test_every_other_law_can_fail_too(
    name: str, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    BROKEN[name](monkeypatch)
    law = next(law for law in verify(runs / "language model") if law.name == name)
    assert law.passed is False, str(law)


def test_a_run_without_its_data_says_so(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "tagger", tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "data")
    found = list(verify(tmp_path / "run"))
    assert len(found) == len(LAWS)
    assert {(law.passed, law.note) for law in found} == {(None, "the run's data/ is gone")}
