"""Examples from memory: tuples of columns, dicts, `Example`s, or the rows of a table.

Tables of pandas, polars and datasets are recognised by duck typing; none of them is imported.
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
    """Examples in memory, which can be iterated repeatedly."""

    def __init__(self, rows: Iterable[Any]):
        self._rows = list(rows) if isinstance(rows, Iterator) else rows

    def __iter__(self) -> Iterator[Row]:
        """The columns of each example; None for what is not an example."""
        for row in self._rows:
            if isinstance(row, Example):
                yield row
            elif isinstance(row, Mapping):
                yield {str(key): _json_value(value) for key, value in row.items()}
            elif isinstance(row, list | tuple):
                yield {number: _json_value(value) for number, value in enumerate(row, 1)}
            else:
                yield None


def given(data: Any) -> list[str] | Memory:
    """A user's data argument as paths, or as examples from memory."""
    if isinstance(data, Memory):
        return data
    if isinstance(data, str | os.PathLike):
        return [os.fspath(data)]
    if isinstance(data, Mapping):  # a dict of splits, or of columns
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


def _json_value(value: Any) -> Any:
    """A cell as a JSON value: arrays and tuples become lists, missing values None."""
    if hasattr(value, "tolist"):  # numpy
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [_json_value(item) for item in value]
    if isinstance(value, str) and not value.isascii() and _SURROGATE.search(value):
        return None  # a lone surrogate cannot be encoded
    return None if isinstance(value, float) and value != value else value  # NaN
