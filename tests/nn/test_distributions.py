"""Distributions of numbers are torch's, have an end, and agree with themselves."""

from collections.abc import Callable
from math import log, nan, pi

import pytest
import torch
from torch import Tensor
from torch.distributions import Bernoulli, Categorical, Independent, MixtureSameFamily, Normal

from saccade import config as c
from saccade.models.build import build_output
from saccade.nn.distributions import Distribution, Gaussian, Mixture
from saccade.nn.precision import Halved

KINDS: dict[str, Callable[..., Distribution]] = {
    "gaussian": lambda binary=(): Gaussian(6, 3, binary),
    "mixture": lambda binary=(): Mixture(6, 3, 4, binary),
}
LEVELS = torch.tensor([0.01, 0.1, 0.5, 0.9, 0.99])
kinds = pytest.mark.parametrize("kind", KINDS)
some_binary = pytest.mark.parametrize("binary", [(), (1,), (0, 2), (0, 1, 2)])


def shaken(distribution: Distribution) -> Distribution:
    with torch.no_grad():
        for parameter in distribution.parameters():
            parameter.add_(torch.randn_like(parameter))
    return distribution


def values_of(shape: tuple[int, ...], binary: tuple[int, ...]) -> Tensor:
    values = torch.randn(*shape, 3)
    for i in binary:
        values[..., i] = (values[..., i] > 0).float()
    return values


def parts(raw: Tensor, mixture: bool, reals: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Logits, means, deviations and log-odds, read from the raw parameters a second time."""
    K = 4 if mixture else 1
    logits = raw[..., :4] if mixture else raw.new_zeros(*raw.shape[:-1], 1)
    each = (raw[..., 4:] if mixture else raw).reshape(*raw.shape[:-1], K, -1)
    mean, spread, odds = each.split([reals, reals, each.size(-1) - 2 * reals], -1)
    return logits, mean, torch.nn.functional.softplus(spread) + 1e-3, odds


@kinds
@some_binary
def test_the_likelihood_and_its_gradient_are_torchs(kind: str, binary: tuple[int, ...]) -> None:
    distribution = shaken(KINDS[kind](binary))
    values, real = values_of((5, 2), binary), [i for i in range(3) if i not in binary]
    raw = distribution(torch.randn(5, 2, 6)).detach().requires_grad_()
    logits, mean, deviation, odds = parts(raw, kind == "mixture", len(real))
    each = torch.zeros_like(logits)
    if real:
        normal = Independent(Normal(mean, deviation, validate_args=False), 1)
        each = each + normal.log_prob(values[..., None, real])
    if binary:
        each = each + Independent(Bernoulli(logits=odds), 1).log_prob(values[..., None, binary])
    expected = -(each + logits.log_softmax(-1)).logsumexp(-1)
    found = distribution.nll(raw, values)
    assert torch.allclose(found, expected, atol=1e-5, rtol=1e-5)
    slopes = [torch.autograd.grad(nll.sum(), raw)[0] for nll in (found, expected)]
    assert torch.allclose(*slopes, atol=1e-5, rtol=1e-5)


def test_a_mixture_without_binary_numbers_is_torchs_own() -> None:
    distribution = shaken(Mixture(6, 3, 4))
    raw, values = distribution(torch.randn(7, 6)), torch.randn(7, 3)
    logits, mean, deviation, _ = parts(raw, True, 3)
    theirs = MixtureSameFamily(Categorical(logits=logits), Independent(Normal(mean, deviation), 1))
    assert torch.allclose(distribution.nll(raw, values), -theirs.log_prob(values), atol=1e-5)
    assert torch.allclose(distribution.mean(raw), theirs.mean, atol=1e-5)


@kinds
def test_quantiles_invert_the_distribution_function(kind: str) -> None:
    distribution = shaken(KINDS[kind]())
    raw = distribution(torch.randn(8, 6)).detach()
    quantiles = distribution.quantiles(raw, LEVELS)  # (8, 3, Q)
    for q, level in enumerate(LEVELS):
        shares = distribution.cdf(raw, quantiles[..., q])
        assert torch.allclose(shares, level.expand_as(shares), atol=1e-4)
    assert (quantiles.diff(dim=-1) >= 0).all()


@kinds
def test_a_binary_number_has_the_quantiles_of_its_probability(kind: str) -> None:
    distribution = shaken(KINDS[kind]((1,)))
    raw = distribution(torch.randn(20, 6)).detach()
    one = distribution.mean(raw)[:, 1]
    quantiles = distribution.quantiles(raw, LEVELS)[:, 1]
    assert torch.equal(quantiles, (1 - one[:, None] < LEVELS).float())
    for value, share in ((-0.5, 0 * one), (0.0, 1 - one), (0.5, 1 - one), (1.0, 0 * one + 1)):
        found = distribution.cdf(raw, torch.full((20, 3), value))[:, 1]
        assert torch.allclose(found, share, atol=1e-6)


@kinds
@some_binary
def test_samples_have_the_mean_and_the_distribution_function(
    kind: str, binary: tuple[int, ...]
) -> None:
    distribution = shaken(KINDS[kind](binary))
    raw = distribution(torch.randn(1, 6)).detach().expand(20_000, -1)
    drawn = distribution.sample(raw, torch.rand(20_000, distribution.draws))
    spread = drawn.std(0) / 20_000**0.5
    assert ((drawn.mean(0) - distribution.mean(raw)[0]).abs() < 4 * spread + 1e-6).all()
    for i in range(3):
        if i in binary:
            assert set(drawn[:, i].unique().tolist()) <= {0.0, 1.0}
        else:  # Kolmogorov's distance of the two
            ranks = distribution.cdf(raw, drawn)[:, i].sort().values
            assert (ranks - torch.linspace(0, 1, 20_000)).abs().max() < 0.015


@kinds
def test_a_sample_is_a_function_of_its_random_numbers_and_cools_to_a_point(kind: str) -> None:
    distribution = shaken(KINDS[kind]((2,)))
    raw = distribution(torch.randn(50, 6)).detach()
    noise = torch.rand(50, distribution.draws)
    whole = distribution.sample(raw, noise)
    assert torch.equal(distribution.sample(raw[3:5], noise[3:5]), whole[3:5])
    others = torch.rand(50, distribution.draws)
    cold = [distribution.sample(raw, each, temperature=1e-8) for each in (noise, others)]
    assert torch.allclose(*cold, atol=1e-2)
    assert not torch.allclose(whole, distribution.sample(raw, others), atol=1e-2)


@kinds
def test_a_missing_number_is_summed_over(kind: str) -> None:
    distribution = shaken(KINDS[kind]((2,)))
    raw = distribution(torch.randn(4, 6)).detach().requires_grad_()
    values = values_of((4,), (2,))
    gone = values.clone()
    gone[:, 2] = nan
    either = []
    for bit in (0.0, 1.0):
        values[:, 2] = bit
        either.append(-distribution.nll(raw, values))
    assert torch.allclose(distribution.nll(raw, gone), -torch.stack(either).logsumexp(0), atol=1e-5)
    nothing = distribution.nll(raw, torch.full((4, 3), nan))
    assert torch.allclose(nothing, torch.zeros(4), atol=1e-6)
    assert torch.autograd.grad(nothing.sum(), raw)[0].isfinite().all()


@kinds
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_extreme_inputs_stay_finite_in_single_precision(kind: str, dtype: torch.dtype) -> None:
    distribution = shaken(KINDS[kind]((1,)))
    for size in (0.0, 1.0, 1e4, 1e20, 1e30):
        hidden = (size * torch.randn(9, 6)).to(dtype)
        raw = distribution(hidden)
        assert raw.dtype == torch.float32
        raw = raw.detach().requires_grad_()
        for scale in (0.0, 1.0, 1e6, 1e30):
            values = scale * torch.randn(9, 3)
            values[:, 1] = 1.0
            nll = distribution.nll(raw, values)
            assert nll.isfinite().all()
            assert torch.autograd.grad(nll.sum(), raw)[0].isfinite().all()
        found = (
            distribution.mean(raw),
            distribution.sample(raw, torch.rand(9, distribution.draws)),
            distribution.sample(raw, torch.zeros(9, distribution.draws)),
            distribution.quantiles(raw, LEVELS),
            distribution.cdf(raw, torch.randn(9, 3)),
        )
        assert all(each.isfinite().all() for each in found)


@kinds
def test_a_likelihood_has_an_end(kind: str) -> None:
    """A network that is certain of a number says no more than the floor permits."""
    distribution = KINDS[kind]((1,))
    raw = torch.full((1, distribution.output.out_features), 0.0)
    reals = [i for i in range(3) if i != 1]
    for start in range(4 if kind == "mixture" else 0, raw.size(1), 5):
        raw[:, start + len(reals) : start + 2 * len(reals)] = -100.0
        raw[:, start + 2 * len(reals)] = 100.0
    nll = distribution.nll(raw, torch.tensor([[0.0, 1.0, 0.0]]))
    assert float(nll) == pytest.approx(2 * (log(1e-3) + 0.5 * log(2 * pi)), abs=1e-3)


def test_half_precision_leaves_an_output_layer_of_numbers_single() -> None:
    halved = Halved(torch.nn.Sequential(torch.nn.Linear(6, 6), Gaussian(6, 3)), torch.bfloat16, ())
    assert halved.names == ["0.weight", "0.bias"]


def test_a_configuration_names_a_distribution() -> None:
    target = c.Reals(3, (2,))
    assert isinstance(build_output(c.Gaussian(), 6, target), Gaussian)
    mixture = build_output(c.Mixture(components=5, floor=0.1), 6, target)
    assert isinstance(mixture, Mixture)
    assert (mixture.components, mixture.floor, mixture.binary) == (5, 0.1, [2])
