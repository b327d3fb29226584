"""The layout of distributed training: the table `[parallel]`.

Processes are started by torchrun, or by whatever sets its environment variables.
"""

from typing import Annotated

from pydantic import Field

from saccade.config.readers import PositiveFloat, Strict

Width = Annotated[int, Field(ge=0)]


class Parallel(Strict):
    """The product of the three widths is the number of processes; 0 is what is left of it."""

    data: Width = 0  # data parallelism: replicas, each for a slice of the batch
    shard: Width = (
        1  # FSDP: shards of every weight, gathered for use; each has a slice of the batch
    )
    tensor: Annotated[int, Field(ge=1)] = 1  # tensor parallelism: heads, feed-forward, vocabulary
    sequence: bool = False  # with tensor: norms and residuals are sharded, too, by position
    # recompute a block's activations in the backward pass
    checkpoint_activations: bool = False
    offload: bool = False  # with shard: weights and optimiser state in the host's memory
    timeout: PositiveFloat = 600.0  # seconds that a process may keep the others waiting
