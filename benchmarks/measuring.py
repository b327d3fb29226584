"""How speed and memory are measured, in any environment: the standard library is enough.

A measurement is cut into segments. A segment in which other processes took more than a tenth of a
core is disturbed and is done again: two threads on two cores stall when a third one runs.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from time import perf_counter
from typing import Any

WARM_UP_STEPS = 2
SEGMENT_SECONDS = 1.0
DISTURBING_CORES = 0.1  # taken by others
PATIENCE = 3.0  # times the seconds that are wanted, until disturbed segments count, too


def measure(work: Iterator[tuple[int, int]], seconds: float) -> dict[str, Any]:
    """Tokens a second over undisturbed segments, and the peak memory.

    `work` does some steps whenever it is asked, and says how many and with how many target tokens.
    """
    steps = 0
    while steps < WARM_UP_STEPS:
        steps += next(work)[0]
    clean: list[tuple[int, float]] = []
    other: list[tuple[int, float]] = []
    began = perf_counter()
    while sum(s for _, s in clean) < seconds:
        if perf_counter() - began > PATIENCE * seconds and (clean or other):
            break
        before, start = foreign_seconds(), perf_counter()
        tokens = passed = 0.0
        while passed < min(SEGMENT_SECONDS, seconds):
            done, more = next(work)
            steps, tokens, passed = steps + done, tokens + more, perf_counter() - start
        quiet = foreign_seconds() - before <= DISTURBING_CORES * passed
        (clean if quiet else other).append((int(tokens), passed))
    disturbed = sum(s for _, s in clean) < seconds / 2
    counted = clean + other if disturbed else clean
    return {
        "tokens_per_second": sum(t for t, _ in counted) / sum(s for _, s in counted),
        "disturbed": disturbed,
        "clean_seconds": sum(s for _, s in clean),
        "disturbed_seconds": sum(s for _, s in other),
        "steps": steps,
        "peak_mb": peak_bytes() / 1e6,
    }


# --- /proc ----------------------------------------------------------------------------------------


def foreign_seconds() -> float:
    """Processor seconds that went to others since the machine came up; 0 where nobody says."""
    try:
        fields = [int(n) for n in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    except OSError:
        return 0.0
    user, nice, system, _, _, interrupts, soft, stolen = fields
    busy = user + nice + system + interrupts + soft + stolen
    own = sum(sum(map(int, _stat(pid)[11:13])) for pid in own_processes())
    return (busy - own) / os.sysconf("SC_CLK_TCK")


def own_processes() -> list[int]:
    """This process and those that it has started."""
    parents = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with suppress(OSError, IndexError):
                parents[int(entry)] = int(_stat(int(entry))[1])
    found = [os.getpid()]
    for pid in found:  # grows on the way
        found += [child for child, parent in parents.items() if parent == pid]
    return found


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the third on: a name may have blanks."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def peak_bytes() -> int:
    """The most memory that this process and its children have held, each at its own moment."""
    total = 0
    for pid in own_processes():
        with suppress(OSError):
            for line in Path(f"/proc/{pid}/status").read_text().splitlines():
                if line.startswith("VmHWM:"):
                    total += 1024 * int(line.split()[1])
    return total


def machine() -> dict[str, Any]:
    """The processor, its cores, and its kind: what its products are fast in."""
    flags: set[str] = set()
    model = "unknown"
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "flags":
                flags = set(value.split())
            elif name.strip() == "model name":
                model = value.strip()
    kinds = {
        "AMX-BF16": "amx_bf16",
        "AVX512-BF16": "avx512_bf16",
        "AVX-512": "avx512f",
        "AVX2": "avx2",
    }
    kind = next((name for name, flag in kinds.items() if flag in flags), "other")
    bf16 = kind in ("AMX-BF16", "AVX512-BF16")
    return {"model": model, "cores": len(os.sched_getaffinity(0)), "kind": kind, "bf16": bf16}


def ceiling(dtype_name: str, seconds: float = 1.5, size: int = 2048) -> float:
    """GFLOP/s of a large product with all threads, by the faster of torch's libraries.

    It is the best of what is tried in this time.
    """
    import torch

    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[dtype_name]
    a, b = (torch.randn(size, size).to(dtype) for _ in range(2))
    best, end = float("inf"), perf_counter() + seconds
    while perf_counter() < end:
        start = perf_counter()
        a @ b
        best = min(best, perf_counter() - start)
        if torch.backends.mkldnn.is_available():
            start = perf_counter()
            torch.ops.mkldnn._linear_pointwise(a, b, None, "none", [], "")
            best = min(best, perf_counter() - start)
    return 2 * size**3 / best / 1e9
