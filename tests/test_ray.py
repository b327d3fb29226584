"""Prediction on a local Ray says what `predict` says."""

import json
from pathlib import Path

import pytest

from saccade.errors import ConfigError
from saccade.runs.run import load
from tests.helpers import GOLDEN

ray = pytest.importorskip("ray", reason="the extra `ray` is not installed: make test-ray")
pytest.importorskip("ray.data")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_answers_on_ray_are_those_of_predict(tmp_path: Path) -> None:
    from saccade.ray import predict

    folder = GOLDEN / "transformer"
    run = load(folder)
    lines = [f"{'abcd'[i % 4]}{'ab' * (i % 3)}" for i in range(40)]
    path = tmp_path / "lines.txt"
    path.write_text("".join(f"{line}\n" for line in lines))
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, _temp_dir="/tmp/saccade-ray")
    try:
        found = predict(ray.data.read_text(str(path)), folder, actors=1, rows_at_once=7).take_all()
        assert json.dumps(sorted(row["prediction"] for row in found)) == json.dumps(
            sorted(one.text for one in run.stream(lines))
        )
        answers = {row["text"]: row["prediction"] for row in found}
        expected = dict(zip(lines, (one.text for one in run.stream(lines)), strict=True))
        assert answers == expected
        with pytest.raises(ConfigError, match="not a run"):
            predict(ray.data.from_items([{"text": "a"}]), tmp_path)
    finally:
        ray.shutdown()
