"""What a hostile run may take: 1.5 times its files, and what text needs at most, a constant.

A value of JSON takes many times the memory of its two or three bytes, so no multiple of the file
bounds it. What bounds it are the limits on text, which every file here just keeps.
"""

import shutil
from pathlib import Path
from typing import Any

import pytest

import saccade
from saccade.config import parse
from saccade.errors import ConfigError
from saccade.runs import files, folder, machine
from saccade.tasks.registry import load_task
from tests.faults import giants
from tests.faults.giants import sealed, the_checkpoint
from tests.faults.memory import GOLDEN, MB, PYTHON, Gauge


@pytest.fixture
def run(tmp_path: Path) -> Path:
    shutil.copytree(GOLDEN / "language-model", tmp_path / "run")
    return tmp_path / "run"


def edited(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


# --- files ----------------------------------------------------------------------------------------


def each(loaded: list[giants.Harm], resumed: list[giants.Harm]) -> list[Any]:
    """What is done to a run, with the work that has to notice it."""
    pairs = [("load", harm) for harm in loaded] + [("resume", harm) for harm in resumed]
    return [pytest.param(*pair, id=f"{pair[0]}-{pair[1].__name__}") for pair in pairs]


@pytest.mark.parametrize(("work", "harm"), each(giants.FULL, giants.FULL_RESUMED))
def test_text_takes_a_constant_beside_the_files(
    work: str, harm: giants.Harm, run: Path, gauge: Gauge
) -> None:
    harm(run)
    gauge.refuses(work, run, harm.__name__, files.FREE)


@pytest.mark.parametrize(("work", "harm"), each(giants.LOADED, giants.RESUMED))
def test_large_files_take_at_most_one_and_a_half_times_their_size(
    work: str, harm: giants.Harm, large: Path, tmp_path: Path, gauge: Gauge
) -> None:
    shutil.copytree(large, tmp_path / "run")
    harm(tmp_path / "run")
    gauge.refuses(work, tmp_path / "run", harm.__name__)


def test_a_model_takes_no_more_than_its_own_file(large: Path, gauge: Gauge) -> None:
    size = (large / "model.safetensors").stat().st_size
    assert gauge.open("load", large).peak < 1.2 * size + PYTHON


def test_the_state_of_training_takes_no_more_than_its_own_file(large: Path, gauge: Gauge) -> None:
    """Beside the network and its average: each tensor is read to where it stays."""
    step = the_checkpoint(large)
    size = (step / "training.safetensors").stat().st_size
    average = (step / "model.safetensors").stat().st_size
    assert size > 30 * MB
    assert int(gauge.open("restore", large).said) < 1.2 * size + average + PYTHON


def test_a_vocabulary_that_the_weights_are_large_enough_for_is_read(
    large: Path, run: Path, tmp_path: Path, gauge: Gauge
) -> None:
    """The same words are refused where there is next to nothing else."""
    shutil.copytree(large, tmp_path / "large")
    for path, words in ((run, "would take"), (tmp_path / "large", "does not fit config.toml")):
        giants.vocabulary_of_many_words(path, 200_000)
        assert words in gauge.refuses("load", path, "vocabulary")


def test_settings_that_could_not_be_read_again_are_not_written(run: Path) -> None:
    config = folder.read_config(run)
    words = tuple(f"word {i}" for i in range(20_000))
    giant = config.model_copy(update={"decode": config.decode.model_copy(update={"banned": words})})
    with pytest.raises(ConfigError, match="shorten the longest list"):
        folder.write_config(run, giant, prepared=True)
    assert folder.read_config(run) == config


# --- networks -------------------------------------------------------------------------------------

SIZES = [
    ("transformer", "ff_dim = 32", "ff_dim = {}"),
    ("transformer", "dim = 16", "dim = {}"),
    ("classifier", "kernel = 3", "kernel = {}1"),
    ("classifier", "max_positions = 1024", "max_positions = {}"),
    ("language-model", "dim = 16", "dim = {}"),
    ("attention", "num_layers = 1", "num_layers = {}"),
]


@pytest.mark.parametrize(("name", "old", "new"), SIZES, ids=lambda word: word)
def test_a_network_larger_than_its_weights_takes_no_memory(
    name: str, old: str, new: str, tmp_path: Path, gauge: Gauge
) -> None:
    for number in (10**5, 10**9, 10**18, 10**40):  # some are no number of bytes at all
        run = tmp_path / str(number)
        shutil.copytree(GOLDEN / name, run)
        edited(run / "config.toml", old, new.format(number))
        gauge.refuses("load", run, "network")
        (run / "model.safetensors").unlink()
        words = "no such file" if old != "num_layers = 1" else "num_layers"
        assert words in gauge.refuses("load", run, "network without weights")


def test_nor_does_one_that_is_larger_than_its_checkpoint(run: Path, gauge: Gauge) -> None:
    folder = the_checkpoint(run)
    edited(run / "config.toml", "dim = 16", "dim = 100000")
    edited(folder / "state.json", '"dim": 16', '"dim": 100000')
    sealed(folder, 150)
    assert "does not fit config.toml" in gauge.refuses("resume", run, "network")


@pytest.mark.parametrize(
    ("new", "words"),
    [
        ("dim = 1000000", "8,000,018,000,010 parameters: to train them takes 160,000.4 GB"),
        ("dim = 1000000000000000000", "no machine has memory"),
        (f"dim = {10**40}", "no machine has memory"),
    ],
    ids=["large", "no number of bytes", "no number of a machine"],
)
def test_a_run_without_a_checkpoint_is_not_built_larger_than_the_memory(
    new: str, words: str, run: Path, gauge: Gauge
) -> None:
    shutil.rmtree(run / "checkpoints")
    (run / "model.safetensors").unlink()
    edited(run / "config.toml", "dim = 16", new)
    assert words in gauge.refuses("resume", run, "network without weights")


def test_training_does_not_begin_with_a_network_larger_than_the_memory(tmp_path: Path) -> None:
    """The vocabulary is made first, for it is a part of the size; and the name is free again."""
    file = tmp_path / "text.txt"
    file.write_text("a b c\n" * 50)
    kind = {"decoder.kind": "transformer", "decoder.num_heads": 4, "train.steps": 2}
    out = tmp_path / "run"

    def begin(dim: int) -> None:
        saccade.train(
            file, task="language", out=out, settings=kind | {"decoder.dim": dim}, quiet=True
        )

    with pytest.raises(ConfigError, match=r"parameters.* GB .* GB of memory: lower dim"):
        begin(1_000_000)
    assert not (out / "config.toml").exists()
    begin(16)


def test_what_a_network_takes_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """16 bytes a parameter with AdamW: weights, gradients and two moments."""
    config = folder.read_config(GOLDEN / "transformer")
    network = load_task(config, GOLDEN / "transformer").build_meta()
    count = sum(parameter.numel() for parameter in network.parameters())
    device = machine.choose_device("cpu")
    for changes, each in (
        ({"optimizer": "adamw", "average": 0.0}, 16),
        ({"optimizer": "sgd", "average": 0.0}, 12),
        ({"optimizer": "adamw", "average": 0.9}, 20),
    ):
        train = config.train.model_copy(update=changes)
        monkeypatch.setattr(machine, "memory_of", lambda device, each=each: each * count)
        machine.require_memory(network, train, device)
        monkeypatch.setattr(machine, "memory_of", lambda device, each=each: each * count - 1)
        with pytest.raises(ConfigError, match=f"{count:,} parameters"):
            machine.require_memory(network, train, device)


def test_the_memory_of_this_machine_is_known() -> None:
    found = machine.memory_of(machine.choose_device("cpu"))
    assert found is not None
    assert 100 * MB < found < 1 << 50


def test_layers_have_a_limit_so_that_an_outline_has_an_end() -> None:
    raw = folder.read_config(GOLDEN / "transformer").model_dump(mode="json", exclude_none=True)
    for layers in (256, 257):
        raw["encoder"]["num_layers"] = layers
        if layers == 256:
            parse(raw, "config")
        else:
            with pytest.raises(ConfigError, match=r"encoder.num_layers: .* 256"):
                parse(raw, "config")
