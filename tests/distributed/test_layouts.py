"""However processes are laid out, they compute one process's loss and gradients."""

import json
from pathlib import Path

import pytest

from tests.distributed.kinds import KINDS, prepared, together

QUICK = ("transformer", "windows", "language")


def check(kinds: tuple[str, ...], size: int, folder: Path) -> int:
    """How many pairs of a network and a layout were compared."""
    for name in kinds:
        prepared(name, folder / "runs" / name)
    result = folder / "result.json"
    command = ("tests.distributed.worker", str(folder / "runs"), str(result))
    for code, _, err in together(size, *command, seconds=300.0):
        assert code == 0, err[-3000:]
    found = json.loads(result.read_text())
    for name, one in found.items():
        assert one["count"], name
        assert one["loss"] < 1e-6, (name, one)
        assert one["gradients"] < 2e-6, (name, one)  # relative, of all together
    return len(found)


def test_two_processes_compute_what_one_does(tmp_path: Path) -> None:
    assert check(QUICK, 2, tmp_path) == 14


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2, 4])
def test_every_layout_of_every_network_computes_what_one_process_does(
    size: int, tmp_path: Path
) -> None:
    assert check(tuple(KINDS), size, tmp_path) >= len(KINDS)
