"""Sound: files of any sample rate and channels, as log-mel frames; extra `audio`."""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from saccade import config as c
from saccade.data.corpora import Array
from saccade.data.detect import is_array
from saccade.data.media import Cell, Fitting, generator, required
from saccade.data.numbers import Moments, NumbersField, centred, series_of, shape_of
from saccade.errors import ConfigError, DataError
from saccade.nn.padded import Padded

MAX_SECONDS = 1200  # of a file
MAX_CHANNELS = 64
MEASURED = 500  # sounds of the training data from which mean and deviation are estimated
QUIETEST = 1e-10  # lower limit of a band's energy, before the logarithm


class SoundField(NumbersField):
    """Log-mel frames (S, F), normalised; with speed perturbation, three variants of each sound."""

    dtype = np.float16
    reader: c.Sound

    @property
    def variants(self) -> int:
        return 3 if self.reader.speed else 1

    def make(self, cell: Cell) -> Array:
        return self.variant(cell, 0)

    def variant(self, cell: Cell, number: int) -> Array:
        factor = (1.0, 1.0 - self.reader.speed, 1.0 + self.reader.speed)[number]
        if is_frames(cell):
            return self.normalised(stretched(series_of(cell), factor), cell)
        samples = samples_of(cell, round(self.reader.rate / factor))  # then taken for `rate`
        return self.normalised(log_mel(torch.from_numpy(samples), self.reader).numpy(), cell)

    def measure(self, cell: Cell) -> int:
        return measured(cell, self.reader)

    def collate(self, rows: Sequence[Array], keys: Sequence[Any] | None) -> Padded:
        batch = super().collate(rows, None)
        reader = self.reader
        if keys is not None and (reader.band_masks or reader.time_masks):
            for b, key in enumerate(keys):
                silence(batch.values[b, : len(rows[b])], reader, key)
        return batch

    @classmethod
    def load(cls, path: Path) -> Self:
        return cls.loaded(path, c.Sound)


class SoundFitting(Fitting):
    def __init__(self, reader: c.Sound, cache_bytes: int):
        super().__init__(cache_bytes)
        self.reader, self.moments = reader, Moments()

    def add(self, cell: Cell) -> int:
        frames = measured(cell, self.reader)
        if len(self.seen) <= MEASURED:
            self.moments.add(centred(frames_of(cell, self.reader), self.reader), cell.lead)
        rows = 3 if self.reader.speed else 1
        return 2 * rows * frames * len(self.moments.mean)

    def field(self) -> SoundField:
        return SoundField(self.reader, self.moments.mean, self.moments.deviation, self.stored)


# --- reading --------------------------------------------------------------------------------------


def libraries() -> Any:
    """soundfile and soxr; ConfigError where they are not installed."""
    try:
        import soundfile
        import soxr
    except (ImportError, OSError):
        raise ConfigError("sound needs soundfile: pip install 'saccade[audio]'") from None
    return soundfile, soxr


def is_frames(cell: Cell) -> bool:
    """Whether a cell holds precomputed frames."""
    return cell.inline or is_array(cell.text)


def measured(cell: Cell, reader: c.Sound) -> int:
    """The number of frames of a sound, from its header; DataError if it is invalid or too long."""
    if is_frames(cell):
        return len(series_of(cell)) if cell.inline else shape_of(cell)[0]
    samples, rate = header_of(cell)
    return 1 + -(-samples * reader.rate // rate) // reader.hop


def header_of(cell: Cell) -> tuple[int, int]:
    """The number of samples of a file, and its sample rate; DataError if it cannot be read."""
    soundfile, _ = libraries()
    path = required(cell)
    try:
        info = soundfile.info(path)
        samples, rate, channels = int(info.frames), int(info.samplerate), int(info.channels)
    except Exception as error:  # soundfile's errors have no common base class
        what = str(error).removeprefix(f"Error opening {path!r}: ").rstrip(".")
        raise DataError(f"{cell.lead}: {what}; save it as WAV or FLAC") from None
    if samples <= 0 or rate <= 0:
        raise DataError(f"{cell.lead}: has no samples; remove the example, or record it again")
    if samples > MAX_SECONDS * rate:
        long = f"{samples / rate / 60:,.0f} minutes"
        raise DataError(
            f"{cell.lead}: is {long} long, the limit is {MAX_SECONDS // 60}; cut it into sentences"
        )
    if channels > MAX_CHANNELS:
        raise DataError(f"{cell.lead}: has {channels} channels; mix them into one")
    return samples, rate


def samples_of(cell: Cell, rate: int) -> Array:
    """The samples of a file, mixed to mono and resampled to this rate."""
    soundfile, soxr = libraries()
    header_of(cell)
    try:
        samples, file_rate = soundfile.read(required(cell), dtype="float32", always_2d=True)
    except Exception as error:
        raise DataError(f"{cell.lead}: damaged: {error}; copy or save it again") from None
    if not len(samples):
        raise DataError(f"{cell.lead}: has no samples; remove the example, or record it again")
    if not np.isfinite(samples).all():
        raise DataError(f"{cell.lead}: has samples that are not finite; save it again")
    mono = samples.mean(1)
    if file_rate != rate:
        mono = soxr.resample(mono, file_rate, rate)
    return np.ascontiguousarray(mono, np.float32)


def frames_of(cell: Cell, reader: c.Sound) -> Array:
    """The frames of a sound, before normalisation."""
    if is_frames(cell):
        return series_of(cell)
    samples = torch.from_numpy(samples_of(cell, reader.rate))
    return log_mel(samples, reader).numpy().astype(np.float64)


def log_mel(samples: Float[Tensor, "n"], reader: c.Sound) -> Float[Tensor, "frames bands"]:
    """The log-mel spectrogram of a signal."""
    size = fft_size(reader)
    window = torch.hann_window(reader.window)
    edge = size // 2
    padded = torch.nn.functional.pad(samples, (edge, edge))  # the first frame is centred on 0
    spectrum = torch.stft(
        padded, size, reader.hop, reader.window, window, center=False, return_complex=True
    )
    energy = spectrum.abs().square()  # (frequencies, frames)
    bands = mel_filters(reader.rate, size, reader.bands) @ energy
    return bands.clamp(min=QUIETEST).log().T


def fft_size(reader: c.Sound) -> int:
    """The window rounded up to a power of two, for which the FFT is fastest."""
    return 1 << (reader.window - 1).bit_length()


@lru_cache(maxsize=8)
def mel_filters(rate: int, size: int, bands: int) -> Float[Tensor, "bands frequencies"]:
    """Triangular filters of equal area, evenly spaced on Slaney's mel scale (Auditory Toolbox)."""
    frequencies = torch.arange(size // 2 + 1, dtype=torch.float64) * rate / size
    edges = hertz(torch.linspace(0.0, float(mel(rate / 2)), bands + 2, dtype=torch.float64))
    rising = (frequencies - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    falling = (edges[2:, None] - frequencies) / (edges[2:] - edges[1:-1])[:, None]
    triangles = torch.minimum(rising, falling).clamp(min=0.0)
    return (triangles * (2.0 / (edges[2:] - edges[:-2]))[:, None]).float()


KNEE_HERTZ = 1000.0  # below it the scale is linear, 15 mels; above it logarithmic
MELS_AT_KNEE = 15.0
LOG_STEP = np.log(6.4) / 27.0


def mel(frequency: float) -> float:
    if frequency < KNEE_HERTZ:
        return frequency * MELS_AT_KNEE / KNEE_HERTZ
    return MELS_AT_KNEE + float(np.log(frequency / KNEE_HERTZ)) / float(LOG_STEP)


def hertz(mels: Float[Tensor, "n"]) -> Float[Tensor, "n"]:
    above = KNEE_HERTZ * torch.exp(LOG_STEP * (mels - MELS_AT_KNEE))
    return torch.where(mels < MELS_AT_KNEE, mels * KNEE_HERTZ / MELS_AT_KNEE, above)


# --- augmentation ---------------------------------------------------------------------------------


def stretched(frames: Array, factor: float) -> Array:
    """Precomputed frames at another speed, by linear interpolation in time."""
    if factor == 1.0:
        return frames
    times = np.arange(0.0, len(frames) - 0.999, factor)
    low = np.minimum(times.astype(int), len(frames) - 1)
    high, weight = np.minimum(low + 1, len(frames) - 1), (times - low)[:, None]
    result: Array = frames[low] * (1.0 - weight) + frames[high] * weight
    return result


def silence(frames: Float[Tensor, "S F"], reader: c.Sound, key: Any) -> None:
    """SpecAugment: random bands and spans of time set to the mean, in place, seeded by the key.

    Park et al. 2019, arxiv.org/abs/1904.08779
    """
    draw = generator(key)
    length, bands = frames.shape
    for _ in range(reader.band_masks):
        width = int(draw.integers(0, min(reader.band_width, bands - 1) + 1))
        first = int(draw.integers(0, bands - width + 1))
        frames[:, first : first + width] = 0.0
    for _ in range(reader.time_masks):
        width = int(draw.integers(0, int(reader.time_share * length) + 1))
        first = int(draw.integers(0, length - width + 1))
        frames[first : first + width] = 0.0
