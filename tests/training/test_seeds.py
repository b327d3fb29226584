"""Several seeds: runs that differ in nothing else, and an ensemble that is one run."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import saccade
from saccade.errors import CheckpointError, ConfigError, DataError
from saccade.models.ensembles import build_ensemble
from saccade.models.networks import Classifier, Generator, Tagger
from saccade.runs.folder import read_config
from saccade.training.seeds import final_scores, other_seeds
from tests.architectures import generator, network, source_batch
from tests.helpers import corpus, same_weights

SETTINGS: dict[str, Any] = {
    "train.steps": 6,
    "train.evaluate_every": 6,
    "train.processes": 1,
    "train.seeds": 3,
    "encoder": {"kind": "recurrent", "dim": 16},
}
TASKS = {"translate": {"decoder": {"kind": "edit", "dim": 16}}, "classify": {}, "tag": {}}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three seeds for each task that can have them."""
    folder = tmp_path_factory.mktemp("seeds")
    for task, more in TASKS.items():
        data = corpus(folder, task)
        saccade.train(
            data, task=task, out=folder / task, settings=SETTINGS | more, quiet=True
        ).close()
    return folder


def test_seeds_share_their_data_and_nothing_else(runs: Path) -> None:
    first, second = runs / "translate", runs / "translate/members/2"
    for name in ("source.json", "target.json", "data/train.target.ids", "data/dev.target.ids"):
        assert (first / name).read_bytes() == (second / name).read_bytes(), name
    assert read_config(second).seed == read_config(first).seed + 1
    assert not same_weights(first, second)


@pytest.mark.parametrize("task", TASKS)
def test_an_ensemble_is_one_run(runs: Path, task: str) -> None:
    with saccade.load(runs / task) as run:
        found = run.evaluate()
        rows = [row.source for row in run.rows(str(corpus(runs, task)))][:4]
        texts = [one.text for one in run.predict(rows)]
    table = json.loads((runs / task / "seeds.json").read_text())
    assert table["ensemble"] == pytest.approx(found)
    assert len(table["scores"]) == 3
    assert len(texts) == 4


def test_what_an_ensemble_says_is_what_its_runs_say_together(runs: Path) -> None:
    inputs = ["abc", "d", "abcdab"]
    with saccade.load(runs / "translate") as run:
        one = [(found.text, found.score) for found in run.predict(inputs)]
    members = [saccade.load(runs / "translate/members" / name) for name in ("2", "3")]
    alone = runs / "alone"
    shutil.copytree(runs / "translate", alone, ignore=shutil.ignore_patterns("members"))
    text = (alone / "config.toml").read_text().replace("seeds = 3", "seeds = 1")
    (alone / "config.toml").write_text(text)
    with saccade.load(alone) as run:
        other = [(found.text, found.score) for found in run.predict(inputs, others=members)]
    assert [text for text, _ in one] == [text for text, _ in other]
    assert [score for _, score in one] == pytest.approx([score for _, score in other], abs=1e-5)


@pytest.mark.parametrize("kind", ["translate", "classify", "tag"])
def test_a_network_with_itself_is_itself(kind: str) -> None:
    source = source_batch()
    if kind == "translate":
        one = generator("lstm", "lstm_additive_cell")
        both = build_ensemble([one, one])
        assert isinstance(both, Generator)
        tokens = torch.randint(5, 20, (3, 4))
        with torch.inference_mode():
            alone = one.decoder(tokens, one.decoder.start(one.encode((source,)), 3))[0]
            said = both.decoder(tokens, both.decoder.start(both.encode((source,)), 3))[0]
    else:
        label = network(kind, "lstm")
        assert isinstance(label, Classifier | Tagger)
        if kind == "tag":
            source = type(source)(source.values, source.lengths, (source.values > 0).cumsum(1) - 1)
        pair = build_ensemble([label, label])
        assert isinstance(pair, Classifier | Tagger)
        with torch.inference_mode():
            alone, said = label.logits((source,)), pair.logits((source,))
    assert torch.allclose(alone.log_softmax(-1), said, atol=1e-5)


def test_a_seed_that_is_missing_is_trained_on_resume(runs: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(runs / "translate", folder)
    shutil.rmtree(folder / "members/3")
    with pytest.raises(CheckpointError, match="2 of its 3 seeds are trained: go on with: saccade"):
        saccade.load(folder)
    for _, events in other_seeds(folder):
        for _ in events:
            pass
    assert same_weights(folder / "members/3", runs / "translate/members/3")


def test_a_language_model_has_no_ensemble(tmp_path: Path) -> None:
    data = corpus(tmp_path, "language")
    with pytest.raises(ConfigError, match="seeds: an ensemble is for the tasks translate"):
        saccade.train(data, task="language", settings={"train.seeds": 2}, out=tmp_path / "run")


def test_a_member_has_all_that_its_settings_name(tmp_path: Path) -> None:
    (tmp_path / "only.txt").write_text("ab\nba\nabc\n")
    settings = SETTINGS | TASKS["translate"] | {"train.seeds": 2, "train.steps": 2}
    settings |= {"train.evaluate_every": 2, "decode.only": str(tmp_path / "only.txt")}
    data = corpus(tmp_path, "translate")
    saccade.train(data, out=tmp_path / "run", settings=settings, quiet=True).close()
    assert (tmp_path / "run/members/2/permitted.txt").read_text() == "ab\nba\nabc\n"


def test_scores_are_read_from_a_log_of_many_days(tmp_path: Path) -> None:
    step = json.dumps({"event": "StepDone", "step": 1, "loss": 1.0}) + "\n"
    end = json.dumps({"event": "Finished", "scores": {"loss": 0.5}, "stopped": False})
    (tmp_path / "metrics.jsonl").write_text(step * 600_000 + end)  # 30 MB
    assert final_scores(tmp_path) == {"loss": 0.5}


def test_other_seeds_may_read_media_where_the_first_may(tmp_path: Path) -> None:
    import numpy as np

    (tmp_path / "arrays").mkdir()
    (tmp_path / "table").mkdir()
    for i in range(40):
        np.save(tmp_path / "arrays" / f"{i}.npy", np.full(3, i % 2 + i / 100, np.float32))
    rows = "".join(f"../arrays/{i}.npy\t{'ab'[i % 2]}\n" for i in range(40))
    (tmp_path / "table" / "t.tsv").write_text(rows)
    settings = {"data.root": str(tmp_path), "data.cache_mb": 0, "train.seeds": 2, "train.steps": 2}
    settings |= {"train.evaluate_every": 2, "train.preflight": "off"}
    run = tmp_path / "run"
    saccade.train(tmp_path / "table" / "t.tsv", out=run, settings=settings, quiet=True).close()
    assert (run / "members/2/model.safetensors").exists()
    with saccade.load(run) as again:
        with pytest.raises(DataError, match="outside the folder"):
            again.evaluate()
        again.root = str(tmp_path)
        assert again.evaluate()["accuracy"] >= 0.0
