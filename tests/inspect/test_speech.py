"""Speech to look at: times in seconds, tokens in order, and a picture that exists."""

from pathlib import Path
from typing import Any

import pytest
import torch

import saccade
from saccade.errors import ConfigError
from saccade.inspect.command import write
from saccade.inspect.speech import SpeechAlignment, draw_speech, hear
from saccade.inspect.view import kinds, view
from saccade.runs.run import Run
from tests import media
from tests.small_runs import small_task

FIRST = "sounds/0.wav"
QUICK: dict[str, Any] = {
    "train.steps": 2, "train.processes": 1, "encoder.dim": 16, "decoder.dim": 16,
    "task.columns.1": {"kind": "sound", "rate": media.RATE, "bands": 10, "stride": 2},
}  # fmt: skip


def trained(folder: Path, **more: Any) -> Run:
    run = saccade.train(
        media.speech(folder, 30), out=folder / "run", settings=QUICK | more, quiet=True
    )
    assert isinstance(run, Run)
    return run


@pytest.mark.parametrize(("body", "frames"), [("recurrent", 2), ("pyramid", 4)])
def test_every_token_is_heard_at_a_time_within_the_sound(
    body: str, frames: int, tmp_path: Path
) -> None:
    encoder = {"kind": body, "dim": 16, "num_layers": 2}
    run = trained(tmp_path, encoder=encoder, **{"train.ctc": 0.5})
    media.tone(tmp_path / FIRST, 440.0, 1.5)
    found = hear(run.task, run.network, (str(tmp_path / FIRST),), "two and 1")
    assert found.tokens == [*"two and 1", "<eos>"]
    assert found.seconds == pytest.approx(0.01 * frames)
    assert torch.allclose(found.weights.sum(-1), torch.ones(10), atol=1e-5)
    assert found.weights.size(1) * found.seconds == pytest.approx(1.5, abs=0.05)
    assert found.spoken is not None
    assert len(found.spoken) == 9
    times = [time for span in found.spoken for time in span]
    assert times == sorted(times)
    assert times[-1] <= 1.55
    assert all(end > first for first, end in found.spoken)
    draw_speech(found, tmp_path / "heard.png", "a tone")
    assert (tmp_path / "heard.png").read_bytes()[:4] == b"\x89PNG"


def test_inspect_draws_when_each_token_was_heard(tmp_path: Path) -> None:
    run, sound = trained(tmp_path), str(tmp_path / FIRST)
    assert kinds(run)[0] == "speech"
    seen = view(run, sound, "speech", target="two")
    assert seen["tokens"] == [*"two", "<eos>"]
    assert len(seen["wave"]) > 10
    assert seen["weights"] == view(run, sound, "speech", target="two", layer=0)["weights"]
    for name in ("own.png", "own.html", "own.json"):
        write([seen], tmp_path / name)
        assert (tmp_path / name).stat().st_size > 1000


def test_without_ctc_there_is_attention_alone(tmp_path: Path) -> None:
    run = trained(tmp_path)
    found = hear(run.task, run.network, (str(tmp_path / FIRST),), "two")
    assert found.spoken is None
    draw_speech(found, tmp_path / "heard.png")
    assert (tmp_path / "heard.png").exists()


def test_a_text_is_no_sound(tmp_path: Path) -> None:
    task, network = small_task("translate", tmp_path)
    with pytest.raises(ConfigError, match="source is not audio"):
        hear(task, network, ("abc",), "cba")  # type: ignore[arg-type]


def test_a_bar_stands_where_a_token_is_said(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    drawn: list[Any] = []
    keep = Figure.savefig
    try:
        Figure.savefig = lambda self, *a, **k: drawn.append(self)  # type: ignore[assignment]
        weights = torch.tensor([[0.9, 0.1, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0], [0.25] * 4])
        draw_speech(
            SpeechAlignment(["a", "b", "<eos>"], weights, 0.04, [(0.0, 0.04), (0.08, 0.16)]),
            "x.png",
        )
    finally:
        Figure.savefig = keep  # type: ignore[method-assign]
    (axes,) = drawn[0].axes
    assert axes.get_xlim() == pytest.approx((0.0, 0.16))
    assert [line.get_xdata().tolist() for line in axes.lines] == [[0.0, 0.04], [0.08, 0.16]]
    assert [line.get_ydata().tolist() for line in axes.lines] == [[0, 0], [1, 1]]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["a", "b", "<eos>"]
