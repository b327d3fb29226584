"""How the processes that train together are laid out: the table `[parallel]`.

Processes are started by torchrun, or by whatever sets its variables; alone, a run needs none of it.
"""

from typing import Annotated

from pydantic import Field

from saccade.config.readers import PositiveFloat, Strict

Width = Annotated[int, Field(ge=0)]


class Parallel(Strict):
    """The product of the three widths is the number of processes; 0 is as many as are left."""

    data: Width = 0  # copies of the network, each for a part of the rows of a batch
    shard: Width = 1  # parts of every weight, gathered where it is used (FSDP); other rows each
    tensor: Annotated[int, Field(ge=1)] = 1  # parts of the heads, feed-forward layers, vocabulary
    sequence: bool = False  # with tensor: norms and residuals in parts, too, by position
    # compute a block's activations again in the backward pass in place of keeping them
    checkpoint_activations: bool = False
    offload: bool = False  # with shard: weights and the optimiser's state stay in the host's memory
    timeout: PositiveFloat = 600.0  # seconds that a process may keep the others waiting
