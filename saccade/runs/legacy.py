"""Names in runs of format 1, as they are in this version."""

import re
from typing import Any

WEIGHTS = (
    (r"encoder\.embedding\.", "encoder.stem.embedding."),
    (r"encoder\.(blocks|layers|positions|norm)\.", r"encoder.body.\1."),
    (r"decoder\.(blocks|positions|norm)\.", r"decoder.stack.\1."),
)
POSITION = {"slow": "rate_scale", "bad": "bad_streak"}


def current_name(name: str) -> str:
    """The name of a weight."""
    for old, new in WEIGHTS:
        name = re.sub(f"^{old}", new, name)
    return name


def current_position(state: dict[str, Any]) -> dict[str, Any]:
    """The training state of a checkpoint."""
    return {POSITION.get(key, key): value for key, value in state.items()}
