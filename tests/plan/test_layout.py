"""Layouts, and the hardware that they are for."""

from typing import Any

import pytest

from saccade.errors import ConfigError
from saccade.plan.hardware import TABLE, Hardware, hardware_of
from saccade.plan.layers import layers_of
from saccade.plan.layout import USABLE, layout_of, rows_that_fit
from saccade.plan.memory import memory_of
from saccade.plan.report import plan
from saccade.plan.subject import subject_of


def laid_out(name: str, hardware: str, devices: int) -> Any:
    return plan(name, on=hardware, devices=devices).layout


def test_what_fits_is_replicated_and_what_does_not_is_sharded() -> None:
    assert laid_out("gpt2", "a100", 8).name == "data parallel x 8"
    assert laid_out("gpt2-xl", "t4", 8).sharded
    assert not laid_out("gpt3-175b", "a100", 8).fits
    many = laid_out("gpt3-175b", "a100", 1024)
    assert many.fits
    assert many.sharded
    assert many.data * many.tensor == 1024


def test_tensor_parallelism_divides_the_heads() -> None:
    found = laid_out("gpt2-xl", "t4", 2)  # 25 heads
    assert found.tensor == 1
    config = subject_of("gpt3-6.7b").config
    layers = layers_of(subject_of("gpt3-6.7b").network, subject_of("gpt3-6.7b").largest)
    small = Hardware("small", 1e14, 1e13, 15e9, 1e12, 1e11, None)
    found = layout_of(layers, config, small, 8, 1.0)
    assert found.tensor in (1, 2, 4, 8)
    assert found.memory <= memory_of(layers, config.train, "bf16").peak


def test_data_parallel_sends_each_gradient_almost_twice() -> None:
    found = plan("gpt2", devices=4)
    assert found.layout.volume == pytest.approx(2 * 3 / 4 * 4 * found.parameters)
    assert plan("gpt2").layout.volume == 0.0


def test_sharding_gathers_the_weights_for_each_pass_and_sums_the_gradients() -> None:
    found = plan("gpt2-xl", on="t4", devices=8)
    assert found.layout.sharded
    passes = 3 if found.layout.checkpointing else 2
    expected = 7 / 8 * found.parameters * (2 * passes + 4)
    assert found.layout.volume == pytest.approx(expected)


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("name", ["gpt2", "transformer-base", "elmo"])
def test_the_batch_that_fits_fits_and_a_larger_one_does_not(name: str, checkpointing: bool) -> None:
    subject, hardware = subject_of(name), TABLE["a100"]
    train, shape = subject.config.train, subject.largest
    rows = rows_that_fit(subject.network, shape, train, hardware, checkpointing=checkpointing)
    assert rows > 1

    def peak(many: int) -> int:
        layers = layers_of(subject.network, shape.of_rows(many))
        found = memory_of(layers, train, hardware.precision)
        return found.checkpointed_peak if checkpointing else found.peak

    room = USABLE * hardware.memory
    assert peak(rows) <= room < peak(rows + 1 + rows // 32)


def test_twice_the_utilisation_is_half_the_time_and_the_price_is_the_hours() -> None:
    slow, fast = (plan("gpt3-175b", devices=1024, utilisation=u, price=2.0) for u in (0.2, 0.4))
    rest = slow.layout.seconds + 28.0 * slow.parameters / 1024 / slow.hardware.bandwidth
    assert slow.timing.step - rest == pytest.approx(2 * (fast.timing.step - rest))
    assert fast.timing.run is not None
    assert fast.timing.cost == pytest.approx(fast.timing.run / 3600 * 1024 * 2.0)


def test_hardware_that_is_not_there_and_shares_that_are_none_are_refused() -> None:
    with pytest.raises(ConfigError, match="--on h1000: no such hardware; did you mean 'h100'"):
        hardware_of("h1000")
    with pytest.raises(ConfigError, match="there are here, p100, v100"):
        hardware_of("!")
    with pytest.raises(ConfigError, match="--utilisation 2: a share"):
        hardware_of("a100", 2.0)
    with pytest.raises(ConfigError, match="--price -1: dollars"):
        hardware_of("a100", None, -1.0)
    with pytest.raises(ConfigError, match="--devices 0: a number"):
        plan("gpt2", devices=0)


def test_this_machine_is_measured() -> None:
    found = hardware_of("here")
    assert found.single > 1e9
    assert found.bandwidth > 1e8
    assert found.memory > 1e8
    assert "measured" in found.note
