"""How much memory a piece of work takes, as the system counts it: the peak of what is resident.

Linux lets a process set its own peak back (/proc/self/clear_refs). What was freed before is handed
back first, else the work would use it again and nobody would see.
"""

import ctypes
import gc
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

MB = 1 << 20
RESET = Path("/proc/self/clear_refs")


class Gauge:
    """Measures the peak of resident memory of a piece of work in this process."""

    def __init__(self) -> None:
        if not sys.platform.startswith("linux"):
            pytest.skip("the peak of memory can be set back on Linux alone")
        try:
            RESET.write_text("5")
            self.trim = ctypes.CDLL(None).malloc_trim
        except (OSError, AttributeError):
            pytest.skip("this system does not let a process set back its peak of memory")
        if resident("VmHWM") > resident("VmRSS") + MB:
            pytest.skip("this system does not set back the peak of memory")

    def peak(self, work: Callable[[], Any]) -> int:
        """The bytes that the work takes beside what the process had before, at most."""
        gc.collect()
        self.trim(0)
        RESET.write_text("5")
        before = resident("VmRSS")
        work()
        return max(0, resident("VmHWM") - before)


def resident(key: str) -> int:
    """A number of bytes in /proc/self/status."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) * 1024
    return 0


def size_of(folder: Path) -> int:
    """The bytes of all plain files in a folder."""
    files = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return sum(path.stat().st_size for path in files)
