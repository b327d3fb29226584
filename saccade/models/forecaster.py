"""Networks that forecast: a window of series to the steps after it.

A window is three sources: the look-back (B, S, C + covariates), its place (B, 1 + C: the step of
the first target, and the numbers of the series), and the known covariates of the horizon (B, H, K).
"""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from saccade.models.decoders import Decoder
from saccade.models.encoders import Encoder
from saccade.models.heads import Pooled
from saccade.nn.distributions import Distribution
from saccade.nn.horizon import (
    Effects,
    ForecastScale,
    Level,
    Shortcut,
    gaussian_nll,
    normalised,
    weighted_nll,
)
from saccade.nn.loss import Loss
from saccade.nn.padded import Padded


class FramedWindow(NamedTuple):
    """A normalised window, and what undoes the normalisation of its forecast."""

    own: Float[Tensor, "B S C"]
    past: Float[Tensor, "B S P"]
    known: Float[Tensor, "B S K"]
    level: Level
    effects: Float[Tensor, "B H C"]  # of the horizon
    series: Tensor  # (B, C)

    @property
    def source(self) -> Padded:
        """The input of an encoder: the look-back with its covariates."""
        values = torch.cat([self.own, self.past, self.known], -1)
        return Padded(values, torch.full((values.size(0),), values.size(1)))

    def unframe(self, forecast: Float[Tensor, "B H C"]) -> Float[Tensor, "B H C"]:
        """A normalised forecast in the units of the series."""
        return forecast * self.level.scale + self.level.centre + self.effects


class Normal(NamedTuple):
    """A Gaussian of each number of a forecast."""

    mean: Float[Tensor, "B H C"]
    deviation: Float[Tensor, "B H C"]


class WindowFrame(nn.Module):
    """Removes effects, level and scale from a window."""

    def __init__(
        self,
        lookback: int,
        horizon: int,
        channels: int,
        known: int,
        effects: Effects,
        centre: Literal["last", "mean", "none"],
        scale: bool,
    ):
        super().__init__()
        self.lookback, self.horizon, self.channels, self.known = lookback, horizon, channels, known
        self.effects, self.centre, self.scale = effects, centre, scale

    def forward(self, sources: Sequence[Padded]) -> FramedWindow:
        window, place, future = (source.values for source in sources)
        S, H, C = self.lookback, self.horizon, self.channels
        window, future = window[:, :S].float(), future[:, :H].float()
        sizes = [C, window.size(-1) - C - self.known, self.known]
        own, past, known = torch.split(window, sizes, -1)
        step, series = place[:, :1], place[:, 1 : 1 + C]
        places = torch.arange(-S, H, device=step.device)
        effects = self.effects(series, step + places, torch.cat([known, future], 1))
        own, level = normalised(own - effects[:, :S], self.centre, self.scale)
        if past.size(-1):
            past, _ = normalised(past, self.centre, self.scale)
        return FramedWindow(own, past, known, level, effects[:, S:], series)

    def targets(self, target: Padded) -> Float[Tensor, "B H C"]:
        return target.values[:, : self.horizon].float()


class Forecaster(nn.Module):
    """All steps at once: a linear function of the look-back, the output of an encoder, or both."""

    carries = False

    def __init__(
        self,
        frame: WindowFrame,
        shortcut: Shortcut | None,
        encoder: Encoder | None,
        head: Pooled | None,
        spread: ForecastScale,
        beta: float,
    ):
        super().__init__()
        self.frame, self.shortcut, self.spread, self.beta = frame, shortcut, spread, beta
        self.encoder, self.head = encoder, head

    def forward(self, batch: Any, carry: Any = None, progress: float = 1.0) -> tuple[Loss, None]:
        predicted, values = self.normal(batch.sources), self.frame.targets(batch.target)
        loss, nll, count = weighted_nll(values, predicted.mean, predicted.deviation, self.beta)
        return Loss(loss, nll, count), None

    def nll(self, sources: Sequence[Padded], target: Padded) -> Float[Tensor, "B"]:
        """-log p of each window's target."""
        predicted, values = self.normal(sources), self.frame.targets(target)
        found = gaussian_nll(values.nan_to_num(0.0) - predicted.mean, predicted.deviation)
        return found.where(~values.isnan(), 0.0).sum((1, 2))

    def normal(self, sources: Sequence[Padded]) -> Normal:
        """The distribution of each step."""
        window = self.frame(sources)
        forecast: Tensor | float = 0.0
        more: Tensor | float = 0.0
        if self.shortcut is not None:
            forecast = self.shortcut(window.own, window.past)
        if self.encoder is not None and self.head is not None:
            predicted = self.head(self.encoder(window.source)).float()
            H, C = self.frame.horizon, self.frame.channels
            added, more = predicted.view(-1, 2, H, C).unbind(1)
            forecast = forecast + added
        assert isinstance(forecast, Tensor)
        spread = self.spread(window.series, window.level.scale, more)
        return Normal(window.unframe(forecast), spread)


class StepForecaster(nn.Module):
    """Autoregressive: a decoder reads the last value and predicts a distribution of the next."""

    carries = False

    def __init__(self, frame: WindowFrame, encoder: Encoder, decoder: Decoder):
        super().__init__()
        self.frame, self.encoder, self.decoder = frame, encoder, decoder

    @property
    def distribution(self) -> Distribution:
        output = self.decoder.output
        assert isinstance(output, Distribution)
        return output

    def forward(self, batch: Any, carry: Any = None, progress: float = 1.0) -> tuple[Loss, None]:
        nll = self.nll(batch.sources, batch.target).sum()
        count = int((~self.frame.targets(batch.target).isnan()).sum())
        return Loss(nll, nll.detach(), count), None

    def nll(self, sources: Sequence[Padded], target: Padded) -> Float[Tensor, "B"]:
        """-log p of each window's target: teacher forcing.

        It is a density of the series themselves, whatever the window was divided by.
        """
        window, state = self.start(sources)
        values = self.frame.targets(target) - window.effects - window.level.centre
        values = values / window.level.scale
        inputs = torch.cat([window.own[:, -1:], values[:, :-1]], 1)
        raw, _ = self.decoder(inputs, state)
        scale = window.level.scale.log().expand_as(values).where(~values.isnan(), 0.0)
        return self.distribution.nll(raw, values).sum(1) + scale.sum((1, 2))

    def start(self, sources: Sequence[Padded]) -> tuple[FramedWindow, Any]:
        """The window, and the decoder's state before its first step."""
        window = self.frame(sources)
        memory = self.encoder(window.source)
        return window, self.decoder.start(memory, window.own.size(0))


AnyForecaster = Forecaster | StepForecaster
