"""Tables of series: times, roles of columns, gaps, and every defect with its line."""

from pathlib import Path

import numpy as np
import pytest

from saccade import config as c
from saccade.data.seasons import after, part, season_of, settled
from saccade.data.series import Table, read_table, scan_table
from saccade.data.times import Clock, clock_of, form_of, parsed
from saccade.errors import DataError


def written(folder: Path, text: str, name: str = "t.csv") -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


def table_of(path: str, **settings: object) -> Table:
    return read_table(path, c.Forecast.model_validate(settings), c.Data())


def defects(path: str, **settings: object) -> list[tuple[str, str]]:
    _, found = scan_table(path, c.Forecast.model_validate(settings), c.Data())
    return [(one.code, one.where.rpartition("/")[2]) for one in found]


@pytest.mark.parametrize(
    ("cells", "step", "following"),
    [
        (["1700", "1701", "1702"], "1", "1703"),
        (["2020-01-30", "2020-01-31", "2020-02-01"], "day", "2020-02-02"),
        (["20200104", "20200111", "20200118"], "week", "20200125"),
        (["2016-07-01 00:00:00", "2016-07-01 01:00:00"], "hour", "2016-07-01 02:00:00"),
        (["2016-07-01T23:45", "2016-07-02T00:00"], "15 minutes", "2016-07-02T00:15"),
        (["2019-11", "2019-12", "2020-01"], "month", "2020-02"),
        (["2020-01-31", "2020-02-29", "2020-03-31"], "month", "2020-04-30"),
        (["2001-01-01", "2002-01-01", "2003-01-01"], "year", "2004-01-01"),
        (["01/10/2020", "01/11/2020", "01/12/2020", "01/13/2020"], "day", "01/14/2020"),
        (["10.1.2020", "11.1.2020", "12.1.2020"], "day", "13.01.2020"),
        (["Jan 2020", "Apr 2020", "Jul 2020"], "3 months", "Oct 2020"),
        (["2020-01-02T00:00:00Z", "2020-01-02T06:00:00Z"], "6 hours", "2020-01-02T12:00:00Z"),
    ],
)
def test_times_go_on_by_their_step(cells: list[str], step: str, following: str) -> None:
    form = form_of(cells)
    assert form is not None
    times = [parsed(cell, form) or 0 for cell in cells]
    clock = clock_of(times, form)
    assert isinstance(clock, Clock)
    assert clock.name == step
    assert clock.text(len(cells)) == following
    assert [clock.step(time) for time in times] == list(range(len(cells)))


def test_a_week_without_weekends_has_five_days(tmp_path: Path) -> None:
    days = [day for day in np.arange("2020-01-06", "2020-03-01", dtype="datetime64[D]")
            if np.is_busday(day)]  # fmt: skip
    rows = "".join(f"{day},{i}\n" for i, day in enumerate(days) if i != 7)
    table = table_of(written(tmp_path, "date,price\n" + rows))
    assert len(table) == len(days)
    assert np.flatnonzero(np.isnan(table.values)).tolist() == [7]
    assert table.time(5) == "2020-01-13"
    assert table.clock is not None
    assert table.clock.seasons == (5,)


def test_missing_rows_are_gaps_where_they_belong(tmp_path: Path) -> None:
    table = table_of(written(tmp_path, "year,y\n2000,1\n2001,2\n2004,5\n2005,\n2006,7\n"))
    assert table.values[:, 0].tolist()[:2] == [1, 2]
    assert np.isnan(table.values[:, 0]).tolist() == [False, False, True, True, False, True, False]
    assert table.lines.tolist() == [2, 3, 0, 0, 4, 5, 6]


def test_a_file_without_times_is_rows_in_order(tmp_path: Path) -> None:
    table = table_of(written(tmp_path, "a;b\n1,5;2\n2,5;1\n0,5;3\n"))
    assert table.clock is None
    assert table.names == ("a", "b")
    assert table.values[:, 0].tolist() == [1.5, 2.5, 0.5]


def test_a_row_a_value_is_as_good_as_a_column_a_series(tmp_path: Path) -> None:
    wide = written(tmp_path, "ds,x,y\n2020-01-01,1,4\n2020-01-02,2,\n2020-01-03,3,6\n")
    rows = "x,2020-01-01,1\nx,2020-01-02,2\nx,2020-01-03,3\ny,2020-01-01,4\ny,2020-01-03,6\n"
    long = table_of(written(tmp_path, "unique_id,ds,y\n" + rows, "long.csv"))
    assert long.names == ("x", "y")
    assert long.roles.id == "unique_id"
    np.testing.assert_array_equal(long.values, table_of(wide).values)


def test_text_beside_numbers_is_not_forecast(tmp_path: Path) -> None:
    table = table_of(written(tmp_path, "year,y,note\n2000,1,cold\n2001,2,warm\n2002,3,hot\n"))
    assert table.names == ("y",)
    assert table.unused == ("note",)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("year,y\n2000,1\n2001,x2\n2002,3\n2003,4\n", [("series-number", "t.csv:3")]),
        ("year,y\n2000,1\n2001,inf\n2002,3\n2003,4\n", [("series-number", "t.csv:3")]),
        ("year,y\n2000,1\n2001,2\n2001,3\n", [("repeated-time", "t.csv:4")]),
        ("year,y\n2000,1\n2002,2\n2001,3\n", [("unsorted", "t.csv:4")]),
        ("day,y\n2020-01-01,1\n2020-01-02,2\n2020-01-04,3\n2020-01-03,2\n",
         [("unsorted", "t.csv:5")]),
        ("time,y\n0,1\n10,1\n20,2\n25,2\n", [("irregular", "t.csv:5")]),
        ("date,y\n" + "".join(f"2020-01-0{i},{i}\n" for i in range(1, 7)) + "Jan 7,2\n",
         [("time", "t.csv:8")]),
        ("year,y\n2000,1\n2001\n2002,3\n", [("columns", "t.csv:3")]),
        ("year,y,y\n2000,1,2\n2001,2,2\n", [("series-column", "t.csv:1")]),
        ("name,note\nx,hello\ny,ho\n", [("series-column", "t.csv:1")]),
        ("", [("empty-file", "t.csv")]),
        ("year,y\n", [("empty-file", "t.csv")]),
    ],
)  # fmt: skip
def test_a_defect_is_told_with_its_line(
    tmp_path: Path, text: str, found: list[tuple[str, str]]
) -> None:
    assert defects(written(tmp_path, text)) == found


def test_a_column_that_is_not_there_is_named(tmp_path: Path) -> None:
    path = written(tmp_path, "year,y\n2000,1\n2001,2\n")
    with pytest.raises(DataError, match="no column 'z' among year, y"):
        table_of(path, series=["z"])


def test_the_season_is_found(tmp_path: Path) -> None:
    t = np.arange(400)
    rng = np.random.default_rng(0)
    wave = np.sin(2 * np.pi * t / 9) + 0.3 * rng.standard_normal(400) + 0.01 * t
    path = written(tmp_path, "y\n" + "".join(f"{y:.4f}\n" for y in wave))
    assert season_of(table_of(path))[0] == 9
    walk = np.cumsum(rng.standard_normal(400))
    path = written(tmp_path, "y\n" + "".join(f"{y:.4f}\n" for y in rng.standard_normal(400)))
    assert season_of(table_of(path))[0] == 1
    hours = np.arange("2020-01-01", "2020-02-01", dtype="datetime64[h]")
    day = walk[:1].repeat(len(hours)) + np.sin(2 * np.pi * np.arange(len(hours)) / 24)
    rows = "".join(f"{h},{y:.4f}\n" for h, y in zip(hours, day, strict=True))
    rows = rows.replace("T", " ").replace(",", ":00,")
    assert season_of(table_of(written(tmp_path, "date,y\n" + rows)))[0] == 24


def test_what_is_chosen_is_said(tmp_path: Path) -> None:
    path = written(tmp_path, "year,y\n" + "".join(f"{i},{i % 7}\n" for i in range(1900, 2000)))
    task, said = settled(c.Forecast(), table_of(path), c.Data(dev_share=0.2))
    assert (task.season, task.horizon, task.lookback) == (7, 7, 20)
    assert said == ["season 7 (autocorrelation 0.93)", "horizon 7", "look-back 20"]


def test_a_table_goes_on_where_another_ends(tmp_path: Path) -> None:
    path = written(tmp_path, "year,y\n" + "".join(f"{i},{i}\n" for i in range(1900, 1920)))
    table = table_of(path)
    early, late = part(table, 0, 10), part(table, 12, 20)
    joined, first = after(early, late, 5)
    assert (first, joined.time(first)) == (5, "1912")
    np.testing.assert_array_equal(joined.values[:5, 0], [1907, 1908, 1909, np.nan, np.nan])
    assert after(early, part(table, 15, 20), 5)[1] == 0  # too far away to be looked back to


def test_days_and_months_are_told_apart_by_all_rows(tmp_path: Path) -> None:
    days = [f"{d:02}/01/2020,{d}\n" for d in range(1, 29)]
    table = table_of(written(tmp_path, "date,y\n" + "".join(days)))
    assert len(table) == 28
    assert table.time(28) == "29/01/2020"


def test_the_day_comes_first_where_steps_are_regular_then() -> None:
    months = [f"01/{month:02}/{year}" for year in (2015, 2016) for month in range(1, 13)]
    assert form_of(months) == "%d/%m/%Y"
    days = [f"01/{day:02}/2015" for day in range(1, 13)]
    assert form_of(days) == "%m/%d/%Y"


@pytest.mark.parametrize("days", [28, 30, 91])
def test_steps_of_about_months_are_steps_of_days(days: int) -> None:
    times = [i * days * 86_400 for i in range(60)]
    clock = clock_of(times, "%Y-%m-%d")
    assert isinstance(clock, Clock)
    assert (clock.unit, clock.size) == ("second", days * 86_400)
