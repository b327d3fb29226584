"""Recurrent decoders are what their papers say, written out step by step for one row."""

from typing import Any

import pytest
import torch
from torch import Tensor

from saccade.models.decoders import RecurrentDecoder
from saccade.nn.packed import packed
from saccade.nn.padded import pad
from saccade.nn.recurrent import run_cell
from tests.architectures import generator, network, source_batch

CASES = [
    "lstm_off", "elman_off", "lstm_additive_cell", "lstm_general_cell", "gru_additive_cell",
    "lstm_additive_output", "lstm_dot_output", "elman_general_output",
]  # fmt: skip


def by_hand(decoder: RecurrentDecoder, memory: Any, tokens: list[int]) -> Tensor:
    """The logits of one row; the layers of these decoders have no residuals."""
    values, summary = memory.values, memory.summary  # (1, S, C), (1, C)
    parts = torch.tanh(decoder.first(summary)).split(decoder.dim, -1)
    each = len(parts) // len(decoder.layers.layers)
    states = [parts[i : i + each] for i in range(0, len(parts), each)]

    def context(query: Tensor) -> Tensor:
        assert decoder.attention is not None
        score = decoder.attention.score
        scores = score(query[:, None], score.prepare(values))[0, 0]  # (S,)
        weights = scores.exp() / scores.exp().sum()
        return (weights[:, None] * values[0]).sum(0, keepdim=True)

    logits = []
    for token in tokens:
        embedded = decoder.embedding(torch.tensor([token]))
        if decoder.attention is None:  # Cho et al. 2014: the summary is read at every step
            x = torch.cat([embedded, summary], -1)
        elif decoder.context_in_cell:  # Bahdanau et al. 2015: c_t by s_{t-1} of the top layer
            heard = context(states[-1][0])
            x = torch.cat([embedded, heard], -1)
        else:
            x = embedded
        for i, layer in enumerate(decoder.layers.layers):
            states[i] = run_cell(layer, x, states[i])
            x = states[i][0]
        if decoder.attention is not None and decoder.context_in_cell:
            x = torch.tanh(decoder.readout(torch.cat([x, heard, embedded], -1)))
        elif decoder.attention is not None:  # Luong et al. 2015: c_t by s_t, into the output alone
            x = torch.tanh(decoder.readout(torch.cat([x, context(x)], -1)))
        logits.append(decoder.output(x))
    return torch.cat(logits)


@pytest.mark.parametrize("name", CASES)
def test_a_recurrent_decoder_is_its_paper_step_by_step(name: str) -> None:
    net, tokens = generator("lstm", name), [2, 7, 11, 5, 19]
    assert isinstance(net.decoder, RecurrentDecoder)
    with torch.inference_mode():
        memory = net.encode((source_batch((6,)),))
        found, _ = net.decoder(torch.tensor([tokens]), net.decoder.start(memory, 1))
        assert torch.allclose(found[0], by_hand(net.decoder, memory, tokens), atol=1e-5)


@pytest.mark.parametrize("name", ["lstm_off", "gru_off"])
def test_a_language_model_begins_with_zeros(name: str) -> None:
    from tests.architectures import language_model

    decoder = language_model(name).decoder
    assert isinstance(decoder, RecurrentDecoder)
    tokens = torch.tensor([[2, 7, 11]])
    with torch.inference_mode():
        found, _ = decoder(tokens, decoder.start(None, 1))
        outputs, _ = decoder.layers(decoder.embedding(tokens))
        assert torch.allclose(found, decoder.output(outputs), atol=1e-6)


@pytest.mark.parametrize("decoder", ["lstm_additive_cell", "gru_off", "transformer"])
def test_a_packed_decoder_says_what_it_was_made_of_says(decoder: str) -> None:
    net, tokens = network("translate", "lstm", decoder), torch.tensor([[2, 7, 8, 9]])
    source = pad([[5, 6, 7, 3]])
    found = []
    with torch.inference_mode():
        for one in (net, packed(net)):
            found.append(one.decoder(tokens, one.decoder.start(one.encode((source,)), 1))[0])
    assert torch.allclose(*found, atol=1e-4)
