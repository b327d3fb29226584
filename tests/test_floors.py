"""A room imports only from strictly lower floors."""

import ast
from pathlib import Path

import pytest

import saccade

ROOT = Path(saccade.__file__).parent
FLOORS = {
    "errors": 0,
    "config": 1,
    **dict.fromkeys(("text", "nn", "metrics"), 2),
    **dict.fromkeys(("data", "models", "decoding"), 3),
    **dict.fromkeys(("tasks", "check"), 4),
    **dict.fromkeys(("setup", "engines", "distributed"), 5),
    "runs": 6,
    **dict.fromkeys(("training", "inspect", "plan"), 7),
    **dict.fromkeys(("serve", "verify", "ray"), 8),
    "cli": 9,
    "__main__": 10,
}


def room(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imported(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("saccade"):
            parts = (node.module or "").split(".")
            names.update([parts[1]] if len(parts) > 1 else [alias.name for alias in node.names])
            names.discard("__version__")  # of the package itself
        elif isinstance(node, ast.Import):
            names.update(a.name.split(".")[1] for a in node.names if a.name.startswith("saccade."))
    return names


FILES = sorted(path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_room_imports_only_from_lower_floors(path: Path) -> None:
    own = room(path)
    for name in imported(path) - {own}:
        assert FLOORS[name] < FLOORS[own], f"{own} imports {name}"


def test_no_file_is_longer_than_600_lines() -> None:
    for path in (*FILES, *Path(__file__).parent.rglob("*.py")):
        assert len(path.read_text(encoding="utf-8").splitlines()) < 600, path


def test_there_is_no_room_without_a_floor() -> None:
    assert {room(path) for path in FILES} <= FLOORS.keys()
