"""Defaults of forecasts: by the season, the length and the number of the series."""

from typing import Any

import numpy as np

from saccade import config as c
from saccade.data.lines import counted, listed
from saccade.data.seasons import defects_of, dev_rows, settled
from saccade.data.series import Table, read_table
from saccade.errors import ConfigError, DataError

STEPS = 1500  # of training, about, for a linear model
BODY_STEPS = 3000
EVALUATIONS = 20
DIM = 64  # of encoders and decoders
DEV_SHARE = 0.2  # of the rows


def is_forecast(raw: dict[str, Any]) -> bool:
    task = raw.get("task")
    return isinstance(task, dict) and task.get("kind") == "forecast"


def minimal_forecast(raw: dict[str, Any], where: str) -> c.Config:
    """The user's settings, with the minimum for a valid configuration."""
    if "size" in raw:
        raise ConfigError(
            f"{where}: size: a forecast has no named sizes; set encoder.dim and others"
        )
    raw = dict(raw)
    data = raw.get("data")
    if isinstance(data, dict):
        raw["data"] = {"dev_share": DEV_SHARE, "format": "csv"} | data
    if isinstance(raw.get("decoder"), dict):
        raw["decoder"] = {"dim": DIM, "tied": False} | raw["decoder"]
        raw.setdefault("encoder", {"kind": "recurrent"})
        raw.setdefault("output", {"kind": "gaussian"})
    elif isinstance(head := raw.get("head", {}), dict):
        raw["head"] = {"kind": "horizon"} | head
    if isinstance(raw.get("encoder"), dict):
        raw["encoder"] = {"dim": DIM} | raw["encoder"]
    config = c.parse(raw, where)
    if len(config.data.train) != 1:
        raise ConfigError(f"{where}: data.train: a forecast learns from one table of series")
    if config.data.source or config.data.target is not None:
        raise ConfigError(f"{where}: data.source, data.target: name the columns in task.series")
    if len(config.data.dev) > 1:
        raise ConfigError(f"{where}: data.dev: a forecast is measured on one table of series")
    return config


def fill_forecast(raw: dict[str, Any], where: str) -> tuple[c.Config, str]:
    """The full configuration, and a sentence on how the table was understood."""
    config = minimal_forecast(raw, where)
    assert isinstance(config.task, c.Forecast)
    table = read_table(config.data.train[0], config.task, config.data)
    task, choices = settled(config.task, table, config.data)
    if defects := defects_of(table, task, config.data):
        raise DataError("\n".join(map(str, defects)))
    given = config.model_dump(mode="json", exclude_unset=True, exclude_none=True)
    given["task"] |= task.model_dump(mode="json", exclude_none=True)
    train = given.setdefault("train", {})
    for key, value in _train(config, task, table).items():
        train.setdefault(key, value)
    if {"steps", "epochs", "minutes"} & raw.get("train", {}).keys():
        for key in ("epochs", "patience"):  # the user's limit is the only one
            if key not in raw["train"]:
                train.pop(key, None)
    given.setdefault("decode", {}).setdefault("batch_tokens", 1 << 17)
    return c.parse(given, where), _reason(table, task, config.data, choices)


def _train(config: c.Config, task: c.Forecast, table: Table) -> dict[str, Any]:
    assert task.lookback
    assert task.horizon
    rows = (
        len(table)
        if config.data.dev
        else len(table) - dev_rows(len(table), task.horizon, config.data)
    )
    examples = max(1, rows - task.lookback - task.horizon + 1)
    examples *= 1 if task.channels == "joint" else len(table.names)
    batch = int(min(512, max(16, 2 ** int(np.log2(max(examples / 32, 1))))))
    linear = config.encoder is None
    steps = STEPS if linear else BODY_STEPS
    epochs = int(min(300, max(5, steps * batch // examples)))
    return {
        "rate": 1e-2 if linear else 1e-3,
        "batch_tokens": batch * (task.lookback + task.horizon),
        "epochs": epochs,
        "evaluate_every": max(1, epochs * -(-examples // batch) // EVALUATIONS),
        "average": 0.99,
        "warmup": 20,
        "evaluate_max": 50_000 if linear else 5000,
    } | ({"processes": 1, "precision": "fp32"} if linear else {"patience": 10})


def _reason(table: Table, task: c.Forecast, data: c.Data, choices: list[str]) -> str:
    """How a table was understood, what was chosen, and how gaps are treated."""
    times = "no time column, rows in order"
    if table.clock is not None:
        numbers = table.clock.unit == "number"
        times = f"steps of {table.clock.size}" if numbers else f"a row each {table.clock.name}"
        times += f" in {table.roles.time!r}, from {table.time(0)} to {table.time(len(table) - 1)}"
    named = listed(table.names[:8]) + (", ..." if len(table.names) > 8 else "")
    parts = [times, f"{len(table.names)} series ({named})"]
    if table.unused:
        parts.append(f"not used: {listed(table.unused)}")
    if gaps := int(np.isnan(table.values).sum()):
        parts.append(f"{counted(gaps, 'gap')}: filled in where they are looked back to, not scored")
    if not data.dev:
        own = dev_rows(len(table), task.horizon or 1, data)
        parts.append(f"the last {counted(own, 'row')} to measure on")
    return "; ".join([*parts, *([", ".join(choices)] if choices else [])])
