"""Distributions of real numbers: output layers with a density of F numbers.

A distribution maps a hidden vector to raw parameters; all else is a function of these, in single
precision whatever the network computes in. Numbers are in units of the training data's standard
deviation. Columns that are always 0 or 1 there are `binary` and have a probability, as a density at
a single point is unbounded. A missing number (NaN) is marginalised.
F numbers, K components, Q levels.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from math import log, pi, sqrt

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from saccade.nn.loss import Loss
from saccade.nn.products import Linear

MIN_DEVIATION = 1e-3  # of a density, in those of the training data: it bounds likelihoods
MAX_DEVIATIONS = 1e15  # between a number and its mean, for a finite likelihood
BISECTIONS = 60  # of an interval with a quantile in it: beyond single precision


class Distribution(nn.Module, ABC):
    """A distribution of `size` numbers, of which those at `binary` are 0 or 1."""

    draws: int  # how many uniform random numbers a sample takes

    def __init__(self, size: int, binary: Sequence[int], floor: float):
        super().__init__()
        self.size, self.floor = size, floor
        self.binary = sorted(binary)
        self.real = [i for i in range(size) if i not in self.binary]
        joined = [*self.real, *self.binary]
        self.order = [joined.index(i) for i in range(size)]
        self.output: nn.Module

    def forward(self, hidden: Float[Tensor, "*B D"]) -> Float[Tensor, "*B n"]:
        """The raw parameters."""
        with torch.autocast(hidden.device.type, enabled=False):
            return self.output(hidden.float())  # type: ignore[no-any-return]

    def loss(self, raw: Float[Tensor, "N n"], values: Float[Tensor, "N F"]) -> Loss:
        """The summed -log p of rows of numbers; a row without any does not count."""
        nll = self.nll(raw, values).sum()
        return Loss(nll, nll.detach(), int((~values.isnan()).any(-1).sum()))

    @abstractmethod
    def nll(self, raw: Float[Tensor, "*B n"], values: Float[Tensor, "*B F"]) -> Float[Tensor, "*B"]:
        """-log p of the numbers together."""

    @abstractmethod
    def mean(self, raw: Float[Tensor, "*B n"]) -> Float[Tensor, "*B F"]:
        """The expected value of each number; of a binary one its probability."""

    @abstractmethod
    def sample(
        self, raw: Float[Tensor, "*B n"], uniforms: Float[Tensor, "*B U"], temperature: float = 1.0
    ) -> Float[Tensor, "*B F"]:
        """Numbers drawn, as a function of `draws` uniform random numbers.

        A temperature multiplies variances, and divides the log-odds of what is chosen.
        """

    @abstractmethod
    def cdf(
        self, raw: Float[Tensor, "*B n"], values: Float[Tensor, "*B F"]
    ) -> Float[Tensor, "*B F"]:
        """The marginal cumulative distribution function of each number."""

    @abstractmethod
    def quantiles(
        self, raw: Float[Tensor, "*B n"], levels: Float[Tensor, "Q"]
    ) -> Float[Tensor, "*B F Q"]:
        """The quantiles of each number's marginal distribution."""

    def _deviation(self, raw: Tensor) -> Tensor:
        return self.floor + F.softplus(raw)

    def _joined(self, real: Tensor, binary: Tensor, dim: int = -1) -> Tensor:
        """Real and binary numbers in the order of the columns."""
        if not self.binary:
            return real
        both = torch.cat([real, binary], dim)
        return both.index_select(dim, torch.tensor(self.order, device=both.device))

    def _split(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """The real columns and the binary ones."""
        if not self.binary:
            return values, values[..., :0]
        return values[..., self.real], values[..., self.binary]


class Gaussian(Distribution):
    """Each number by itself: a mean and a deviation, or the log-odds of 1."""

    def __init__(
        self, dim: int, size: int, binary: Sequence[int] = (), floor: float = MIN_DEVIATION
    ):
        super().__init__(size, binary, floor)
        self.draws = size
        self.output = Linear(dim, 2 * len(self.real) + len(self.binary))

    def _parts(self, raw: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Means (*B, real), deviations (*B, real), log-odds (*B, binary)."""
        R = len(self.real)
        return raw[..., :R], self._deviation(raw[..., R : 2 * R]), raw[..., 2 * R :]

    def nll(self, raw: Float[Tensor, "*B n"], values: Float[Tensor, "*B F"]) -> Float[Tensor, "*B"]:
        mean, deviation, odds = self._parts(raw)
        return -_log_p(*self._split(values.float()), mean, deviation, odds)

    def mean(self, raw: Float[Tensor, "*B n"]) -> Float[Tensor, "*B F"]:
        mean, _, odds = self._parts(raw)
        return self._joined(mean, odds.sigmoid())

    def sample(
        self, raw: Float[Tensor, "*B n"], uniforms: Float[Tensor, "*B U"], temperature: float = 1.0
    ) -> Float[Tensor, "*B F"]:
        mean, deviation, odds = self._parts(raw)
        u_real, u_binary = self._split(uniforms)
        real = mean + sqrt(temperature) * deviation * _normal(u_real)
        return self._joined(real, (u_binary < (odds / temperature).sigmoid()).float())

    def cdf(
        self, raw: Float[Tensor, "*B n"], values: Float[Tensor, "*B F"]
    ) -> Float[Tensor, "*B F"]:
        mean, deviation, odds = self._parts(raw)
        real, binary = self._split(values.float())
        below = torch.special.ndtr((real - mean) / deviation)
        return self._joined(below, _binary_cdf(odds.sigmoid(), binary))

    def quantiles(
        self, raw: Float[Tensor, "*B n"], levels: Float[Tensor, "Q"]
    ) -> Float[Tensor, "*B F Q"]:
        mean, deviation, odds = self._parts(raw)
        levels = levels.to(raw)
        real = mean.unsqueeze(-1) + deviation.unsqueeze(-1) * torch.special.ndtri(levels)
        return self._joined(real, _binary_quantiles(odds.sigmoid(), levels), -2)


class Mixture(Distribution):
    """K components over all numbers together, each a Gaussian with a weight.

    Numbers are independent within a component, and depend on each other by which one it is.
    Graves 2013, arxiv.org/abs/1308.0850
    """

    def __init__(
        self,
        dim: int,
        size: int,
        components: int,
        binary: Sequence[int] = (),
        floor: float = MIN_DEVIATION,
    ):
        super().__init__(size, binary, floor)
        self.components, self.draws = components, size + 1
        self.output = Linear(dim, components * (1 + 2 * len(self.real) + len(self.binary)))

    @torch.no_grad()
    def spread_means(self) -> None:
        """Initialise the means at random: equal components would stay equal."""
        assert isinstance(self.output, nn.Linear)
        each = self.output.bias[self.components :].view(self.components, -1)
        each[:, : len(self.real)].normal_()

    def _parts(self, raw: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Logits of weights (*B, K), means and deviations (*B, K, real), log-odds (*B, K, ...)."""
        K, R = self.components, len(self.real)
        each = raw[..., K:].reshape(*raw.shape[:-1], K, -1)
        deviation = self._deviation(each[..., R : 2 * R])
        return raw[..., :K], each[..., :R], deviation, each[..., 2 * R :]

    def nll(self, raw: Float[Tensor, "*B n"], values: Float[Tensor, "*B F"]) -> Float[Tensor, "*B"]:
        logits, mean, deviation, odds = self._parts(raw)
        real, binary = self._split(values.float().unsqueeze(-2))
        log_p = _log_p(real, binary, mean, deviation, odds)  # (*B, K)
        return -(logits.log_softmax(-1) + log_p).logsumexp(-1)

    def mean(self, raw: Float[Tensor, "*B n"]) -> Float[Tensor, "*B F"]:
        logits, mean, _, odds = self._parts(raw)
        each = self._joined(mean, odds.sigmoid())  # (*B, K, F)
        return (logits.softmax(-1).unsqueeze(-1) * each).sum(-2)

    def sample(
        self, raw: Float[Tensor, "*B n"], uniforms: Float[Tensor, "*B U"], temperature: float = 1.0
    ) -> Float[Tensor, "*B F"]:
        logits, mean, deviation, odds = self._parts(raw)
        cdf = (logits / temperature).softmax(-1).cumsum(-1)
        chosen = (cdf <= uniforms[..., :1] * cdf[..., -1:]).sum(-1).clamp(max=cdf.size(-1) - 1)

        def of(parts: Tensor) -> Tensor:
            index = chosen[..., None, None].expand(*chosen.shape, 1, parts.size(-1))
            return parts.gather(-2, index).squeeze(-2)

        u_real, u_binary = self._split(uniforms[..., 1:])
        real = of(mean) + sqrt(temperature) * of(deviation) * _normal(u_real)
        return self._joined(real, (u_binary < (of(odds) / temperature).sigmoid()).float())

    def cdf(
        self, raw: Float[Tensor, "*B n"], values: Float[Tensor, "*B F"]
    ) -> Float[Tensor, "*B F"]:
        logits, mean, deviation, odds = self._parts(raw)
        weights = logits.softmax(-1).unsqueeze(-1)
        real, binary = self._split(values.float())
        below = torch.special.ndtr((real.unsqueeze(-2) - mean) / deviation)  # (*B, K, real)
        probability = (weights * odds.sigmoid()).sum(-2)
        return self._joined((weights * below).sum(-2), _binary_cdf(probability, binary))

    def quantiles(
        self, raw: Float[Tensor, "*B n"], levels: Float[Tensor, "Q"]
    ) -> Float[Tensor, "*B F Q"]:
        """By bisection: a mixture's quantile lies between those of its components."""
        logits, mean, deviation, odds = self._parts(raw)
        levels, weights = levels.to(raw), logits.softmax(-1)[..., None, None]
        mean, deviation = mean.unsqueeze(-1), deviation.unsqueeze(-1)  # (*B, K, real, 1)
        each = mean + deviation * torch.special.ndtri(levels)  # (*B, K, real, Q)
        low, high = each.amin(-3), each.amax(-3)
        for _ in range(BISECTIONS):
            middle = low + (high - low) / 2
            below = torch.special.ndtr((middle.unsqueeze(-3) - mean) / deviation)
            less = (weights * below).sum(-3) < levels
            low, high = torch.where(less, middle, low), torch.where(less, high, middle)
        probability = (weights.squeeze(-1) * odds.sigmoid()).sum(-2)
        return self._joined(high, _binary_quantiles(probability, levels), -2)


def _log_p(
    real: Tensor, binary: Tensor, mean: Tensor, deviation: Tensor, odds: Tensor
) -> Float[Tensor, "*B"]:
    """log p, summed over the numbers that are not missing."""
    known = ~real.isnan()
    error = (real.nan_to_num(0.0) - mean) / deviation
    error = error.clamp(-MAX_DEVIATIONS, MAX_DEVIATIONS)
    density = -0.5 * (error * error + log(2 * pi)) - deviation.log()
    total = density.where(known, 0.0).sum(-1)
    if not odds.size(-1):
        return total
    known, value = ~binary.isnan(), binary.nan_to_num(0.0)
    return total + (value * odds - F.softplus(odds)).where(known, 0.0).sum(-1)


def _normal(uniforms: Tensor) -> Tensor:
    """Standard normal numbers from uniform ones in [0, 1)."""
    drawn: Tensor = torch.special.ndtri(uniforms.double().clamp(1e-15, 1 - 1e-15))
    return drawn.float()


def _binary_cdf(probability: Tensor, values: Tensor) -> Tensor:
    return torch.where(values < 0, 0.0, torch.where(values < 1, 1 - probability, 1.0))


def _binary_quantiles(probability: Tensor, levels: Tensor) -> Tensor:
    return (levels > (1 - probability).unsqueeze(-1)).float()
