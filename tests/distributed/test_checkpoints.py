"""What some processes have saved is read by others, whatever their number and layout."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from saccade.runs import checkpoints, shards
from tests.distributed.kinds import prepared, together


def content(checkpoint: Path) -> dict[str, torch.Tensor]:
    """All tensors of a checkpoint, whole, by what they are."""
    assert checkpoints.defect(checkpoint) is None
    found = {f"model.{k}": t for k, t in load_file(checkpoint / "model.safetensors").items()}
    found |= load_file(checkpoint / "training.safetensors")
    if (checkpoint / "raw.safetensors").exists():
        found |= {f"raw.{k}": t for k, t in load_file(checkpoint / "raw.safetensors").items()}
    parts = {key: torch.zeros(shape) for key, (shape, _) in shards.shapes(checkpoint).items()}
    assert not parts.keys() & found.keys()
    if parts:
        shards.read(checkpoint, parts)
    return found | parts


def passed_on(run: Path, layouts: list[tuple[int, list[str]]]) -> list[Path]:
    """The checkpoints of a run that goes from one layout to the next."""
    saved: list[Path] = []
    for size, settings in layouts:
        before = str(saved[-1]) if saved else "-"
        command = ("tests.distributed.resaved", str(run), before, *settings)
        found = together(size, *command, WORLD_SIZE=str(size))
        assert {code for code, _, _ in found} == {0}, "\n".join(err[-1500:] for _, _, err in found)
        saved.append(Path(found[0][1].strip()))
    return saved


HEADS, BOTH = ["shard=1", "tensor=2"], ["shard=2", "tensor=2"]
LAYOUTS = {
    "transformer": [(4, BOTH), (2, HEADS), (1, ["tensor=1"]), (4, ["shard=4"])],
    "windows": [(4, ["shard=4"]), (2, ["shard=2"]), (1, ["shard=1"]), (4, BOTH)],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_checkpoint_of_four_is_that_of_two_of_one_and_of_four(name: str, tmp_path: Path) -> None:
    """Bit for bit: the weights, their average, and what the optimiser keeps."""
    run = prepared(name, tmp_path / "run", optimizer="adamw", rate=1e-3, average=0.9)
    first, two, one, four = passed_on(run, LAYOUTS[name])
    expected = content(first)
    assert sum(key.startswith("optimizer.") for key in expected) > 60
    for other in (two, one, four):
        found = content(other)
        assert found.keys() == expected.keys()
        for key, tensor in expected.items():
            assert torch.equal(found[key], tensor), (other, key)
    assert (four / "shards").is_dir()
    assert not (one / "shards").exists()  # one process has no parts
