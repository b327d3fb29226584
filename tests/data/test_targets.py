"""Numbers as targets: what is read, in which units, and what is refused."""

import json
from pathlib import Path

import numpy as np
import pytest

from saccade import config as c
from saccade.data.numbers import Moments
from saccade.data.targets import (
    PositionNumbers,
    SeriesNumbers,
    TargetFitting,
    TargetNumbers,
    rows_of,
    target_cell,
)
from saccade.errors import DataError
from saccade.metrics.numbers import mae, r2, rmse


def cell(text: str) -> object:
    return target_cell(text, "", None, "")


def fitted(kind: type[TargetNumbers], *texts: str, **settings: bool) -> TargetNumbers:
    fitting = TargetFitting(c.Series(**settings), kind, 1 << 20)
    for text in texts:
        fitting.look(target_cell(text, "", None, ""))
    return fitting.field()


@pytest.mark.parametrize(
    ("text", "per_row", "expected"),
    [
        ("3.5", False, [[3.5]]),
        ("-1e3", True, [[-1000.0]]),
        ("[1, 2]", False, [[1, 2]]),
        ("[1, 2]", True, [[1], [2]]),
        ("[[1, 2], [3, 4]]", True, [[1, 2], [3, 4]]),
        ("[1, null]", False, [[1, np.nan]]),
        ("nan", False, [[np.nan]]),
        ("[true, false]", True, [[1], [0]]),
    ],
)
def test_a_target_is_a_number_a_list_or_lists(
    text: str, per_row: bool, expected: list[list[float]]
) -> None:
    assert np.array_equal(rows_of(cell(text), per_row), expected, equal_nan=True)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["seven", "1,5", "[1, [2]]", "[]", '["a"]', "[[[1]]]", "[1"])
def test_what_is_no_number_is_refused(text: str) -> None:
    with pytest.raises(DataError):
        rows_of(cell(text), True)  # type: ignore[arg-type]


def test_numbers_are_in_units_of_their_deviation_and_come_back() -> None:
    field = fitted(PositionNumbers, "[[1, 0], [3, 1]]", "[[5, 1], [null, 0]]")
    assert field.binary == (1,)
    assert field.mean.tolist() == [3.0, 0.0]
    assert field.deviation.tolist() == [pytest.approx(np.sqrt(8 / 3)), 1.0]
    row = field.make(target_cell("[[5, 1], [3, null]]", "", None, ""))
    assert np.allclose(row, [[2 / np.sqrt(8 / 3), 1], [0, np.nan]], equal_nan=True)
    assert np.allclose(field.restored(row), [[5, 1], [3, np.nan]], equal_nan=True)
    assert field.written(np.array([[5.0, 1.0], [3.25, 0.5]])) == "[[5.0, 1], [3.25, 0.5]]"
    assert field.log_scale.tolist() == [pytest.approx(0.5 * np.log(8 / 3)), 0.0]


def test_examples_with_the_same_target_all_count() -> None:
    field = fitted(TargetNumbers, "2.5", "2.5", "2.5", "6.5")
    assert field.mean.tolist() == [3.5]
    assert field.deviation.tolist() == [pytest.approx(np.sqrt(3))]


def test_a_series_says_where_it_ends() -> None:
    field = fitted(SeriesNumbers, "[1.5, 2.5]", "[3.5, 4.5, 5.5]")
    assert field.reals == c.Reals(2, (1,))
    row = field.make(target_cell("[3.5, 4.5]", "", None, ""))
    assert row[:, 1].tolist() == [0, 0, 1]
    assert np.isnan(row[-1, 0])
    assert (field.longest, field.measure(target_cell("[3.5]", "", None, ""))) == (3, 2)
    assert field.written(field.restored(row[:-1])) == "[3.5, 4.5]"


def test_settings_leave_numbers_as_they_are() -> None:
    plain = TargetFitting(c.Series(target=c.Numbers(normalise=False)), SeriesNumbers, 1 << 20)
    plain.look(target_cell("[10, 20]", "", None, ""))
    assert plain.field().make(target_cell("[10]", "", None, ""))[0].tolist() == [10.0, 0.0]
    field = fitted(SeriesNumbers, "[0, 1]", binary=False)
    assert field.binary == ()


def test_a_field_is_saved_whole(tmp_path: Path) -> None:
    field = fitted(SeriesNumbers, "[[1, 0], [3, 1]]", "[[5, 1]]")
    field.save(tmp_path / "target.json")
    again = SeriesNumbers.load(tmp_path / "target.json")
    assert again.reals == field.reals
    assert again.longest == 2
    text = "[[2, 1], [4, 0]]"
    assert np.array_equal(
        again.make(target_cell(text, "", None, "")),
        field.make(target_cell(text, "", None, "")),
        equal_nan=True,
    )
    assert json.loads((tmp_path / "target.json").read_text())["size"] == 2


def test_moments_are_those_of_all_that_is_there() -> None:
    numbers = np.random.default_rng(1)
    values = numbers.normal(size=(50, 3)) * [1, 10, 0] + [0, 5, 2]
    values[numbers.random((50, 3)) < 0.3] = np.nan
    values[:10, 0] = np.nan  # a part of which nothing is there
    moments = Moments()
    for part in np.split(values, [10, 11, 40]):
        moments.add(part, "")
    assert np.allclose(moments.mean, np.nanmean(values, 0))
    assert np.allclose(moments.deviation, [*np.nanstd(values, 0)[:2], 1.0])


def test_metrics_leave_out_what_is_missing() -> None:
    gold = np.array([[1.0, 5.0], [3.0, np.nan], [5.0, 5.0]])
    guess = np.array([[1.0, 5.0], [4.0, 99.0], [5.0, 6.0]])
    assert rmse(guess, gold) == pytest.approx(np.sqrt(2 / 5))
    assert mae(guess, gold) == pytest.approx(2 / 5)
    assert r2(guess, gold) == pytest.approx(1 - 1 / 8)  # the second column does not vary
    assert r2(gold, gold) == 1.0
    mean = np.full_like(gold, 3.0)
    assert r2(mean, gold) == pytest.approx(0.0)
    assert r2(gold[:1], gold[:1]) == 0.0


@pytest.mark.parametrize(("unit", "whole"), [("degrees", 360.0), ("radians", 2 * np.pi)])
def test_an_angle_is_its_sine_and_cosine_and_comes_back(unit: str, whole: float) -> None:
    settings = c.Regress(target=c.Numbers(angles=unit))  # type: ignore[arg-type]
    fitting = TargetFitting(settings, PositionNumbers, 1 << 20)
    given = whole * np.array([[0.0, 0.25], [0.45, -0.1], [-0.49, 0.3]])
    fitting.look(target_cell(json.dumps(given.tolist()), "", None, ""))
    field = fitting.field()
    assert field.reals == c.Reals(4, ())
    row = field.make(target_cell(json.dumps((given + whole).tolist()), "", None, ""))
    assert np.allclose(field.restored(row), given, atol=1e-5)
    missing = field.make(target_cell(f"[[null, {given[0, 1]}]]", "", None, ""))
    assert np.isnan(missing[0]).tolist() == [True, False, True, False]
    with pytest.raises(DataError, match="rows of 1 number, and the training data has 2"):
        field.make(target_cell("[3, 4]", "", None, ""))


def test_the_error_of_an_angle_is_the_shorter_way_round() -> None:
    settings = c.Regress(target=c.Numbers(angles="degrees"))
    fitting = TargetFitting(settings, TargetNumbers, 1 << 20)
    fitting.look(target_cell("[10, 200]", "", None, ""))
    guess, right = np.array([[-1.0, 10.0]]), np.array([[179.0, 350.0]])
    assert np.allclose(fitting.field().beside(guess, right) - right, [[-180, 20]])
    plain = fitted(TargetNumbers, "[10, 200]")
    assert plain.beside(guess, right) is guess
