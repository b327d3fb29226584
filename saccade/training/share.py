"""Steps shared by several processes of one machine (`train.processes`), which the leader starts.

    python -m saccade.training.share RUN CHECKPOINT RANK SIZE CONNECTION FILE

is a follower: it opens the run, restores the checkpoint (an empty name is the first step), and
carries out the leader's commands.
"""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import torch

from saccade.data.batches import Loader
from saccade.data.parallel import exit_with_parent
from saccade.distributed.ranks import Follower, Leader, Ranks
from saccade.runs.folder import read_config
from saccade.runs.machine import tune_malloc
from saccade.runs.start import first_weights
from saccade.setup.prepare import reopen
from saccade.training.saving import restore_or_reset
from saccade.training.trainer import Trainer


@contextmanager
def shared(trainer: Trainer, checkpoint: Path | None) -> Iterator[None]:
    """Inside, `train.processes` processes share the steps of a trainer."""
    size = trainer.config.processes
    if size < 2:
        yield
        return
    command = [sys.executable, "-m", __name__, str(trainer.folder), str(checkpoint or "")]
    threads = torch.get_num_threads()
    leader = Leader(size, trainer.parameters, command)
    try:
        leader.ready()
        torch.set_num_threads(1)
        trainer.ranks = leader
        yield
    finally:
        trainer.ranks = Ranks()
        torch.set_num_threads(threads)
        leader.close()


def follow(trainer: Trainer, loader: Loader, ranks: Follower) -> None:
    """Carry out the leader's commands until it ends."""
    trainer.ranks = ranks
    for command in ranks.commands():
        match command:
            case "step", step:
                trainer.follow(step, loader.take(step.epoch, step.batch, step.batches))
            case "restore", path:
                restore_or_reset(trainer, Path(path) if path else None)
            case _:
                raise AssertionError(command)


def main() -> None:
    folder, checkpoint, *numbers = sys.argv[1:]
    rank, size, connection, file = map(int, numbers)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the leader
    exit_with_parent(os.getppid())
    torch.set_num_threads(1)
    tune_malloc()
    ready = reopen(read_config(Path(folder)), Path(folder))
    task = ready.task
    network = first_weights(task.build_meta(), task.config, Path(folder))
    trainer = Trainer(ready.task, network, Path(folder))
    if checkpoint:
        restore_or_reset(trainer, Path(checkpoint))
    ranks = Follower(rank, size, connection, file, trainer.parameters)
    loader = Loader(partial(ready.task.epoch, ready.train), max(1, trainer.config.workers))
    try:
        follow(trainer, loader, ranks)
    except (EOFError, OSError):  # the leader has ended in the middle of a step
        sys.exit(1)
    finally:
        loader.close()


if __name__ == "__main__":
    main()
