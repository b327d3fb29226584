"""A checkpoint that is read by one layout of processes, and written again by it.

    torchrun --nproc-per-node 4 -m tests.distributed.resaved RUN CHECKPOINT [key=value ...]

of the table [parallel]. Without a checkpoint (-) three steps are taken first.
"""

import json
import sys
from functools import partial
from pathlib import Path

from saccade.cli import exit_process
from saccade.data.batches import Loader
from saccade.distributed.world import join, leave
from saccade.runs.folder import read_config, write_config
from saccade.runs.start import first_weights
from saccade.setup.prepare import reopen
from saccade.training import saving
from saccade.training.launched import follow, open_on_all_ranks
from saccade.training.stop import Stop
from saccade.training.trainer import Trainer


def main() -> None:
    folder, settings = Path(sys.argv[1]), [word.split("=") for word in sys.argv[3:]]
    checkpoint = None if sys.argv[2] == "-" else Path(sys.argv[2])
    world = join()
    if world is not None and world.rank:
        follow(world, Stop())
        leave()
        return
    config = read_config(folder)
    layout = config.parallel.model_copy(update={key: json.loads(text) for key, text in settings})
    config = config.model_copy(update={"parallel": layout})
    write_config(folder, config, prepared=True)
    ready = reopen(config, folder)
    network = first_weights(ready.task.build_meta(), config, folder)
    ranks = None
    if world is not None:
        ranks = open_on_all_ranks(world, folder, checkpoint, config, network)
    trainer = Trainer(ready.task, network, folder, ranks)
    if checkpoint is None:
        split = None if ranks is None else ranks.row_range
        loader = Loader(partial(ready.task.epoch, ready.train), 0, split)
        for number in range(3):
            trainer.step(loader.take(0, number, 1), 0.1)
            trainer.at.index += 1
    else:
        saving.restore(trainer, checkpoint)
    trainer.at.step += 1  # of the folder's name
    print(saving.save(trainer, due=True))
    if world is not None:
        world.command("end", 0)
        leave()


if __name__ == "__main__":
    main()
    exit_process(0)
