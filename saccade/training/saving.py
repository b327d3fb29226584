"""Training on disk: checkpoints from which it goes on as if nothing had happened.

Which checkpoints are kept, going back to one, and the mean of several.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import torch
from pydantic import Field, TypeAdapter, ValidationError
from torch import Tensor

from saccade.distributed.ranks import put
from saccade.errors import CheckpointError
from saccade.models.networks import Generator
from saccade.nn.state import leaves, with_leaves
from saccade.runs import checkpoints, files, shards
from saccade.runs.failures import writing
from saccade.runs.guard import read_header
from saccade.runs.legacy import current_position
from saccade.runs.start import first_weights

if TYPE_CHECKING:
    from saccade.training.trainer import Trainer

RATE_AFTER_GOING_BACK = 0.5  # of the rate before
MOST_TIMES_BACK = 3  # in a run


Count = Annotated[int, Field(ge=0, lt=2**53)]
Share = Annotated[float, Field(ge=0, le=1)]


@dataclass
class Position:
    """Where training stands, apart from tensors."""

    step: Count = 0
    epoch: Count = 0
    index: Count = 0  # of the next batch in the epoch
    seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    best: tuple[float, float] = (-inf, -inf)  # the metric, turned so that higher is better; -loss
    since_best: Count = 0  # evaluations
    plateau: Share = 1.0
    ranked: list[tuple[float, Count]] = field(default_factory=list)  # the best (metric, step)
    evaluated: Count = 0  # dev examples that an evaluation looks at; 0 before the first
    pending: bool = False  # an evaluation after this step is still to be done
    saved: list[Count] = field(default_factory=list)  # steps whose checkpoint was due
    bad_streak: Count = 0  # steps in a row that were skipped
    skipped: Count = 0  # ... and in all
    rate_scale: Share = 1.0  # what going back has left of the rate
    threads: Count = 0  # of torch; 0 is unknown
    # the lowest loss on the dev set, the training loss then, and for how many evaluations since
    # the one has been far above it while the other fell
    lowest: tuple[float, float] = (inf, inf)
    rising: Count = 0


POSITION = TypeAdapter(Position)


def save(trainer: "Trainer", due: bool) -> Path:
    """Write a checkpoint from which `restore` goes on as if nothing had happened.

    What is `due` is a function of the step. Only such checkpoints are averaged and gone back to:
    one that a signal or the clock has caused leaves no trace in the weights.
    """
    at, most = trainer.at, max(trainer.config.keep, trainer.config.average_checkpoints)
    if due:
        at.saved = [*(step for step in at.saved if step < at.step), at.step][-most:]
    state = asdict(at) | {"scaler": trainer.scaler.state_dict()}
    state["threads"] = torch.get_num_threads()
    state["config"] = trainer.task.config.model_dump(mode="json", exclude_none=True)
    folder = trainer.folder / "checkpoints"
    with writing(trainer.folder):
        parts = tensors_of(trainer)
        more = partial(save_parts, trainer) if trainer.ranks.lockstep else None
        path = checkpoints.save(folder, at.step, parts, state, more)
    checkpoints.remove(folder, [path, *(checkpoint(trainer, n) for n in kept(trainer))])
    return path


def tensors_of(trainer: "Trainer") -> dict[str, dict[str, Tensor]]:
    """The tensors of a checkpoint, by file."""
    tensors = {f"carry.{i}": tensor for i, tensor in enumerate(leaves(trainer.carry))}
    tensors |= {name: tensor for name, tensor in slots_of(trainer) if not in_parts(tensor)}
    parts = {"model": trainer.gathered(), "training": tensors}
    if trainer.average is not None and not trainer.ranks.lockstep:
        parts["raw"] = files.weights_of(trainer.network)
    return parts


def slots_of(trainer: "Trainer") -> Iterator[tuple[str, Tensor]]:
    """What the optimiser keeps, by name."""
    for i, slots in trainer.optimizer.state_dict()["state"].items():
        yield from ((f"optimizer.{i}.{name}", tensor) for name, tensor in slots.items())


def in_parts(tensor: Tensor) -> bool:
    """Whether several processes have a part each."""
    return hasattr(tensor, "to_local")


def save_parts(trainer: "Trainer", path: Path) -> None:
    """Have all processes write their parts of a checkpoint; for the first."""
    trainer.ranks.order("save", str(path))
    write_parts(trainer, path)


def write_parts(trainer: "Trainer", path: Path) -> None:
    """Write this process's parts of what is not in model.safetensors."""
    tensors = {name: tensor for name, tensor in slots_of(trainer) if in_parts(tensor)}
    if trainer.average is not None:  # else they are those that predict
        named = trainer.network.named_parameters()
        tensors |= {f"raw.{name}": p.detach() for name, p in named}
    shards.write(path, tensors)


def kept(trainer: "Trainer") -> list[int]:
    """The steps whose checkpoints are kept."""
    train, at = trainer.config, trainer.at
    if train.average_of == "last" or train.average_checkpoints == 1:
        return at.saved
    return at.saved + [step for _, step in at.ranked]


def averaged(trainer: "Trainer") -> list[Path]:
    """The checkpoints whose mean is the result of the run."""
    train, at = trainer.config, trainer.at
    best = [step for _, step in at.ranked]
    steps = best if best and train.average_of == "best" else at.saved[-train.average_checkpoints :]
    return [checkpoint(trainer, step) for step in sorted(steps)]


def checkpoint(trainer: "Trainer", step: int) -> Path:
    return trainer.folder / "checkpoints" / f"step-{step:08d}"


def go_back(trainer: "Trainer") -> int | None:
    """Stand at the last good checkpoint with a lower rate; its step, or None at the limit."""
    then = trainer.at
    scale = then.rate_scale * RATE_AFTER_GOING_BACK
    if scale < RATE_AFTER_GOING_BACK**MOST_TIMES_BACK:
        return None
    paths = [checkpoint(trainer, step) for step in then.saved]
    sound = [path for path in paths if checkpoints.defect(path) is None]
    trainer.ranks.order("stand", str(sound[-1]) if sound else "")
    restore_or_reset(trainer, sound[-1] if sound else None)
    at, folder = trainer.at, trainer.folder / "checkpoints"
    earlier = [path for path in checkpoints.paths(folder) if checkpoints.step_of(path) <= at.step]
    checkpoints.remove(folder, earlier if sound else [])  # what is later is no more
    at.rate_scale, at.skipped, at.seconds = scale, then.skipped, then.seconds
    at.best = max(at.best, then.best)  # model.safetensors still holds it
    return at.step


def restore_or_reset(trainer: "Trainer", path: Path | None) -> None:
    """Restore the trainer from a checkpoint; without one, reset it to the first step."""
    if path is not None:
        restore(trainer, path)
        return
    task = trainer.task
    first = files.weights_of(first_weights(task.build_meta(), task.config, trainer.folder))
    files.copy_weights(first, trainer.network, trainer.folder)
    trainer.begin()


def restore(trainer: "Trainer", path: Path) -> None:
    """Stand where a checkpoint stood."""
    state = current_position(files.read_json(path / "state.json"))
    trainer.begin()
    raw = path / "raw.safetensors"
    if trainer.average and not raw.exists():
        weights = {f"raw.{name}": p for name, p in files.weights_of(trainer.network).items()}
        found = {name: shape for name, (shape, _) in shards.shapes(path).items()}
        if any(found.get(name) != tuple(p.shape) for name, p in weights.items()):
            raise CheckpointError(f"{path}: its shards are not those of this network")
        shards.read(path, weights)
    else:
        files.load_weights(raw if trainer.average else path / "model.safetensors", trainer.network)
    try:
        if trainer.average is not None:
            files.load_into(path / "model.safetensors", trainer.predicting())
        trainer.scaler.load_state_dict(dict(state["scaler"]))
        trainer.at = POSITION.validate_python(state)
        restore_tensors(trainer, path / "training.safetensors")
    except (KeyError, ValueError, TypeError, RuntimeError, AttributeError) as error:
        shown = error.errors()[0]["msg"] if isinstance(error, ValidationError) else error
        raise CheckpointError(f"{path}: does not fit this run: {shown}") from None


def restore_tensors(trainer: "Trainer", path: Path) -> None:
    """Take over the optimiser's state and what is carried, tensor by tensor."""
    order = [p for group in trainer.optimizer.param_groups for p in group["params"]]
    form = leaves(carry_form(trainer))
    entries = {
        key: (tuple(entry["shape"]), entry["dtype"])
        for key, entry in read_header(path).tensors.items()
    }
    in_shards = {
        key: (shape, files.DTYPES.get(dtype, str(dtype)))
        for key, (shape, dtype) in shards.shapes(path.parent).items()
        if not key.startswith("raw.")
    }
    for key, (shape, dtype) in (entries | in_shards).items():  # all of them before any is read
        kind, number, *name = key.split(".")
        known = order if kind == "optimizer" else form
        if kind not in ("optimizer", "carry") or not 0 <= int(number) < len(known):
            raise ValueError(f"a tensor '{key[:200]}'")
        own = known[int(number)]
        if kind == "carry":  # of as many rows as the batches had
            fits = not name and shape[1:] == own.shape[1:] and shape[:1] > (0,)
        else:
            fits = len(name) == 1 and shape == (() if name == ["step"] else own.shape)
            fits = fits and dtype == files.DTYPES[own.dtype]
        if not fits:
            raise ValueError(f"'{key[:200]}' is {dtype} {str(shape)[:200]}")
    slots: dict[int, dict[str, Tensor]] = {}
    carried: dict[int, Tensor] = {}
    for key, tensor in files.tensors_in(path):
        kind, number, *name = key.split(".")
        if kind == "carry":
            carried[int(number)] = tensor.to(trainer.device)
        else:
            own = order[int(number)].detach()
            if tensor.dim() and in_parts(own):
                kept = torch.zeros_like(own)
                put(kept, tensor)
                tensor = kept
            slots.setdefault(int(number), {})[name[0]] = tensor.to(own.device)
    into = {key: torch.zeros_like(order[int(key.split(".")[1])].detach()) for key in in_shards}
    if into:
        shards.read(path.parent, into)
    for key, tensor in into.items():
        _, number, slot = key.split(".")
        slots.setdefault(int(number), {})[slot] = tensor
    expected = trainer.optimizer.state_dict()
    names = {"exp_avg", "exp_avg_sq", "step"} if trainer.config.optimizer == "adamw" else set()
    if any(names - found.keys() for found in slots.values()):
        raise ValueError("a part of the optimiser's state is missing")
    trainer.optimizer.load_state_dict({"state": slots, "param_groups": expected["param_groups"]})
    if carried:
        parts = [carried[i] for i in range(len(form))]
        if len({part.size(0) for part in parts}) != 1:
            raise ValueError("the carried state is that of another network")
        trainer.carry = with_leaves(carry_form(trainer), parts)


def carry_form(trainer: "Trainer") -> Any:
    """What the network would carry for one row; None for most."""
    network = trainer.network
    return network.blank(1) if isinstance(network, Generator) and network.carries else None


def finish(trainer: "Trainer") -> list[str]:
    """What is wrong with checkpoints that were to be averaged.

    Leaves in the run and the network the weights that predict: the best, or a mean of several.
    """
    config, model = trainer.config, trainer.folder / "model.safetensors"
    problems: list[str] = []
    if config.average_checkpoints > 1:
        mean, problems = checkpoints.mean(averaged(trainer))
        files.save_weights(model, mean)
    elif not model.exists():  # nothing was ever evaluated
        files.save_weights(model, trainer.gathered())
    files.load_weights(model, trainer.network)
    trainer.network.eval()
    return problems
