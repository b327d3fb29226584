"""Migration of configurations that were written by older versions."""

import copy
from typing import Any

from saccade.config.decoding import Beam, Sample


def modernize(raw: dict[str, Any]) -> dict[str, Any]:
    """The same tables with renamed keys and values under their present names."""
    raw = copy.deepcopy(raw)
    task = raw.get("task")
    if isinstance(task, dict) and task.get("kind") == "model":
        task["kind"] = "language"
    if isinstance(raw.get("decode"), dict):
        raw["decode"] = _decode(raw["decode"])
    return raw


def _decode(table: dict[str, Any]) -> dict[str, Any]:
    """The table `decode` with its kind; an old table held the keys of every kind."""
    if "kind" in table:
        return table
    old = "sample" in table or "complete" in table
    table = modern_keys(table)
    kind = Sample if table.setdefault("kind", "beam") == "sample" else Beam
    others = {*Beam.model_fields, *Sample.model_fields} - {*kind.model_fields} if old else set()
    return {key: value for key, value in table.items() if key not in others}


def modern_keys(table: dict[str, Any]) -> dict[str, Any]:
    """Keys of `decode` by their present names: `complete` is `stop_after`, `sample` a kind."""
    table = {"stop_after" if key == "complete" else key: value for key, value in table.items()}
    if isinstance(table.get("sample"), bool) and "kind" not in table:
        table["kind"] = "sample" if table.pop("sample") else "beam"
    return table
