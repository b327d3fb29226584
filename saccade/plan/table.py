"""A plan as text: size, time, memory and cost."""

from collections.abc import Iterator, Sequence
from math import exp, isclose

from saccade.plan.layout import USABLE
from saccade.plan.report import Plan
from saccade.plan.scaling import Forecast, Law

WIDTH = 20  # of the first column


def lines(plan: Plan) -> Iterator[str]:
    """The plan as aligned lines."""
    subject, memory, flops = plan.subject, plan.memory, plan.flops
    paper, hardware = subject.publication, plan.hardware
    yield subject.name + (f"   {paper.source}" if paper else "")
    yield ""
    yield _row("parameters", f"{plan.parameters:,}", _published(plan))
    for part, count in plan.parts.items():
        yield _row(f"  {part}", f"{count:,}", f"{100 * count / plan.parameters:.1f} %")
    yield ""
    share = "attention {:.1f} %, output {:.1f} %".format(
        *(100 * one / flops.step for one in (flops.attention, flops.output))
    )
    yield _row("a step", f"{amount(flops.step)}FLOPs", f"{subject.tokens:,.0f} tokens; {share}")
    yield _row("  forward", f"{amount(flops.forward)}FLOPs")
    yield _row("  backward", f"{amount(flops.backward)}FLOPs")
    if plan.run_flops is not None and plan.steps is not None:
        tokens = plan.steps * subject.tokens
        detail = f"{plan.steps:,.0f} steps, {amount(tokens)}tokens"
        yield _row("the run", f"{plan.run_flops:.3g} FLOPs", detail)
        if paper and paper.compute and paper.tokens and isclose(tokens, paper.tokens):
            rule = 6 * plan.parameters * tokens
            detail = f"6 x parameters x tokens are {rule:.3g}"
            yield _row("  published", f"{paper.compute:.3g} FLOPs", detail)
    yield ""
    positions = "/".join(map(str, (*subject.largest.sources, subject.largest.target)))
    yield _row(
        "memory", size(memory.peak), f"at its peak, with {plan.rows:,} x {positions} positions"
    )
    yield _row("  weights", size(memory.weights), f"to compute in {hardware.precision}")
    yield _row("  gradients", size(memory.gradients))
    yield _row("  optimiser", size(memory.optimizer), subject.config.train.optimizer)
    if memory.average:
        yield _row("  average", size(memory.average))
    yield _row("  activations", size(memory.activations))
    yield _row("  checkpointed", size(memory.checkpointed), "activations, blocks computed twice")
    if plan.caches is not None:
        detail = f"of one input's search; {size(plan.caches.hypothesis)} a hypothesis"
        yield _row("  decoding", size(plan.caches.search), detail)
    yield ""
    yield from _on_hardware(plan)
    notes = [*subject.notes, *([paper.difference] if paper and paper.difference else [])]
    if notes:
        yield ""
        yield from (f"note: {note}" for note in notes)


def _on_hardware(plan: Plan) -> Iterator[str]:
    hardware, layout, timing = plan.hardware, plan.layout, plan.timing
    count = f"{plan.devices:,} x " if plan.devices > 1 else ""
    detail = f"{amount(hardware.peak)}FLOP/s {hardware.precision}, {amount(hardware.bandwidth)}B/s"
    detail += f", {size(hardware.memory)}" + (f"; {hardware.note}" if hardware.note else "")
    yield _row("on", f"{count}{hardware.name}", detail)
    if not timing.measured:
        yield _row("  utilisation", f"{100 * hardware.utilisation:.0f} %", "assumed: --utilisation")
    fits = "yes" if layout.fits else "no"
    need = f"{size(layout.memory)} of {size(hardware.memory)} a device, {layout.name}"
    yield _row("  fits", fits, need if layout.fits else f"{need}; {_devices_needed(plan)}")
    detail = f"rows on one device; {plan.rows_checkpointed:,} with checkpointing"
    yield _row("  batch that fits", f"{plan.rows_that_fit:,}", detail)
    if plan.devices > 1:
        detail = f"a device sends in a step, {duration(layout.seconds)}"
        yield _row("  communication", size(layout.volume), detail)
    detail = "tried here" if timing.measured else ""
    yield _row("  a step", duration(timing.step), detail)
    if timing.run is not None:
        yield _row("  the run", duration(timing.run), "and up to a tenth more for evaluations")
    if timing.cost is not None:
        hours = f"${hardware.price:,.2f} a device and hour, assumed: --price"
        yield _row("  costs", f"${timing.cost:,.2f}", hours)


def _devices_needed(plan: Plan) -> str:
    """A number of devices that could hold weights, gradients and moments."""
    usable = USABLE * plan.hardware.memory - plan.memory.checkpointed / 8
    count = 2
    while count < 1 << 16 and plan.memory.static / count > max(usable, 0.2 * plan.hardware.memory):
        count *= 2
    return f"try --devices {max(count, 2 * plan.devices)}"


def _published(plan: Plan) -> str:
    paper = plan.subject.publication
    if paper is None:
        return ""
    deviation = 100 * (plan.parameters / paper.parameters - 1)
    return f"published {amount(paper.parameters).strip()}, {deviation:+.1f} %"


def _row(name: str, value: str, more: str = "") -> str:
    return f"{name:<{WIDTH}}{value:>20}" + (f"   {more}" if more else "")


def amount(number: float) -> str:
    """A number with three digits and the letter of its thousands."""
    for limit, letter in ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M")):
        if number >= limit:
            return f"{number / limit:,.3g} {letter}" if number < 1e21 else f"{number:.3g} "
    return f"{number / 1e3:,.3g} k" if number >= 1e3 else f"{number:.3g} "


def size(number: float) -> str:
    """Bytes."""
    for limit, letters in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB")):
        if number >= limit:
            return f"{number / limit:,.1f} {letters}"
    return f"{number / 1e3:,.1f} kB"


def duration(seconds: float) -> str:
    for limit, name in ((86400 * 365.25, "years"), (86400, "days"), (3600, "hours")):
        if seconds >= 2 * limit:
            return f"{seconds / limit:,.1f} {name}"
    if seconds >= 120:
        return f"{seconds / 60:.1f} minutes"
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"


def scaling_lines(law: Law, forecasts: Sequence[Forecast]) -> Iterator[str]:
    """A law and what it says of larger runs."""
    yield f"{'run':<32}{'parameters':>16}{'tokens':>12}{'loss':>10}{'fitted':>10}"
    for trial in law.trials:
        fitted = law.loss(trial.parameters, trial.tokens)
        counts = f"{trial.parameters:>16,}{amount(trial.tokens):>12}"
        yield f"{trial.name[-31:]:<32}{counts}{trial.loss:>10.4f}{fitted:>10.4f}"
    yield ""
    factors = [f"parameters^-{law.alpha:.3f}"] if law.alpha is not None else []
    factors += [f"tokens^-{law.beta:.3f}"] if law.beta is not None else []
    yield f"loss = {law.floor:.4f} + {exp(law.a):.4g} x {' x '.join(factors)}"
    yield ""
    yield f"{'at':<32}{'':>16}{'':>12}{'loss':>10}   90 % of runs"
    for one in forecasts:
        counts = f"{one.parameters:>16,.0f}{amount(one.tokens):>12}"
        yield f"{'':<32}{counts}{one.loss:>10.4f}   {one.low:.4f} to {one.high:.4f}"
