"""A shim over the calls by which files reach the disk and leave it: it counts, records, fails."""

import os
import shutil
from collections.abc import Callable
from typing import Any

from saccade.runs import checkpoints, files

CALLS = ("open", "write", "fsync", "close", "replace", "mkdir", "ftruncate")


class Shim:
    """Stands where `os` and `shutil` stood in some modules: those that write checkpoints."""

    def __init__(
        self, fault: Callable[[int, str], Any] = lambda number, name: None, *modules: Any
    ) -> None:
        self.modules = modules or (files, checkpoints)
        self.fault = fault  # called before every call; may raise, kill, or return a replacement
        self.count = 0
        self.paths: dict[int, str] = {}
        self.log: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        return real if name not in CALLS else lambda *words: self.call(name, real, *words)

    def rmtree(self, path: Any, ignore_errors: bool = False) -> None:
        try:
            self.call("rmtree", lambda path: shutil.rmtree(path, ignore_errors), path)
        except OSError:
            if not ignore_errors:
                raise

    def call(self, name: str, real: Any, *words: Any) -> Any:
        self.count += 1
        real = self.fault(self.count, name) or real
        there = name == "rmtree" and os.path.lexists(words[0])
        result = real(*words) if name != "fsync" else None  # no power is lost here: only recorded
        match name:
            case "rmtree" if there:
                self.log.append(("remove", str(words[0])))
            case "open":
                self.paths[result] = str(words[0])
                if words[1] & os.O_CREAT:
                    self.log.append(("create", str(words[0])))
            case "write":
                self.log.append(("write", self.paths[words[0]], bytes(words[1])[:result]))
            case "fsync":
                self.log.append(("fsync", self.paths[words[0]]))
            case "mkdir" | "replace":
                self.log.append((name, *map(str, words[:2])))
        return result

    def __enter__(self) -> "Shim":
        self.stand(self, self)
        return self

    def __exit__(self, *error: object) -> None:
        self.stand(os, shutil)

    def stand(self, system: Any, trees: Any) -> None:
        for module in self.modules:
            module.os = system
            if hasattr(module, "shutil"):
                module.shutil = trees
