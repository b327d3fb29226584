"""Examples from memory: tuples of columns, dicts, `Example`s, or the rows of a table.

Tables of pandas, polars and datasets are known by what they can do; none of them is imported.
"""

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from saccade.data.lines import Example
from saccade.errors import DataError

Row: TypeAlias = Example | dict[str | int, Any] | None  # columns by name, or by number from 1

_SURROGATE = re.compile("[\ud800-\udfff]")


class Memory:
    """Examples that a program holds, to be read as often as wanted."""

    def __init__(self, rows: Iterable[Any]):
        self._rows = list(rows) if isinstance(rows, Iterator) else rows

    def __iter__(self) -> Iterator[Row]:
        """The columns of each example; None where it is none."""
        for row in self._rows:
            if isinstance(row, Example):
                yield row
            elif isinstance(row, Mapping):
                yield {str(key): _plain(value) for key, value in row.items()}
            elif isinstance(row, list | tuple):
                yield {number: _plain(value) for number, value in enumerate(row, 1)}
            else:
                yield None


def given(data: Any) -> list[str] | Memory:
    """What a user gave: paths, or examples from memory."""
    if isinstance(data, Memory):
        return data
    if isinstance(data, str | os.PathLike):
        return [os.fspath(data)]
    if isinstance(data, Mapping):  # the splits of a set of tables, or the columns of one
        raise DataError(f"a {type(data).__name__} is not a list of examples; give one row for each")
    if hasattr(data, "itertuples") and hasattr(data, "columns"):  # pandas
        names = [str(name) for name in data.columns]
        rows = data.itertuples(index=False, name=None)
        return Memory(dict(zip(names, row, strict=True)) for row in rows)
    if hasattr(data, "iter_rows"):  # polars
        return Memory(data.iter_rows(named=True))
    if not isinstance(data, Iterable):
        raise DataError(f"a {type(data).__name__} is neither a file nor examples")
    rows = list(data) if isinstance(data, Iterator) else data
    if isinstance(next(iter(rows), None), str | os.PathLike):
        return [os.fspath(path) for path in rows]
    return Memory(rows)


def _plain(value: Any) -> Any:
    """A cell as JSON would have it: arrays and tuples are lists, what is missing is None."""
    if hasattr(value, "tolist"):  # numpy
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, str) and not value.isascii() and _SURROGATE.search(value):
        return None  # half of a pair: no text that can be written
    return None if isinstance(value, float) and value != value else value  # NaN
