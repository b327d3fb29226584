"""Training by processes that were started together: the first leads, the others do as it says.

    torchrun --nproc-per-node 4 -m saccade train data.tsv --set parallel.shard=4

The leader prepares the data, decides, reports and writes, as it does alone; the others open its run
and take their part of every step, every evaluation, and of the checkpoints of weights in parts.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch

import saccade
from saccade import config as c
from saccade.data.batches import Loader
from saccade.data.corpora import Corpus
from saccade.data.digest import digest
from saccade.data.lines import Example, data_files
from saccade.distributed.ranks import Ranks
from saccade.distributed.world import Lost, World, join, joined, leave
from saccade.errors import ConfigError, SaccadeError
from saccade.models.networks import Network
from saccade.runs import files
from saccade.runs.folder import read_config
from saccade.runs.machine import choose_device, choose_precision, tune_malloc
from saccade.runs.start import first_weights
from saccade.setup.choose import paths_of
from saccade.setup.prepare import Prepared, reopen
from saccade.tasks.task import Abandoned, Evaluation, advance, result_of, sharing
from saccade.training.stop import Interrupted, Stop

if TYPE_CHECKING:
    from saccade.training.trainer import Trainer

Made = TypeVar("Made")
ENDS_BYTES = 1 << 20  # at the beginning and the end of a file, that are hashed at the start
STOP_SECONDS = 60.0  # from a signal to the end: a step has to be finished, and all saved together


# --- meeting --------------------------------------------------------------------------------------


@contextmanager
def meeting(stop: Stop) -> Iterator[World | None]:
    """Inside, this process is one of those it was started with; at the end the leader ends all."""
    world = join()
    if world is None:
        yield None
        return
    world.asked = lambda: stop.asked
    stop.with_others(STOP_SECONDS, speaks=world.rank == 0)
    code, whole = 0, True
    try:
        with world.guarded():  # whatever waits for the others, as a gathered weight does
            yield world
    except Lost as error:
        whole = False
        if not error.said:
            os.write(2, f"saccade: {error}\n".encode())
        os._exit(2)  # whoever still waits for the lost one in another thread does not keep us
    except BaseException as error:
        found = getattr(error, "exit_code", getattr(error, "code", None))
        code = found if isinstance(found, int) else 2
        if world.rank and isinstance(found, int):  # it has done its part, and has nothing to say
            leave()
            os._exit(code)  # gloo's threads do not always end in order with the interpreter
        raise
    finally:
        if whole and world.rank == 0:
            with suppress(Lost, RuntimeError):  # they may be gone
                world.order("end", code)
        leave()


def agreed(world: World | None, make: Callable[[], Made], paths: Callable[[Made], Any]) -> Made:
    """What `make` makes, which is the same for all, and of the same files.

    A mistake of any of them is the leader's error; the others end without a word.
    """
    if world is None:
        return make()
    made, note = None, {"problem": ""}
    try:
        made = make()
        require_device(world)
        note |= fingerprint(made, paths(made))
    except SaccadeError as error:
        note["problem"] = str(error)
    notes = world.exchange(note)
    problems = list(differences(notes))
    if problems and world.rank:
        raise SystemExit(2)
    if problems:
        raise ConfigError(problems[0])
    assert made is not None
    return made


def fingerprint(made: Any, paths: Any) -> dict[str, str]:
    """What has to be the same for all processes, hashed."""
    text = json.dumps(made, sort_keys=True, default=str)
    files_seen = hashlib.sha256()
    for path in data_files(paths_of(paths)) if paths else ():
        if os.path.isfile(path):
            size = os.path.getsize(path)
            files_seen.update(f"{path} {size}\n".encode())
            with open(path, "rb") as file:
                files_seen.update(file.read(ENDS_BYTES))
                file.seek(max(0, size - ENDS_BYTES))
                files_seen.update(file.read(ENDS_BYTES))
    return {
        "version": f"saccade {saccade.__version__}, torch {torch.__version__}",
        "configuration": hashlib.sha256(text.encode()).hexdigest(),
        "data": files_seen.hexdigest(),
    }


def differences(notes: Sequence[Mapping[str, str]]) -> Iterator[str]:
    """What is wrong with the processes' notes; the leader's own mistake first."""
    for rank, note in enumerate(notes):
        if note["problem"]:
            yield note["problem"] if rank == 0 else f"rank {rank}: {note['problem']}"
    if any(note["problem"] for note in notes):
        return
    for rank, note in enumerate(notes):
        for key, value in note.items():
            if value != notes[0][key]:
                shown = f": {value}, not {notes[0][key]}" if key == "version" else ""
                yield (
                    f"rank {rank} has a different {key} than rank 0{shown}: start all processes "
                    "with the same command, on the same files"
                )


def require_device(world: World) -> None:
    """ConfigError where a process has no device of its own."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if count and world.local_rank >= count:
        raise ConfigError(
            f"{world.host} has {count} CUDA devices, and local rank {world.local_rank} needs one "
            f"of its own: start at most {count} processes there (--nproc-per-node)"
        )


def require_layout(config: c.Config) -> None:
    """ConfigError where the processes there are do not make the layout, or the network no parts."""
    world = joined()
    if world is None and config.parallel == c.Parallel():
        return
    from saccade.distributed.mesh import layout_of
    from saccade.distributed.parallelize import check

    if world is not None and config.train.seeds > 1:
        raise ConfigError(
            "train.seeds: several seeds are trained one after the other by one process: leave out "
            "torchrun, or start it once for each (--set seed=N)"
        )
    layout = layout_of(config.parallel, 1 if world is None else world.size)
    dtype = choose_precision(config.train, choose_device(config.train.device))
    check(config, layout.shard, layout.tensor, dtype)
    if layout.rows * layout.tensor > 1 and config.train.optimizer == "sparse":
        raise ConfigError("word vectors are trained by one process: start it without torchrun")


# --- opening a run --------------------------------------------------------------------------------


def open_for_all(
    world: World, folder: Path, checkpoint: Path | None, config: c.Config, network: Network
) -> Ranks:
    """Have the others open the run, too, and lay out the network."""
    manifest = folder / "data" / files.MANIFEST
    world.resume = f"saccade resume {folder}"
    world.order("open", str(folder.absolute()), str(checkpoint or ""), digest(manifest))
    problems = [problem for problem in world.exchange("") if problem]
    if problems:
        raise ConfigError(problems[0])
    return laid_out(world, config, network)


def laid_out(world: World, config: c.Config, network: Network) -> Ranks:
    """This process's place, with its part of the network."""
    from saccade.distributed.mesh import MeshRanks, layout_of
    from saccade.distributed.parallelize import parallelize

    world.limit(config.parallel.timeout)
    device = choose_device(config.train.device)
    ranks = MeshRanks(world, layout_of(config.parallel, world.size), device)
    parallelize(network, ranks.mesh, config.parallel, choose_precision(config.train, device))
    return ranks


def follow(world: World, stop: Stop) -> int:
    """Do what the leader says to its end; the exit code it says."""
    opened: tuple[Prepared, Network] | None = None
    trainer: Trainer | None = None
    loader: Loader | None = None
    for what, *arguments in world.orders():
        if what == "end":
            if loader is not None:
                loader.close()
            return int(arguments[0])
        if what == "open":
            folder, checkpoint, manifest = arguments
            problem, opened = "", None
            try:
                opened = opened_run(Path(folder), manifest)
            except (SaccadeError, OSError) as error:
                problem = f"rank {world.rank} ({world.host}) cannot open the run: {error}"
            if any(world.exchange(problem)) or opened is None:
                continue  # the leader says so, and ends all
            world.resume = f"saccade resume {folder}"
            trainer, loader = place(world, *opened, Path(folder), checkpoint)
        elif trainer is not None and loader is not None and opened is not None:
            carry_out(trainer, loader, opened[0], what, *arguments)
    return 0


def opened_run(folder: Path, manifest: str) -> tuple[Prepared, Network]:
    """The run that the leader has prepared; ConfigError if it is not the same here."""
    if not folder.is_dir():
        raise ConfigError(f"{folder} is not there: it has to be on a disk that all hosts share")
    if digest(folder / "data" / files.MANIFEST) != manifest:
        raise ConfigError(f"{folder} holds other data than rank 0 sees: share one disk")
    tune_malloc()
    ready = reopen(read_config(folder), folder)
    device = choose_device(ready.task.config.train.device)
    network = first_weights(ready.task.build_meta(), ready.task.config, folder).to(device)
    return ready, network


def place(
    world: World, ready: Prepared, network: Network, folder: Path, checkpoint: str
) -> tuple["Trainer", Loader]:
    from saccade.training.saving import restore_or_reset
    from saccade.training.trainer import Trainer

    ranks = laid_out(world, ready.task.config, network)
    trainer = Trainer(ready.task, network, folder, ranks)
    if checkpoint:
        restore_or_reset(trainer, Path(checkpoint))
    make = partial(ready.task.epoch, ready.train)
    return trainer, Loader(make, trainer.config.workers, ranks.part)


def carry_out(trainer: "Trainer", loader: Loader, ready: Prepared, what: str, *said: Any) -> None:
    """One order of the leader's."""
    from saccade.training import saving

    match what:
        case "step":
            (order,) = said
            trainer.follow(order, loader.take(order.epoch, order.batch, order.batches))
        case "stand":
            (path,) = said
            saving.restore_or_reset(trainer, Path(path) if path else None)
        case "gather":
            trainer.gathered()
        case "save":
            (path,) = said
            saving.write_parts(trainer, Path(path))
        case "evaluate":
            count, quick = said
            evaluate_share(trainer, ready.dev, ready.dev_examples[:count], quick)
        case _:
            raise AssertionError(what)


# --- evaluation -----------------------------------------------------------------------------------


def evaluating(
    trainer: "Trainer", corpus: Corpus, examples: Sequence[Example], quick: bool, stop: Stop
) -> Evaluation:
    """The metrics, of which every process computes a share; for the leader."""
    trainer.ranks.order("evaluate", len(examples), quick)
    try:
        with trainer.network_that_predicts(quick) as network:
            evaluation = trainer.task.evaluating(network, corpus, examples, quick)
            while True:
                if stop.asked or trainer.ranks.stopping:
                    stop.asked = True
                    raise Interrupted
                with sharing(trainer.ranks):
                    share, scores = advance(evaluation)
                if scores is not None:
                    break
                yield share
    except (Interrupted, GeneratorExit):
        trainer.ranks.exchange(Abandoned)
        raise
    trainer.ranks.exchange(None)
    return scores


def evaluate_share(
    trainer: "Trainer", corpus: Corpus, examples: Sequence[Example], quick: bool
) -> None:
    """The same for the others, whose metrics nobody reads."""
    with trainer.network_that_predicts(quick) as network:
        evaluation = trainer.task.evaluating(network, corpus, examples, quick)
        try:
            with sharing(trainer.ranks):
                result_of(evaluation)
        except Abandoned:
            return
    trainer.ranks.exchange(None)
