"""The sentence probability factorises, for every decoder."""

import pytest
import torch

from saccade.decoding.search import token_log_probs
from saccade.decoding.steps import stepper
from tests.architectures import DECODERS, ENCODERS, generator, source_batch


@pytest.mark.parametrize("decoder", DECODERS)
def test_the_sentence_probability_is_the_product_of_the_steps(decoder: str) -> None:
    """log p(y|x) = sum_t log p(y_t | y_<t, x): one pass over the target, or a step at a time."""
    network = generator(next(iter(ENCODERS)), decoder)
    source = source_batch()
    target = torch.randint(5, 20, (3, 6))
    first = torch.full((3,), 2)
    with torch.inference_mode():
        state = network.decoder.start(network.encode((source,)), 3)
        tokens = torch.cat([first[:, None], target[:, :-1]], 1)
        logits, _ = network.decoder(tokens, state)
        whole = logits.log_softmax(-1).gather(-1, target[..., None]).squeeze(-1).sum(1)
        steps = token_log_probs(stepper(network.decoder), state, target, first)
    assert torch.allclose(whole, steps.sum(1), atol=1e-5)
