"""The course's tables of scale: parameters within 1 % of what is published, or it is said why."""

import pytest

from saccade.models.presets import PRESETS
from saccade.plan.published import ALIASES, PUBLICATIONS
from saccade.plan.report import plan
from saccade.plan.subject import subject_of

# transformers' own counts of the weights that are learned
COUNTS = {
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "bert-base": 109_514_298,
    "bert-large": 335_174_458,
    "roberta-base": 124_697_433,
    "roberta-large": 355_412_057,
    "t5-small": 60_506_624,
    "t5-base": 222_903_552,
    "t5-large": 737_668_096,
    "t5-3b": 2_851_598_336,
    "t5-11b": 11_307_321_344,
    "bart-large": 406_291_456,
}
# The course's table: layers (of encoder and decoder together), width, heads, parameters in M.
COURSE = {
    "transformer-base": (12, 512, 8, 65),
    "transformer-big": (12, 1024, 16, 213),
    "bert-base": (12, 768, 12, 110),
    "bert-large": (24, 1024, 16, 340),
    "xlnet-large": (24, 1024, 16, 340),
    "roberta-large": (24, 1024, 16, 355),
    "gpt2": (12, 768, 12, 117),
    "gpt2-medium": (24, 1024, 16, 345),
    "gpt2-large": (36, 1280, 20, 762),
    "gpt2-xl": (48, 1600, 25, 1500),
    "megatron-1.2b": (40, 1536, 16, 1200),
    "megatron-2.5b": (54, 1920, 20, 2500),
    "megatron-4.2b": (64, 2304, 24, 4200),
    "megatron-8.3b": (72, 3072, 32, 8300),
    "gpt3-175b": (96, 12288, 96, 175_000),
}


def count(name: str) -> int:
    network = subject_of(name).network
    assert all(parameter.is_meta for parameter in network.parameters())
    return sum(parameter.numel() for parameter in network.parameters())


@pytest.mark.parametrize("name", PRESETS)
def test_a_published_size_has_its_published_parameters_or_it_is_said_why(name: str) -> None:
    paper = PUBLICATIONS[name]
    near = abs(count(name) / paper.parameters - 1) <= 0.01
    assert near or len(paper.difference) > 20


@pytest.mark.parametrize("name", COUNTS)
def test_a_published_size_is_counted_as_by_transformers(name: str) -> None:
    assert count(name) == COUNTS[name]


@pytest.mark.parametrize("name", COURSE)
def test_the_course_table_is_reproduced(name: str) -> None:
    config, (layers, dim, heads, millions) = subject_of(name).config, COURSE[name]
    parts = [part for part in (config.encoder, config.decoder) if part is not None]
    assert sum(part.num_layers for part in parts) == layers
    assert {(part.dim, part.num_heads) for part in parts} == {(dim, heads)}
    off = count(name) / (1e6 * millions) - 1
    assert abs(off) <= 0.01 or PUBLICATIONS[name].difference
    assert abs(off) < 0.07


@pytest.mark.parametrize("name", [name for name in PRESETS if name.startswith("gpt3")])
def test_the_compute_of_gpt3_is_six_flops_for_each_parameter_and_token(name: str) -> None:
    """The paper leaves attention out; ours has it, and no more but what is not multiplied."""
    found, paper = plan(name), PUBLICATIONS[name]
    assert found.subject.steps is not None
    assert paper.tokens is not None
    assert paper.compute is not None
    tokens = found.subject.steps * found.subject.tokens
    assert tokens == pytest.approx(paper.tokens)
    rule = 6 * found.parameters * tokens
    assert rule == pytest.approx(paper.compute, rel=0.03)  # its parameters are rounded
    products = found.subject.steps * (found.flops.step - found.flops.attention)
    assert products == pytest.approx(rule, rel=0.02)
    if name == "gpt3-175b":
        assert rule == pytest.approx(3.14e23, rel=0.01)
        assert found.run_flops == pytest.approx(3.14e23, rel=0.03)


def test_the_compute_of_the_original_transformer_is_an_upper_bound() -> None:
    """The paper multiplies hours, devices and the 9.5 TFLOP/s that a P100 can sustain."""
    for name, hours in (("transformer-base", 12), ("transformer-big", 84)):
        found, paper = plan(name), PUBLICATIONS[name]
        assert paper.compute is not None
        assert found.run_flops is not None
        assert 8 * hours * 3600 * 9.5e12 == pytest.approx(paper.compute, rel=0.01)
        assert 0.2 < found.run_flops / paper.compute < 1.0


def test_every_short_name_is_that_of_a_size() -> None:
    assert set(PUBLICATIONS) == set(PRESETS)
    assert set(ALIASES.values()) <= set(PRESETS)
    assert not set(ALIASES) & set(PRESETS)
