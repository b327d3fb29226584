"""What is looked at where something is missing in a text: by an encoder alone, or by a decoder."""

from itertools import repeat

import numpy as np
import torch

from saccade.errors import ConfigError, DataError
from saccade.inspect.attention import Alignment
from saccade.models.networks import Generator, TokenPredictor
from saccade.nn.padded import pad
from saccade.nn.watch import over_time, watch
from saccade.tasks.pretrain import Fill, Restore, batch_of
from saccade.tasks.task import Query, Request, device_of


def own_attention(task: Fill, network: TokenPredictor, text: str) -> Alignment:
    """Which tokens of a text each of them attends to, under each layer of the encoder."""
    row = np.array(task.read_masks(text, repeat(task.alphabet.mask)))
    made = task.asked(row, row == task.alphabet.mask)
    batch = batch_of([made], task.target.pad).to(device_of(network))
    with torch.inference_mode(), watch(network) as maps:
        network.encoder(*batch.sources)
    found = {path: over_time(calls)[0].cpu().mean(0) for path, calls in maps.items()}
    if not found:
        raise ConfigError("this encoder has no attention: there is nothing to draw")
    names = task.tokenizer.tokens(made.source.tolist())
    return Alignment(names, names, found)


def restored(task: Restore, network: Generator, text: str) -> tuple[str, Alignment]:
    """What is filled into a text, and which of its tokens the decoder attends to."""
    request = Request(task.config.decode)
    (query,) = task.encode_queries([Query((text,))], request)
    (answer,) = task.search(network, [query], request)
    if answer.problem:
        raise DataError(answer.problem)
    special, tokens = task.tokenizer.specials, answer.hypotheses[0].tokens
    (row,) = query.readings[0]
    source = pad([row]).to(device_of(network))
    said = torch.tensor([[special.bos, *tokens]], device=source.values.device)
    with torch.inference_mode(), watch(network) as maps:
        network.decoder(said, network.decoder.start(network.encode([source]), 1))
    found = {
        path: weights if weights.dim() == 2 else weights.mean(0)
        for path, calls in maps.items()
        if path == "decoder.attention" or path.endswith(".cross")
        for weights in [over_time(calls)[0].cpu()]
    }
    if not found:
        raise ConfigError("this model has no attention to the source: decoder.attention is 'off'")
    names = task.tokenizer.tokens
    alignment = Alignment(names(row), names([*tokens, special.eos]), found)
    return task.to_text([query], [answer], request)[0].text, alignment
