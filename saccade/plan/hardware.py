"""Devices: published figures, and a measurement of this machine.

Peaks are dense products without sparsity, in FLOP/s: in half precision (bf16, or fp16 before it)
and in single precision without tensor cores. A utilisation is assumed; so is a price, in US dollars
for a device and hour, on demand, as large clouds listed it in 2024 and 2025. All are options.

Checked against data sheets, or pages that quote them: A100, H100, H200 and B200 at
glennklockwood.com/garden/processors; P100 and T4 at tech4gamers.com and hmc-tech.com; RTX 4090 at
waredb.com; MI300X (memory and links) at emergentmind.com/topics/amd-instinct-mi300x-gpus; TPU v3,
v5e and v5p at cloud.google.com/tpu/docs. A link is all of a device's links in one direction. From
memory alone: V100, L4, TPU v4, A10G and RTX 3090 but for their memory's bandwidth, and all prices.
"""

import os
from dataclasses import dataclass, replace
from difflib import get_close_matches
from time import perf_counter

import torch

from saccade.errors import ConfigError
from saccade.runs.machine import memory_of

GPU, CPU = 0.4, 0.5  # assumed shares of the peak that training reaches


@dataclass(frozen=True, slots=True)
class Hardware:
    """One device."""

    name: str
    half: float  # FLOP/s; 0 where half precision is no faster
    single: float  # FLOP/s
    memory: float  # bytes
    bandwidth: float  # bytes/s, of its memory
    link: float  # bytes/s, to another device of the same machine, in one direction
    price: float | None  # US dollars an hour, assumed
    utilisation: float = GPU
    note: str = ""

    @property
    def precision(self) -> str:
        """Its fastest number format."""
        return "bf16" if self.half > self.single else "fp32"

    @property
    def peak(self) -> float:
        return max(self.half, self.single)


TABLE = {
    one.name: one
    for one in (
        Hardware("p100", 21.2e12, 10.6e12, 16e9, 732e9, 20e9, 1.46, note="fp16, no tensor cores"),
        Hardware("v100", 125e12, 15.7e12, 32e9, 900e9, 150e9, 3.06, note="fp16"),
        Hardware("t4", 65e12, 8.1e12, 16e9, 320e9, 16e9, 0.53, note="fp16"),
        Hardware("a10g", 70e12, 31.2e12, 24e9, 600e9, 32e9, 1.01),
        Hardware("l4", 121e12, 30.3e12, 24e9, 300e9, 32e9, 0.81),
        Hardware("rtx-3090", 71e12, 35.6e12, 24e9, 936e9, 32e9, None),
        Hardware("rtx-4090", 165e12, 82.6e12, 24e9, 1008e9, 32e9, None),
        Hardware("a100-40gb", 312e12, 19.5e12, 40e9, 1555e9, 300e9, 4.10),
        Hardware("a100", 312e12, 19.5e12, 80e9, 2039e9, 300e9, 5.12, note="80 GB, SXM"),
        Hardware("h100", 989e12, 67e12, 80e9, 3350e9, 450e9, 6.88, note="SXM"),
        Hardware("h200", 989e12, 67e12, 141e9, 4800e9, 450e9, None, note="SXM"),
        Hardware("b200", 2250e12, 80e12, 192e9, 8000e9, 900e9, None),
        Hardware("mi300x", 1307e12, 163e12, 192e9, 5300e9, 448e9, None),
        Hardware("tpu-v3", 123e12, 0.0, 32e9, 900e9, 82e9, 2.00, note="a chip of two cores"),
        Hardware("tpu-v4", 275e12, 0.0, 32e9, 1228e9, 150e9, 3.22),
        Hardware("tpu-v5e", 197e12, 0.0, 16e9, 819e9, 200e9, 1.20),
        Hardware("tpu-v5p", 459e12, 0.0, 95e9, 2765e9, 600e9, 4.20),
    )
}
DEFAULT = "a100"


def hardware_of(
    name: str, utilisation: float | None = None, price: float | None = None
) -> Hardware:
    """A device of the table, or `here`, with what the user says of it."""
    key = name.lower().replace("_", "-")
    if key == "here":
        found = here()
    elif key in TABLE:
        found = TABLE[key]
    else:
        near = get_close_matches(key, ["here", *TABLE], n=1, cutoff=0.4)
        hint = f"did you mean '{near[0]}'?" if near else f"there are here, {', '.join(TABLE)}"
        raise ConfigError(f"--on {name}: no such hardware; {hint}")
    if utilisation is not None:
        if not 0.0 < utilisation <= 1.0:
            raise ConfigError(f"--utilisation {utilisation:g}: a share from above 0 to 1")
        found = replace(found, utilisation=utilisation)
    if price is not None:
        if price < 0.0:
            raise ConfigError(f"--price {price:g}: dollars for a device and hour, not below 0")
        found = replace(found, price=price)
    return found


def here() -> Hardware:
    """This machine, measured: a product and a copy, for half a second each."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    name = torch.cuda.get_device_name() if device.type == "cuda" else f"{os.cpu_count()} cores"
    size = 1024 if device.type == "cpu" else 8192
    a = torch.randn(size, size, device=device)
    single = 2 * size**3 / _seconds(lambda: a @ a)
    half = 0.0
    if device.type == "cuda":
        b = a.to(torch.bfloat16)
        half = 2 * size**3 / _seconds(lambda: b @ b)
    big = torch.empty(1 << 25, device=device)
    other = torch.empty_like(big)
    bandwidth = 2 * big.nbytes / _seconds(lambda: other.copy_(big))
    memory = memory_of(device) or 8e9
    return Hardware(
        *("here", half, single, float(memory), bandwidth, bandwidth / 2, None),
        GPU if device.type == "cuda" else CPU,
        f"measured: {name}, {torch.get_num_threads()} threads",
    )


def _seconds(work: object, budget: float = 0.5) -> float:
    """The fastest of several calls, the first of which does not count."""
    assert callable(work)
    work()
    best, end = float("inf"), perf_counter() + budget
    while True:
        began = perf_counter()
        work()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        now = perf_counter()
        best = min(best, now - began)
        if now > end:
            return best
