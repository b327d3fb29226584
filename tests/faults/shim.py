"""A shim over the calls by which checkpoints reach the disk: it counts, records, fails."""

import os
from collections.abc import Callable
from typing import Any

from saccade.training import checkpoint

CALLS = ("open", "write", "fsync", "close", "replace", "mkdir")


class Shim:
    """Stands where the module `os` stood in `saccade.training.checkpoint`."""

    def __init__(self, fault: Callable[[int, str], Any] = lambda number, name: None):
        self.fault = fault  # called before every call; may raise, kill, or return a replacement
        self.count = 0
        self.paths: dict[int, str] = {}
        self.log: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        return real if name not in CALLS else lambda *words: self.call(name, real, *words)

    def call(self, name: str, real: Any, *words: Any) -> Any:
        self.count += 1
        real = self.fault(self.count, name) or real
        result = real(*words)
        match name:
            case "open":
                self.paths[result] = str(words[0])
                if words[1] & os.O_CREAT:
                    self.log.append(("create", str(words[0])))
            case "write":
                data = bytes(words[1])[:result]
                self.log.append(("write", self.paths[words[0]], data))
            case "fsync":
                self.log.append(("fsync", self.paths[words[0]]))
            case "mkdir" | "replace":
                self.log.append((name, *map(str, words[:2])))
        return result

    def __enter__(self) -> "Shim":
        checkpoint.os = self  # type: ignore[assignment]
        return self

    def __exit__(self, *error: object) -> None:
        checkpoint.os = os  # type: ignore[assignment]
