"""Checkpoints of training: saving and restoring, which are kept, rolling back, and averaging."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import torch
from pydantic import Field, TypeAdapter, ValidationError
from torch import Tensor

from saccade.distributed.ranks import copy_full
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

RATE_AFTER_ROLLBACK = 0.5  # of the rate before
MAX_ROLLBACKS = 3  # in a run

Count = Annotated[int, Field(ge=0, lt=2**53)]
Share = Annotated[float, Field(ge=0, le=1)]


@dataclass
class Position:
    """The state of training, apart from tensors."""

    step: Count = 0
    epoch: Count = 0
    index: Count = 0  # of the next batch in the epoch
    seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    best: tuple[float, float] = (-inf, -inf)  # the metric, negated if lower is better; -loss
    since_best: Count = 0  # evaluations
    plateau: Share = 1.0
    ranked: list[tuple[float, Count]] = field(default_factory=list)  # the best (metric, step)
    evaluated: Count = 0  # number of dev examples in an evaluation; 0 before the first
    pending: bool = False  # the evaluation after this step is still to be done
    saved: list[Count] = field(default_factory=list)  # steps of scheduled checkpoints
    bad_streak: Count = 0  # steps in a row that were skipped
    skipped: Count = 0  # ... and in all
    rate_scale: Share = 1.0  # of the rate, lowered by rollbacks
    threads: Count = 0  # of torch; 0 is unknown
    # the lowest dev loss with the training loss then, and for how many evaluations since the dev
    # loss has been far above it while the training loss was lower
    lowest: tuple[float, float] = (inf, inf)
    rising: Count = 0


POSITION = TypeAdapter(Position)


def save(trainer: "Trainer", due: bool) -> Path:
    """Write a checkpoint from which `restore` continues exactly.

    Whether it is `due` is a function of the step. Only such checkpoints are averaged and rolled
    back to: those caused by a signal or the clock have no influence on the weights.
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
        write_more = partial(write_all_shards, trainer) if trainer.ranks.lockstep else None
        path = checkpoints.save(folder, at.step, parts, state, write_more)
    checkpoints.remove(folder, [path, *(checkpoint(trainer, n) for n in kept(trainer))])
    return path


def tensors_of(trainer: "Trainer") -> dict[str, dict[str, Tensor]]:
    """The tensors of a checkpoint, by file."""
    tensors = {f"carry.{i}": tensor for i, tensor in enumerate(leaves(trainer.carry))}
    tensors |= {
        name: tensor for name, tensor in optimizer_tensors(trainer) if not is_dtensor(tensor)
    }
    parts = {"model": trainer.full_prediction_weights(), "training": tensors}
    if trainer.average is not None and not trainer.ranks.lockstep:
        parts["raw"] = files.weights_of(trainer.network)
    return parts


def optimizer_tensors(trainer: "Trainer") -> Iterator[tuple[str, Tensor]]:
    """The optimiser's state, by name."""
    for i, slots in trainer.optimizer.state_dict()["state"].items():
        yield from ((f"optimizer.{i}.{name}", tensor) for name, tensor in slots.items())


def is_dtensor(tensor: Tensor) -> bool:
    """Whether a tensor is sharded."""
    return hasattr(tensor, "to_local")


def write_all_shards(trainer: "Trainer", path: Path) -> None:
    """Have all ranks write their shards of a checkpoint; for rank 0."""
    trainer.ranks.command("save", str(path))
    write_shards(trainer, path)


def write_shards(trainer: "Trainer", path: Path) -> None:
    """Write this rank's shards of what is not in model.safetensors."""
    tensors = {name: tensor for name, tensor in optimizer_tensors(trainer) if is_dtensor(tensor)}
    if trainer.average is not None:  # else model.safetensors has the raw weights
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
    """The checkpoints that are averaged."""
    train, at = trainer.config, trainer.at
    best = [step for _, step in at.ranked]
    steps = best if best and train.average_of == "best" else at.saved[-train.average_checkpoints :]
    return [checkpoint(trainer, step) for step in sorted(steps)]


def checkpoint(trainer: "Trainer", step: int) -> Path:
    return trainer.folder / "checkpoints" / f"step-{step:08d}"


def roll_back(trainer: "Trainer") -> int | None:
    """Restore the last good checkpoint with a lower rate; its step, or None at the limit."""
    then = trainer.at
    scale = then.rate_scale * RATE_AFTER_ROLLBACK
    if scale < RATE_AFTER_ROLLBACK**MAX_ROLLBACKS:
        return None
    paths = [checkpoint(trainer, step) for step in then.saved]
    sound = [path for path in paths if checkpoints.defect(path) is None]
    trainer.ranks.command("restore", str(sound[-1]) if sound else "")
    restore_or_reset(trainer, sound[-1] if sound else None)
    at, folder = trainer.at, trainer.folder / "checkpoints"
    earlier = [path for path in checkpoints.paths(folder) if checkpoints.step_of(path) <= at.step]
    checkpoints.remove(folder, earlier if sound else [])  # later ones are removed
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
    trainer.reset()


def restore(trainer: "Trainer", path: Path) -> None:
    """Restore the state of training from a checkpoint."""
    state = current_position(files.read_json(path / "state.json"))
    trainer.reset()
    raw = path / "raw.safetensors"
    if trainer.average and not raw.exists():
        weights = {f"raw.{name}": p for name, p in files.weights_of(trainer.network).items()}
        shapes = {name: shape for name, (shape, _) in shards.shapes(path).items()}
        if any(shapes.get(name) != tuple(p.shape) for name, p in weights.items()):
            raise CheckpointError(f"{path}: its shards are not those of this network")
        shards.read(path, weights)
    else:
        files.load_weights(raw if trainer.average else path / "model.safetensors", trainer.network)
    try:
        if trainer.average is not None:
            files.load_into(path / "model.safetensors", trainer.prediction_weights())
        trainer.scaler.load_state_dict(dict(state["scaler"]))
        trainer.at = POSITION.validate_python(state)
        restore_tensors(trainer, path / "training.safetensors")
    except (KeyError, ValueError, TypeError, RuntimeError, AttributeError) as error:
        shown = error.errors()[0]["msg"] if isinstance(error, ValidationError) else error
        raise CheckpointError(f"{path}: does not fit this run: {shown}") from None


def restore_tensors(trainer: "Trainer", path: Path) -> None:
    """Load the optimiser's state and the carried state, tensor by tensor."""
    parameters = [p for group in trainer.optimizer.param_groups for p in group["params"]]
    carry = leaves(carry_form(trainer))
    entries = {
        key: (tuple(entry["shape"]), entry["dtype"])
        for key, entry in read_header(path).tensors.items()
    }
    in_shards = {
        key: (shape, files.DTYPES.get(dtype, str(dtype)))
        for key, (shape, dtype) in shards.shapes(path.parent).items()
        if not key.startswith("raw.")
    }
    for key, (shape, dtype) in (entries | in_shards).items():  # checked before any is read
        kind, number, *name = key.split(".")
        expected = parameters if kind == "optimizer" else carry
        if kind not in ("optimizer", "carry") or not 0 <= int(number) < len(expected):
            raise ValueError(f"a tensor '{key[:200]}'")
        own = expected[int(number)]
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
            own = parameters[int(number)].detach()
            if tensor.dim() and is_dtensor(own):
                sharded = torch.zeros_like(own)
                copy_full(sharded, tensor)
                tensor = sharded
            slots.setdefault(int(number), {})[name[0]] = tensor.to(own.device)
    into = {key: torch.zeros_like(parameters[int(key.split(".")[1])].detach()) for key in in_shards}
    if into:
        shards.read(path.parent, into)
    for key, tensor in into.items():
        _, number, slot = key.split(".")
        slots.setdefault(int(number), {})[slot] = tensor
    groups = trainer.optimizer.state_dict()["param_groups"]
    names = {"exp_avg", "exp_avg_sq", "step"} if trainer.config.optimizer == "adamw" else set()
    if any(names - state.keys() for state in slots.values()):
        raise ValueError("a part of the optimiser's state is missing")
    trainer.optimizer.load_state_dict({"state": slots, "param_groups": groups})
    if carried:
        parts = [carried[i] for i in range(len(carry))]
        if len({part.size(0) for part in parts}) != 1:
            raise ValueError("the carried state is that of another network")
        trainer.carry = with_leaves(carry_form(trainer), parts)


def carry_form(trainer: "Trainer") -> Any:
    """The carried state of one row; None for most networks."""
    network = trainer.network
    return network.zero_state(1) if isinstance(network, Generator) and network.carries else None


def finish(trainer: "Trainer") -> list[str]:
    """Write the final weights, the best or an average of checkpoints, and load them.

    Returns what is wrong with checkpoints that could not be averaged.
    """
    config, model = trainer.config, trainer.folder / "model.safetensors"
    problems: list[str] = []
    if config.average_checkpoints > 1:
        mean, problems = checkpoints.mean(averaged(trainer))
        files.save_weights(model, mean)
    elif not model.exists():  # nothing was ever evaluated
        files.save_weights(model, trainer.full_prediction_weights())
    files.load_weights(model, trainer.network)
    trainer.network.eval()
    return problems
