"""The parts of a forecast: normalisation of a window, and the distribution of the next steps.

B windows, S steps of look-back, H steps of horizon, N series, C of them in a window (1, or all),
K known covariates, P covariates of the past.
"""

from math import log, pi
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

EPSILON = 1e-5  # of a variance
FLOOR = 1e-3  # of a deviation, in units of the training rows'
SPEED = 10.0  # factor of the learning rate of a log-deviation
LOG_ROOT = 0.5 * log(2 * pi)


class Effects(nn.Module):
    """Additive effects for each series: a seasonal cycle, and known covariates.

    Subtracted from the look-back and added to the forecast, so that the rest has less to explain.
    Cycles: Lin et al. 2024, arxiv.org/abs/2409.18479     (N, W), (N, K)
    """

    def __init__(self, series: int, season: int, known: int):
        super().__init__()
        self.season = season
        self.cycle = nn.Parameter(torch.empty(series, season)) if season > 1 else None
        self.known = nn.Parameter(torch.empty(series, known)) if known else None

    def reset_parameters(self) -> None:
        for table in (self.cycle, self.known):
            if table is not None:
                nn.init.zeros_(table)

    def forward(
        self,
        series: Int[Tensor, "B C"],
        steps: Int[Tensor, "B n"],
        known: Float[Tensor, "B n K"],
    ) -> Float[Tensor, "B n C"]:
        """The effects at these steps."""
        effects = known.new_zeros(*steps.shape, series.size(1))
        if self.cycle is not None:
            effects = effects + self.cycle[series[:, None], (steps % self.season)[:, :, None]]
        if self.known is not None:
            effects = effects + known @ self.known[series].mT
        return effects


class Level(NamedTuple):
    """What a window was normalised by."""

    centre: Float[Tensor, "B 1 C"]
    scale: Float[Tensor, "B 1 C"]


def normalised(
    x: Float[Tensor, "B S C"], centre: Literal["last", "mean", "none"], scale: bool
) -> tuple[Float[Tensor, "B S C"], Level]:
    """A window normalised by its own level and deviation, which are added back to its forecast.

    Kim et al. 2022 (RevIN); with the last value, NLinear, arxiv.org/abs/2205.13504
    """
    middle = torch.zeros_like(x[:, :1])
    if centre != "none":
        middle = x[:, -1:] if centre == "last" else x.mean(1, keepdim=True)
    size = torch.ones_like(middle)
    if scale:
        size = (x.var(1, keepdim=True, correction=0) + EPSILON).sqrt()
    return (x - middle) / size, Level(middle, size)


class Shortcut(nn.Module):
    """A linear map from the look-back of a series to its forecast, the same for all series.

    Zeng et al. 2023, arxiv.org/abs/2205.13504; of covariates of the past, too.     (H, (1 + P) S)
    """

    def __init__(self, lookback: int, horizon: int, past: int):
        super().__init__()
        self.lookback = lookback
        self.weight = nn.Parameter(torch.empty(horizon, (1 + past) * lookback))
        self.bias = nn.Parameter(torch.empty(horizon))

    def reset_parameters(self) -> None:
        """The mean of the look-back; covariates have no effect."""
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)
        with torch.no_grad():
            self.weight[:, : self.lookback] = 1 / self.lookback

    def forward(
        self, x: Float[Tensor, "B S C"], past: Float[Tensor, "B S P"]
    ) -> Float[Tensor, "B H C"]:
        S = self.lookback
        forecast = torch.einsum("hs,bsc->bhc", self.weight[:, :S], x) + self.bias[:, None]
        if past.size(-1):
            covariates = past.mT.flatten(1)  # (B, P S)
            forecast = forecast + (covariates @ self.weight[:, S:].mT).unsqueeze(-1)
        return forecast


class ForecastScale(nn.Module):
    """The deviation of a forecast at each step: one per series, which may scale with the window's.

    log s = 10 a + b log (the window's deviation): with it a few hundred small steps reach factors
    from 0.01 to 100.     (N, H), (N,)
    """

    def __init__(self, series: int, horizon: int):
        super().__init__()
        self.own = nn.Parameter(torch.empty(series, horizon))
        self.follow = nn.Parameter(torch.empty(series))

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.own)
        nn.init.zeros_(self.follow)

    def forward(
        self, series: Int[Tensor, "B C"], window: Float[Tensor, "B 1 C"], more: Tensor | float
    ) -> Float[Tensor, "B H C"]:
        size = SPEED * self.own[series].mT + self.follow[series][:, None] * window.log()
        return FLOOR + (size + more).clamp(max=20.0).exp()


def gaussian_nll(
    error: Float[Tensor, "B H C"], deviation: Float[Tensor, "B H C"]
) -> Float[Tensor, "B H C"]:
    """-log p of numbers with these errors."""
    return 0.5 * (error / deviation) ** 2 + deviation.log() + LOG_ROOT


def weighted_nll(
    values: Float[Tensor, "B H C"],
    mean: Float[Tensor, "B H C"],
    deviation: Float[Tensor, "B H C"],
    beta: float,
) -> tuple[Float[Tensor, ""], Float[Tensor, ""], int]:
    """The loss with a gradient, the sum of -log p, and the number of values that are not NaN.

    The gradient of means is that of -log p weighted by the (detached) variance to the power beta:
    with 1 that of squared errors, so that no step is neglected because it is hard. The gradient of
    deviations is that of -log p itself. Seitzer et al. 2022, arxiv.org/abs/2203.09168
    """
    known = ~values.isnan()
    error, fixed = values.nan_to_num(0.0) - mean, deviation.detach()

    plain = gaussian_nll(error.detach(), deviation).where(known, 0.0)
    means = (fixed ** (2 * beta) * gaussian_nll(error, fixed)).where(known, 0.0)
    return plain.sum() + means.sum() - means.detach().sum(), plain.sum().detach(), int(known.sum())
