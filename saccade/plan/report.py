"""A plan: the estimated size, time and cost of a training run."""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any

from saccade.errors import ConfigError
from saccade.models.networks import Network
from saccade.plan.flops import Flops, flops_of
from saccade.plan.hardware import DEFAULT, Hardware, hardware_of
from saccade.plan.layers import layers_of
from saccade.plan.layout import Layout, layout_of, rows_that_fit
from saccade.plan.memory import Caches, Memory, caches_of, memory_of
from saccade.plan.subject import Subject, subject_of
from saccade.plan.timing import Timing, estimated, measure_steps

MAX_DEVICES = 1 << 20


@dataclass(frozen=True)
class Plan:
    """The estimates of a run."""

    subject: Subject
    parts: dict[str, int]  # parameters
    flops: Flops  # of a step
    memory: Memory  # of the largest batch, on one device
    caches: Caches | None
    rows: int  # of that batch
    rows_that_fit: int
    rows_checkpointed: int  # that fit with checkpointing
    hardware: Hardware
    devices: int
    layout: Layout
    timing: Timing

    @property
    def parameters(self) -> int:
        return sum(self.parts.values())

    @property
    def steps(self) -> float | None:
        """Those of the run: fewer than set, where a time limit ends it before."""
        steps, timing = self.subject.steps, self.timing
        if steps is None or timing.run is None or timing.run >= timing.step * steps:
            return steps
        return timing.run / timing.step

    @property
    def run_flops(self) -> float | None:
        return None if self.steps is None else self.steps * self.flops.step

    def record(self) -> dict[str, Any]:
        """The plan as JSON."""
        subject, paper = self.subject, self.subject.publication
        batch = subject.largest
        record: dict[str, Any] = {
            "name": subject.name,
            "parameters": self.parameters,
            "parts": self.parts,
            "flops": asdict(self.flops) | {"step": self.flops.step, "run": self.run_flops},
            "memory": asdict(self.memory) | {"static": self.memory.static},
            "caches": None if self.caches is None else asdict(self.caches),
            "steps": self.steps,
            "tokens": {
                "step": subject.tokens,
                "run": None if self.steps is None else self.steps * subject.tokens,
            },
            "batch": {"said" if key == "targets" else key: n for key, n in batch._asdict().items()}
            | {"rows_that_fit": self.rows_that_fit, "rows_checkpointed": self.rows_checkpointed},
            "hardware": asdict(self.hardware) | {"precision": self.hardware.precision},
            "devices": self.devices,
            "layout": asdict(self.layout) | {"name": self.layout.name},
            "seconds": {"step": self.timing.step, "run": self.timing.run},
            "cost": self.timing.cost,
            "tried": self.timing.measured,
            "notes": list(subject.notes),
        }
        return record if paper is None else record | {"published": asdict(paper)}


def plan(
    name: str,
    *,
    on: str = DEFAULT,
    devices: int = 1,
    utilisation: float | None = None,
    price: float | None = None,
    settings: Sequence[str] = (),
) -> Plan:
    """The plan of a published size, a configuration.toml or a run, on some devices."""
    if not 1 <= devices <= MAX_DEVICES:
        raise ConfigError(f"--devices {devices}: a number from 1 to {MAX_DEVICES:,}")
    hardware = hardware_of(on, utilisation, price)
    with closing(subject_of(name, settings)) as subject:
        return _plan(subject, hardware, devices)


def _plan(subject: Subject, hardware: Hardware, devices: int) -> Plan:
    config, network, batch = subject.config, subject.network, subject.largest
    layers = layers_of(network, batch)
    layout = layout_of(layers, config, hardware, devices, subject.batches)
    flops, parts = _flops(subject), parts_of(network)
    timing = None
    if hardware.name == "here" and devices == 1:
        timing = measure_steps(subject, hardware)
    if timing is None:
        computed = _flops(subject, checkpointing=layout.checkpointing)
        timing = estimated(subject, computed, sum(parts.values()), hardware, layout)
    source = batch.sources[0] if batch.sources else 0
    return Plan(
        subject,
        parts,
        flops,
        memory_of(layers, config.train, hardware.precision),
        caches_of(config, source, hardware.precision),
        batch.rows,
        rows_that_fit(network, batch, config.train, hardware, checkpointing=False),
        rows_that_fit(network, batch, config.train, hardware, checkpointing=True),
        hardware,
        devices,
        layout,
        timing,
    )


def parts_of(network: Network) -> dict[str, int]:
    """The parameters of each part, in the part that has them first."""
    counts: dict[str, int] = {}
    for name, parameter in network.named_parameters():
        path = name.split(".")
        part = ".".join(path[:2]) if path[0] in ("encoder", "decoder") else path[0]
        counts[part] = counts.get(part, 0) + parameter.numel()
    return counts


def _flops(subject: Subject, *, checkpointing: bool = False) -> Flops:
    """Those of a step: the mean of the sampled batches, times the batches of a step."""
    each = [
        flops_of(layers_of(subject.network, shape), checkpointing=checkpointing)
        for shape in dict.fromkeys(subject.shapes)
    ]
    weights = [list(subject.shapes).count(shape) for shape in dict.fromkeys(subject.shapes)]
    factor = subject.batches / len(subject.shapes)
    return Flops(
        *(
            factor * sum(w * getattr(one, name) for w, one in zip(weights, each, strict=True))
            for name in ("forward", "backward", "attention", "output")
        )
    )
