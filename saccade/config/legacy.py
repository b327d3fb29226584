"""What older versions wrote into a configuration, in the words of this one."""

import copy
from typing import Any


def modernize(raw: dict[str, Any]) -> dict[str, Any]:
    """The same tables with every key and value that has another name now under that name."""
    raw = copy.deepcopy(raw)
    task = raw.get("task")
    if isinstance(task, dict) and task.get("kind") == "model":
        task["kind"] = "language"
    return raw
