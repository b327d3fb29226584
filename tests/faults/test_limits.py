"""Limits that hold when a run is written as well as when it is read, and memory that is counted."""

import shutil
from pathlib import Path
from typing import Any

import pytest

import saccade
from saccade.config import LowRank, parse
from saccade.errors import ConfigError
from saccade.runs import folder, guard, machine
from saccade.tasks.registry import load_task
from saccade.training.session import start
from tests.helpers import GOLDEN, new_folder, run_through, settings


def test_settings_that_could_not_be_read_again_are_not_written(tmp_path: Path) -> None:
    config = folder.read_config(GOLDEN / "language-model")
    words = tuple(f"word {i}" for i in range(20_000))
    large = config.model_copy(update={"decode": config.decode.model_copy(update={"banned": words})})
    with pytest.raises(ConfigError, match="shorten the longest list"):
        folder.write_config(tmp_path, large, prepared=True)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("limit", ["MAX_VOCABULARY_BYTES", "JSON_MEMORY_BYTES"])
def test_a_vocabulary_is_refused_before_training_exactly_where_it_could_not_be_loaded(
    limit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the name is free again; what is accepted is loaded, even without data and checkpoints."""
    config = settings("tagger", tmp_path, steps=2)
    run_through(config, tmp_path / "sound")
    most = max(path.stat().st_size for path in (tmp_path / "sound").glob("*.json"))
    if limit == "JSON_MEMORY_BYTES":  # more than 1.5 times the weights, so that it is what counts
        real = guard.json_memory
        monkeypatch.setattr(guard, "json_memory", lambda path: 10 * real(path))
        most = sum(map(guard.json_memory, (tmp_path / "sound").glob("*.json")))
    for allowed, name in ((most, "accepted"), (most - 1, "refused")):
        monkeypatch.setattr(guard, limit, allowed)
        run = new_folder(config, tmp_path / name)
        if name == "accepted":
            list(start(config, run))
            shutil.rmtree(run / "checkpoints")
            shutil.rmtree(run / "data")
            saccade.load(run)
        else:
            with pytest.raises(ConfigError, match=r"too large to be loaded again.*smaller size"):
                list(start(config, run))
            assert not (run / "config.toml").exists()
            assert not list(run.glob("*.json"))


def test_loading_does_not_change_the_allocator_of_the_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(machine.ctypes, "CDLL", lambda name: asked.append(1) or Any)
    machine.tune_malloc.cache_clear()
    saccade.load(GOLDEN / "tagger")
    machine.tune_malloc.cache_clear()
    assert not asked


def test_training_does_not_begin_with_a_network_larger_than_the_memory(tmp_path: Path) -> None:
    """The vocabulary is made first, for it is a part of the size; and the name is free again."""
    file, out = tmp_path / "text.txt", tmp_path / "run"
    file.write_text("a b c\n" * 50)
    kind = {"decoder.kind": "transformer", "decoder.num_heads": 4, "train.steps": 2}

    def begin(dim: int) -> None:
        more = kind | {"decoder.dim": dim}
        saccade.train(file, task="language", out=out, settings=more, quiet=True)

    with pytest.raises(ConfigError, match=r"parameters.* GB .* GB of memory: lower dim"):
        begin(1_000_000)
    assert not (out / "config.toml").exists()
    begin(16)


@pytest.mark.parametrize(("optimizer", "average", "each"),
                         [("adamw", 0.0, 16), ("sgd", 0.0, 12), ("adamw", 0.9, 20)])  # fmt: skip
def test_what_a_network_takes_is_counted(
    optimizer: str, average: float, each: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """16 bytes a parameter with AdamW: weights, gradients and two moments."""
    config = folder.read_config(GOLDEN / "transformer")
    network = load_task(config, GOLDEN / "transformer").build_meta()
    count = sum(parameter.numel() for parameter in network.parameters())
    train = config.train.model_copy(update={"optimizer": optimizer, "average": average})
    config = config.model_copy(update={"train": train})
    device = machine.choose_device("cpu")
    monkeypatch.setattr(machine, "memory_of", lambda device: each * count)
    machine.require_memory(network, config, device)
    monkeypatch.setattr(machine, "memory_of", lambda device: each * count - 1)
    with pytest.raises(ConfigError, match=f"{count:,} parameters"):
        machine.require_memory(network, config, device)
    adapted = config.model_copy(update={"start": LowRank(run="another")})
    machine.require_memory(network, adapted, device)  # whose weights are frozen


def test_a_search_that_no_memory_holds_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache of a Transformer, for each hypothesis and each token of it."""
    run = saccade.load(GOLDEN / "transformer")
    decoder = run.config.decoder
    assert decoder is not None
    each = 4 * (2 * decoder.num_layers * decoder.dim * 500 + 4 * run.task.fields[-1].size)
    settings = {"max_len": 500, "width": 100}
    monkeypatch.setattr(machine, "memory_of", lambda device: 200 * each)
    assert run.request(settings=settings)
    monkeypatch.setattr(machine, "memory_of", lambda device: 50 * each)
    run = saccade.load(GOLDEN / "transformer")  # a run asks once for a search: memory stays
    with pytest.raises(ConfigError, match=r"100 hypotheses of up to 500 tokens .* lower"):
        run.request(settings=settings)


@pytest.mark.parametrize(
    "settings",
    [{"width": 1001}, {"width": 1000, "max_len": 5000}, {"sample": True, "candidates": 1001},
     {"max_len": 100_001}, {"batch_tokens": 1 << 21}],
    ids=str,
)  # fmt: skip
def test_a_search_has_bounds(settings: dict[str, Any]) -> None:
    run = saccade.load(GOLDEN / "attention")
    assert run.request(settings={"width": 1000, "max_len": 4000})
    with pytest.raises(ConfigError, match="decode"):
        run.request(settings=settings)
    with pytest.raises(ConfigError, match="at most 1,000"):
        run.request(nbest=1001, settings={"sample": True})


def test_the_memory_of_this_machine_is_known() -> None:
    found = machine.memory_of(machine.choose_device("cpu"))
    assert found is not None
    assert 1 << 27 < found < 1 << 50


def test_layers_have_a_limit_so_that_building_on_meta_has_an_end() -> None:
    raw = folder.read_config(GOLDEN / "transformer").model_dump(mode="json", exclude_none=True)
    raw["encoder"]["num_layers"] = 256
    parse(raw, "config")
    raw["encoder"]["num_layers"] = 257
    with pytest.raises(ConfigError, match=r"encoder.num_layers: .* 256"):
        parse(raw, "config")
