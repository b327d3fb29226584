"""Fields of media: a file to a row, whatever it is like, or a kind sentence that says why not."""

import json
import os
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from PIL import Image

from saccade import config as c
from saccade.data.detect import array_path, media_kind
from saccade.data.media import Cell, Features, required
from saccade.data.numbers import Moments, NumbersField, NumbersFitting, series_of
from saccade.data.pictures import PictureField, PictureFitting, augmented, decoded
from saccade.data.sounds import SoundField, SoundFitting, log_mel, samples_of, stretched
from saccade.data.targets import rows_of, target_cell
from saccade.errors import CheckpointError, DataError
from tests.media import shapes, tone

PICTURE = c.Picture(height=16, width=16, cell=8)
WHITE, BLACK, GREY = 255, 0, 128


# --- pictures -------------------------------------------------------------------------------------


def saved(folder: Path, image: Image.Image, name: str = "x.png", **how: Any) -> Cell:
    image.save(folder / name, **how)
    return Cell(name, str(folder))


def test_what_is_transparent_is_white(tmp_path: Path) -> None:
    for mode in ("RGBA", "LA"):
        cell = saved(tmp_path, Image.new(mode, (20, 20)))
        assert decoded(cell, PICTURE).min() == WHITE


def test_sixteen_bits_become_eight(tmp_path: Path) -> None:
    half = Image.fromarray(np.full((20, 20), 128 * 257, np.uint16))
    assert set(np.unique(decoded(saved(tmp_path, half), PICTURE))) == {GREY}


def test_cmyk_and_palettes_are_read_as_colours(tmp_path: Path) -> None:
    cell = saved(tmp_path, Image.new("CMYK", (20, 20), (0, 255, 255, 0)), "x.jpg", quality=95)
    red, green, blue = decoded(cell, PICTURE)[8, 8].tolist()
    assert red > 200 > 90 > max(green, blue)
    cell = saved(tmp_path, Image.new("P", (20, 20), 0), "x.gif")
    assert decoded(cell, PICTURE).shape == (16, 16, 3)


def test_of_an_animation_the_first_picture_is_read(tmp_path: Path) -> None:
    frames = [Image.new("L", (20, 20), shade) for shade in (BLACK, WHITE)]
    cell = saved(tmp_path, frames[0], "x.gif", save_all=True, append_images=frames[1:])
    assert decoded(cell, PICTURE).max() < 10


def test_one_pixel_fills_the_picture(tmp_path: Path) -> None:
    cell = saved(tmp_path, Image.new("RGB", (1, 1), (9, 8, 7)))
    assert np.unique(decoded(cell, PICTURE), axis=1).squeeze().tolist() == [[9, 8, 7]] * 16


def test_a_picture_is_turned_as_its_tag_says(tmp_path: Path) -> None:
    pixels = np.zeros((20, 20, 3), np.uint8)
    pixels[:10] = WHITE  # the upper half
    image, tags = Image.fromarray(pixels), Image.Exif()
    tags[0x0112] = 6  # to be turned by 90 degrees: what is up comes to the right
    cell = saved(tmp_path, image, "x.png", exif=tags)
    found = decoded(cell, PICTURE)
    assert found[:, 12:].mean() > 250
    assert found[:, :4].mean() < 5


def test_the_middle_of_a_wide_picture_is_seen(tmp_path: Path) -> None:
    pixels = np.zeros((20, 60), np.uint8)
    pixels[:, 20:40] = WHITE
    found = decoded(saved(tmp_path, Image.fromarray(pixels)), c.Picture(height=16, width=16))
    assert found.min() > 230


def bomb(side: int) -> bytes:
    """A PNG that says it has side * side pixels, and has none."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        crc = zlib.crc32(kind + data)
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", crc)

    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" * 100)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


@pytest.mark.parametrize("side", [10_000, 100_000])
def test_a_bomb_is_refused_before_it_is_decoded(
    side: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "x.png").write_bytes(bomb(side))
    monkeypatch.setattr(Image.Image, "load", lambda self: pytest.fail("a pixel was decoded"))
    with pytest.raises(DataError, match=r"x\.png: .*: larger than the limit of 67,108,864 pixels"):
        decoded(Cell("x.png", str(tmp_path)), PICTURE)


def test_a_truncated_picture_is_named(tmp_path: Path) -> None:
    noise = np.random.default_rng(1).integers(0, 255, (64, 64, 3)).astype(np.uint8)
    cell = saved(tmp_path, Image.fromarray(noise), "x.jpg")
    whole = (tmp_path / "x.jpg").read_bytes()
    for share in (0.5, 0.9):
        (tmp_path / "x.jpg").write_bytes(whole[: int(share * len(whole))])
        with pytest.raises(DataError, match=r"x\.jpg: damaged: .*; copy or save it again"):
            decoded(cell, PICTURE)
    (tmp_path / "x.jpg").write_bytes(b"")
    with pytest.raises(DataError, match=r"x\.jpg: not a readable image; save it as PNG"):
        decoded(cell, PICTURE)


@pytest.mark.parametrize("suffix", [".eps", ".fpx", ".pdf"])
def test_formats_that_run_programs_are_not_tried(suffix: str, tmp_path: Path) -> None:
    (tmp_path / f"x{suffix}").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n")
    with pytest.raises(DataError, match="not a readable image"):
        decoded(Cell(f"x{suffix}", str(tmp_path)), PICTURE)


def test_cells_of_a_batch_are_squares_of_the_picture(tmp_path: Path) -> None:
    pixels = np.arange(16 * 16 * 3, dtype=np.uint8).reshape(16, 16, 3)
    found = PictureField(PICTURE).collate([pixels], None)
    assert found.values.shape == (1, 4, 8 * 8 * 3)
    assert found.lengths.tolist() == [4]
    assert torch.equal(found.values[0, 1].view(8, 8, 3), torch.from_numpy(pixels[:8, 8:].copy()))


# --- sound ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "reader", [c.Sound(), c.Sound(rate=8000, bands=40), c.Sound(window_ms=32.0, hop_ms=8.0)]
)
def test_log_mel_is_librosas(reader: c.Sound) -> None:
    librosa = pytest.importorskip("librosa")
    samples = np.random.default_rng(1).normal(size=reader.rate).astype(np.float32) * 0.1
    samples += np.sin(np.arange(reader.rate) * 0.3).astype(np.float32)
    size = 1 << (reader.window - 1).bit_length()
    energy = librosa.feature.melspectrogram(
        y=samples, sr=reader.rate, n_fft=size, hop_length=reader.hop, win_length=reader.window,
        n_mels=reader.bands,
    )  # fmt: skip
    theirs = np.log(np.maximum(energy, 1e-10)).T
    ours = log_mel(torch.from_numpy(samples), reader).numpy()
    assert ours.shape == theirs.shape
    assert np.abs(ours - theirs).max() < 1e-4


def field_of(reader: c.Sound, *cells: Cell) -> SoundField:
    fitting = SoundFitting(reader, 1 << 30)
    for cell in cells:
        fitting.look(cell)
    return fitting.field()


@pytest.mark.parametrize("suffix", ["wav", "flac", "ogg"])
@pytest.mark.parametrize("rate", [8000, 22050, 48000])
def test_any_format_and_rate_gives_the_same_frames(suffix: str, rate: int, tmp_path: Path) -> None:
    tone(tmp_path / "plain.wav", 440.0, 0.5, 16000)
    tone(tmp_path / f"x.{suffix}", 440.0, 0.5, rate)
    cells = Cell("plain.wav", str(tmp_path)), Cell(f"x.{suffix}", str(tmp_path))
    field = field_of(c.Sound(bands=20, stride=1), cells[0])
    loud = [field.make(cell) * field.deviation + field.mean for cell in cells]
    plain, other = loud
    assert abs(len(plain) - len(other)) <= 1
    assert plain.mean(0).argmax() == other[: len(plain)].mean(0).argmax()
    assert field.measure(cells[1]) == len(other)


def test_channels_are_mixed_into_one(tmp_path: Path) -> None:
    left = np.linspace(-0.5, 0.5, 800)
    soundfile.write(tmp_path / "x.wav", np.stack([left, -left, left], 1), 8000)
    mixed = samples_of(Cell("x.wav", str(tmp_path)), 8000)
    assert np.abs(mixed - left / 3).max() < 1e-3


def test_sound_that_is_none_is_named(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "empty.wav", np.zeros(0), 8000)
    holes = np.full(800, np.nan, np.float32)
    soundfile.write(tmp_path / "holes.wav", holes, 8000, subtype="FLOAT")
    (tmp_path / "text.wav").write_text("this is no sound")
    (tmp_path / "nothing.wav").write_bytes(b"")
    field = field_of(c.Sound(rate=8000))

    def problem(name: str) -> str:
        return field.problem(Cell(name, str(tmp_path)))

    assert "empty.wav: has no samples; remove the example" in problem("empty.wav")
    assert "holes.wav: has samples that are not finite; save it again" in problem("holes.wav")
    assert "save it as WAV or FLAC" in problem("text.wav")
    assert "save it as WAV or FLAC" in problem("nothing.wav")
    assert "no such file; check the path" in problem("gone.wav")


def test_three_hours_are_refused_before_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = 3 * 3600 * 1000
    soundfile.write(tmp_path / "x.flac", np.zeros(samples, np.int16), 1000)
    monkeypatch.setattr(soundfile, "read", lambda *_, **__: pytest.fail("it was read"))
    problem = field_of(c.Sound()).problem(Cell("x.flac", str(tmp_path)))
    assert "is 180 minutes long, the limit is 20; cut it into sentences" in problem


def test_ready_frames_are_read_as_they_are(tmp_path: Path) -> None:
    frames = np.random.default_rng(1).normal(5.0, 2.0, (50, 13))
    np.save(tmp_path / "x.npy", frames)
    np.savez(tmp_path / "y.npz", one=frames, two=2 * frames)
    field = field_of(c.Sound(), Cell("x.npy", str(tmp_path)))
    made = field.make(Cell("x.npy", str(tmp_path))).astype(float)
    assert abs(made.mean()) < 0.01
    assert abs(made.std() - 1) < 0.01
    two = field.make(Cell("y.npz#two", str(tmp_path))).astype(float)
    assert np.abs(two - (2 * frames - frames.mean(0)) / frames.std(0)).max() < 0.01
    assert "which array? Write y.npz#NAME; it has one, two" in field.problem(
        Cell("y.npz", str(tmp_path))
    )


@pytest.mark.parametrize(
    "name", ["x.npy", "X.NPY", "x.npz#a", "X.NPZ#a", "X.NPZ", "c#1/x.npy", "c#1/X.Npz#a#b"]
)
def test_a_cell_names_one_array_wherever_it_is_read(name: str, tmp_path: Path) -> None:
    frames = np.random.default_rng(1).normal(5.0, 2.0, (50, 13))
    file, member = array_path(name)
    path = tmp_path / file
    path.parent.mkdir(exist_ok=True)
    with path.open("wb") as stream:
        if file[-1] in "zZ":
            np.savez(stream, **{member or "a": frames})
        else:
            np.save(stream, frames)
    cell = Cell(name, str(tmp_path))
    assert media_kind([name]) == "numbers"
    assert required(cell) == str(path)
    assert np.array_equal(series_of(cell), frames)
    assert field_of(c.Sound(), cell).measure(cell) == len(frames)
    assert np.array_equal(rows_of(target_cell(name, str(tmp_path), None, ""), True), frames)


def test_a_faster_sound_is_shorter_and_higher(tmp_path: Path) -> None:
    tone(tmp_path / "x.wav", 1000.0, 1.0, 8000)
    cell = Cell("x.wav", str(tmp_path))
    field = field_of(c.Sound(rate=8000, speed=0.2), cell)
    plain, slow, fast = (field.row(cell, i).astype(float) for i in range(3))
    assert len(fast) < len(plain) < len(slow)
    assert abs(len(slow) / len(plain) - 1.25) < 0.03
    loudest = [(row * field.deviation + field.mean).mean(0).argmax() for row in (slow, plain, fast)]
    assert loudest[0] < loudest[1] < loudest[2]
    frames = np.arange(20.0)[:, None]
    assert np.allclose(stretched(frames, 2.0)[:, 0], np.arange(0, 20, 2))


# --- numbers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("reader", [c.Numbers(centre=True), c.Sound(centre=True)])
def test_what_a_microphone_adds_to_every_frame_is_taken_away(reader: Any, tmp_path: Path) -> None:
    frames = np.random.default_rng(1).normal(size=(40, 3)) * [1.0, 5.0, 0.1]
    cells = []
    for i, channel in enumerate([0.0, 7.0, [1.0, -2.0, 3.0]]):
        np.save(tmp_path / f"{i}.npy", frames + channel)
        cells.append(Cell(f"{i}.npy", str(tmp_path)))
    fitting = (NumbersFitting if isinstance(reader, c.Numbers) else SoundFitting)(reader, 1 << 20)
    for cell in cells:
        fitting.look(cell)
    rows = [fitting.field().make(cell) for cell in cells]
    assert np.allclose(rows[0], rows[1], atol=1e-2)
    assert np.allclose(rows[0], rows[2], atol=1e-2)
    assert np.allclose(rows[0].astype(float).std(0), 1.0, atol=1e-2)


def test_moments_part_by_part_are_those_of_the_whole() -> None:
    rows = np.random.default_rng(1).normal(3.0, 2.0, (100, 4))
    rows[:, 3] = 1e6  # never changes
    moments = Moments()
    for part in np.split(rows, [1, 30, 31]):
        moments.add(part, "")
    assert np.allclose(moments.mean, rows.mean(0))
    assert np.allclose(moments.deviation, [*rows[:, :3].std(0), 1.0])


def test_one_vector_is_a_series_of_one(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(5))
    for cell in (Cell("[0, 1, 2, 3, 4]"), Cell("x.npy", str(tmp_path))):
        assert series_of(cell).tolist() == [[0, 1, 2, 3, 4]]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[1, NaN]", "holds NaN or infinity"),
        ("[[1, 2], [3]]", "lists of unequal length"),
        ('["a", "b"]', "holds no numbers"),
        ("[]", "shape"),
        ("[1, 2", "not a list of numbers"),
        ("[[[1]]]", "shape"),
    ],
)
def test_numbers_that_are_none_are_named(text: str, reason: str) -> None:
    with pytest.raises(DataError, match=f"x.jsonl:7: the numbers: .*{reason}"):
        series_of(Cell(text, where="x.jsonl:7"))


def test_a_pickle_is_never_loaded(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match=r"x\.npy: expected an array of numbers"):
        series_of(Cell("x.npy", str(tmp_path)))


def test_an_array_that_only_claims_its_size_is_refused_by_its_header(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((2, 2)))
    raw = (
        (tmp_path / "x.npy")
        .read_bytes()
        .replace(b"(2, 2), }" + b" " * 12, b"(99999999999, 2), }  ")
    )
    (tmp_path / "x.npy").write_bytes(raw)
    with pytest.raises(DataError, match="too large for one example"):
        series_of(Cell("x.npy", str(tmp_path)))


def test_vectors_of_another_width_are_named() -> None:
    fitting = NumbersFitting(c.Numbers(), 1 << 20)
    fitting.look(Cell("[1, 2]"))
    with pytest.raises(DataError, match=r"x:2: the numbers: has vectors of 3 numbers, and .* 2"):
        fitting.look(Cell("[1, 2, 3]", where="x:2"))
    assert "training data have 2" in fitting.field().problem(Cell("[1, 2, 3]"))


# --- paths ----------------------------------------------------------------------------------------


def test_paths_stay_in_their_folder_unless_a_root_permits_more(tmp_path: Path) -> None:
    inside, outside = tmp_path / "data", tmp_path / "secret.png"
    inside.mkdir()
    outside.write_bytes(b"x")
    (inside / "link.png").symlink_to(outside)
    (inside / "own.png").write_bytes(b"x")
    (inside / "same.png").symlink_to(inside / "own.png")
    here = str(inside)
    for text in ("../secret.png", str(outside), "link.png", "../data/../secret.png"):
        with pytest.raises(DataError, match=r"a:1: .* is outside the folder .*data\.root"):
            required(Cell(text, here, "", "a:1"))
        assert required(Cell(text, here, str(tmp_path)))
        assert required(Cell(text, here, None))
    for text in ("own.png", "same.png", "../data/own.png"):
        assert required(Cell(text, here, ""))


def test_a_pipe_or_a_folder_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.png")
    (tmp_path / "y.png").mkdir()
    for name in ("x.png", "y.png"):
        with pytest.raises(DataError, match="not a regular file"):
            required(Cell(name, str(tmp_path)))


# --- columns and augmentation ---------------------------------------------------------------------


def picture_column(folder: Path, reader: c.Picture, count: int = 6) -> Features:
    cells = [Cell(name, str(folder)) for name, _, _ in shapes(folder, count)]
    return PictureField(reader).encode(cells)


def test_augmentation_is_decided_by_seed_epoch_and_row_alone(tmp_path: Path) -> None:
    reader = c.Picture(height=16, width=16, cell=8, crop=0.2, zoom=0.2, flip=True, colour=0.3)
    reader = reader.model_copy(update={"turn": 20.0, "shear": 0.2, "tint": 0.2, "erase": 0.4})
    column = picture_column(tmp_path, reader)
    rows = np.arange(6)
    first = column.padded(rows, (1, 0)).values
    again = column.padded(rows[::-1].copy(), (1, 0)).values.flip(0)
    assert torch.equal(first, again)
    assert torch.equal(first[2:3], column.padded(np.array([2]), (1, 0)).values)
    assert not torch.equal(first, column.padded(rows, (1, 1)).values)
    assert not torch.equal(first, column.padded(rows, (2, 0)).values)
    plain = column.padded(rows).values
    assert torch.equal(plain, picture_column(tmp_path, PICTURE).padded(rows).values)


CHANGES: list[dict[str, Any]] = [
    {"crop": 0.2},
    {"zoom": 0.3},
    {"turn": 30.0},
    {"shear": 0.3},
    {"bend": 0.2},
    {"flip": True},
    {"filter": 0.7},
    {"colour": 0.5},
    {"tint": 0.3},
    {"erase": 0.5},
]


@pytest.mark.parametrize("change", CHANGES)
def test_every_augmentation_of_pictures_changes_them(
    change: dict[str, Any], tmp_path: Path
) -> None:
    reader = PICTURE.model_copy(update=change)
    column, rows = picture_column(tmp_path, reader), np.arange(6)
    assert not torch.equal(column.padded(rows, (1, 0)).values, column.padded(rows).values)


def test_a_zoomed_picture_keeps_its_middle_and_a_moved_one_its_size(tmp_path: Path) -> None:
    white = np.full((33, 33, 3), 255, np.uint8)
    white[12:21, 12:21] = 0  # a black square of 9 x 9 in the middle
    zoomed = c.Picture(height=33, width=33, cell=11, stem="patches", zoom=0.5)
    moved = c.Picture(height=33, width=33, cell=11, stem="patches", crop=0.3)
    sides, places = set(), set()
    for seed in range(40):
        black = np.argwhere(augmented(white, zoomed, seed)[..., 0] == 0)
        assert tuple(black.mean(0).round()) == (16, 16)
        sides.add(tuple(np.ptp(black, axis=0) + 1))
        black = np.argwhere(augmented(white, moved, seed)[..., 0] == 0)
        assert tuple(np.ptp(black, axis=0) + 1) == (9, 9)
        places.add(tuple(black.mean(0)))
    assert min(min(sides)) < 8 < 12 < max(max(sides))
    assert any(high != wide for high, wide in sides)
    assert len(places) > 20


def test_a_picture_is_turned_about_its_middle_by_what_is_drawn() -> None:
    bar = np.zeros((33, 33, 3), np.uint8)
    bar[4:29, 15:18] = 255  # upright, in the middle
    reader = c.Picture(height=33, width=33, cell=11, stem="patches", turn=45.0)
    angles = []
    for seed in range(40):
        seen = augmented(bar, reader, seed)[..., 0].astype(float)
        rows, columns = np.mgrid[:33, :33] - 16.0
        assert abs((rows * seen).sum() / seen.sum()) < 0.2
        assert abs((columns * seen).sum() / seen.sum()) < 0.2
        assert abs(seen.sum() / (255 * 75) - 1) < 0.05
        slope = (rows * columns * seen).sum() / (rows**2 * seen).sum()
        angles.append(np.rad2deg(np.arctan(slope)))
    assert min(angles) < -30
    assert max(angles) > 30
    assert max(map(abs, angles)) < 46


def test_a_bent_picture_moves_by_the_share_that_is_said_at_most() -> None:
    ramp = np.broadcast_to(8.0 * np.arange(32)[:, None, None], (32, 32, 3)).astype(np.uint8)
    reader = c.Picture(height=32, width=32, cell=8, bend=0.125)  # four of its rows
    moved = [augmented(ramp, reader, seed).astype(float) - ramp for seed in range(40)]
    assert 16 < np.abs(moved).max() <= 33  # in shades: eight for a row
    down = np.stack(moved)[:, 8:24, :, 0]
    assert (down.max((1, 2)) - down.min((1, 2)) > 8).all()  # not all of a picture moves alike
    steps = np.abs(np.diff(down, axis=2))
    assert steps.max() <= 10  # what is next to each other stays there


def test_a_filter_leaves_half_of_the_pictures_and_changes_surfaces_alone() -> None:
    reader = c.Picture(height=32, width=32, cell=8, filter=0.7)
    halves = np.full((32, 32, 3), 40, np.uint8)
    halves[:, 16:] = 200
    seen = [augmented(halves, reader, seed) for seed in range(60)]
    same = sum(np.array_equal(one, halves) for one in seen)
    assert 18 < same < 42
    for one in seen:  # two surfaces, with another border between them
        assert np.ptp(one[:, :15], axis=(0, 1)).max() == np.ptp(one[:, 17:], axis=(0, 1)).max() == 0
    assert len({tuple(one[0, 0]) for one in seen}) > 10


def test_a_rectangle_of_one_colour_is_erased() -> None:
    rows = np.random.default_rng(1).integers(0, 256, (32, 32, 3)).astype(np.uint8)
    reader = c.Picture(height=32, width=32, cell=8, erase=0.5)
    shares = []
    for seed in range(40):
        seen = augmented(rows, reader, seed)
        where = np.argwhere((seen != rows).any(-1))
        shares.append(len(where) / 32**2)
        if len(where):
            (top, left), (bottom, right) = where.min(0), where.max(0)
            assert (
                len(np.unique(seen[top : bottom + 1, left : right + 1].reshape(-1, 3), axis=0)) == 1
            )
    assert 0.2 < max(shares) <= 0.25


def test_spec_augment_silences_bands_and_times(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.random.default_rng(1).normal(size=(40, 20)))
    reader = c.Sound(band_masks=2, band_width=5, time_masks=2, time_share=0.3)
    cell = Cell("x.npy", str(tmp_path))
    column = field_of(reader, cell).encode([cell])
    masked = column.padded(np.zeros(1, int), (1, 3)).values[0]
    plain = column.padded(np.zeros(1, int)).values[0]
    silent = masked == 0
    assert silent.all(0).any()
    assert silent.all(1).any()
    assert torch.equal(masked[~silent], plain[~silent])


def test_speeds_are_drawn_by_the_row_and_the_epoch(tmp_path: Path) -> None:
    tone(tmp_path / "x.wav", 500.0, 0.5)
    cell = Cell("x.wav", str(tmp_path))
    column = field_of(c.Sound(rate=8000, speed=0.1), cell).encode([cell])
    lengths = {int(column.padded(np.zeros(1, int), (1, e)).lengths[0]) for e in range(20)}
    assert len(lengths) == 3
    assert int(column.padded(np.zeros(1, int)).lengths[0]) == sorted(lengths)[1]


@pytest.mark.parametrize("kind", [PictureField, NumbersField, SoundField])
def test_a_damaged_field_is_no_field(kind: Any, tmp_path: Path) -> None:
    path = tmp_path / "source.json"
    good = {"reader": {"kind": "numbers"}, "size": 2, "stored": True, "mean": [0, 0]}
    texts = ["", "[]", "{}", json.dumps(good), json.dumps(good | {"deviation": [0, 1]})]
    for text in [*texts, json.dumps(good | {"deviation": [1, "x"]}), "[" * 100_000]:
        path.write_text(text)
        with pytest.raises(CheckpointError, match="not a readable field"):
            kind.load(path)


def test_what_is_fitted_is_what_is_loaded(tmp_path: Path) -> None:
    fitting = NumbersFitting(c.Numbers(), 1 << 20)
    for text in ("[[1, 5], [2, 5]]", "[[4, 5]]"):
        fitting.look(Cell(text))
    field = fitting.field()
    field.save(tmp_path / "source.json")
    loaded = NumbersField.load(tmp_path / "source.json")
    assert loaded.make(Cell("[[3, 6]]")).tolist() == field.make(Cell("[[3, 6]]")).tolist()
    picture = PictureFitting(PICTURE, 0)
    picture.look(Cell(shapes(tmp_path, 1)[0][0], str(tmp_path)))
    assert not picture.stored
    picture.field().save(tmp_path / "source.json")
    assert PictureField.load(tmp_path / "source.json").reader == PICTURE
    assert not PictureField.load(tmp_path / "source.json").stored


def test_angles_of_a_source_are_its_sines_and_cosines() -> None:
    fitting = NumbersFitting(c.Numbers(angles="degrees", normalise=False), 1 << 20)
    fitting.look(Cell("[[0, 90], [180, 359]]", "", None, "1"))
    field = fitting.field()
    turned, plain = (field.make(Cell(f"[[{a}, 90]]", "", None, "1")) for a in (361, 1))
    assert np.allclose(turned, plain, atol=1e-6)
    assert np.allclose(plain, [[np.sin(np.pi / 180), 1, np.cos(np.pi / 180), 0]], atol=1e-6)
    with pytest.raises(
        DataError, match="vectors of 1 numbers, and those of the training data have 2"
    ):
        field.make(Cell("[[3]]", "", None, "1"))
