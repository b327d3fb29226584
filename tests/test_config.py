"""Configurations: in and out, and every mistake at once."""

import tomllib

import pytest

from saccade.config import Config, assign_text, parse, write_toml
from saccade.errors import ConfigError
from tests.architectures import DECODERS, ENCODERS, config_of


def mistakes(raw: dict) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse(raw, "run.toml")
    return str(caught.value).splitlines()


def translate(**tables: object) -> dict:
    parts = {"encoder": {"kind": "transformer"}, "decoder": {"kind": "transformer"}}
    return {"task": {"kind": "translate"}} | parts | tables


@pytest.mark.parametrize("encoder", ENCODERS)
@pytest.mark.parametrize("decoder", DECODERS)
def test_toml_gives_back_what_it_was_given(encoder: str, decoder: str) -> None:
    config = config_of("translate", encoder, decoder)
    assert parse(tomllib.loads(write_toml(config)), "x") == config


def test_strings_survive_toml() -> None:
    names = ('a "quoted" name.tsv', "back\\slash", "ümläut\u2028line", "tab\there", "\x7f")
    config = parse(translate(data={"train": list(names)}), "x")
    assert parse(tomllib.loads(write_toml(config)), "x").data.train == names


def test_an_unknown_key_is_refused_with_the_nearest() -> None:
    found = mistakes(translate(encoder={"kind": "transformer", "dims": 64}))
    assert found == ["run.toml: unknown key 'encoder.dims' (did you mean 'dim'?)"]


def test_a_key_in_the_wrong_table_is_shown_the_right_one() -> None:
    found = mistakes(translate(rate=0.1))
    assert found == ["run.toml: unknown key 'rate' (did you mean 'train.rate'?)"]


def test_impossible_sizes_are_refused() -> None:
    found = mistakes(translate(encoder={"kind": "transformer", "dim": 63, "num_heads": 4}))
    assert found == ["run.toml: encoder: dim (63) must be divisible by num_heads (4)"]


def test_all_mistakes_come_at_once() -> None:
    found = mistakes(
        translate(
            encoder={"kind": "transformer", "dims": 64, "dim": 63},
            decoder={"kind": "recurent"},
            train={"rate": "fast", "schedule": "cosin", "steps": 0},
            trian={},
        )
    )
    text = "\n".join(found)
    assert len(found) == 7
    for part in (
        "'encoder.dims' (did you mean 'dim'?)",
        "dim (63) must be divisible",
        "no kind 'recurent' (did you mean 'recurrent'?)",
        "train.rate",
        "'cosin' (did you mean 'cosine'?)",
        "train.steps",
        "'trian' (did you mean 'train'?)",
    ):
        assert part in text


def test_wrong_types_are_named_with_what_was_written() -> None:
    assert (
        "train.steps: input should be a valid integer, not 'many'"
        in mistakes(translate(train={"steps": "many"}))[0]
    )
    assert "not True" in mistakes(translate(train={"steps": True}))[0]


def test_a_task_has_the_parts_it_needs_and_no_others() -> None:
    assert (
        "needs a table [encoder]"
        in mistakes({"task": {"kind": "tag"}, "head": {"kind": "per_word"}})[0]
    )
    assert "has no head" in mistakes(translate(head={"kind": "pooled"}))[0]


def test_a_joint_vocabulary_needs_equal_widths() -> None:
    raw = translate(encoder={"kind": "transformer", "dim": 128})
    raw["task"]["joint"] = True
    assert "joint shares one embedding table" in mistakes(raw)[0]


def test_not_a_number_is_not_a_rate() -> None:
    assert "train.rate" in mistakes(translate(train={"rate": float("nan")}))[0]


def test_a_configuration_is_frozen() -> None:
    config = config_of("translate", "lstm", "transformer")
    with pytest.raises(Exception, match="frozen"):
        config.seed = 2  # type: ignore[misc]
    assert isinstance(config, Config)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("train.steps=10", 10),
        ("train.rate=1e-3", 1e-3),
        ("train.device=cpu", "cpu"),
        ('train.device="cpu"', "cpu"),
        ("train.flag=true", True),
        ("train.list=[1, 2]", [1, 2]),
        ("train.path=a=b", "a=b"),
    ],
)
def test_settings_are_read_as_toml_or_as_text(setting: str, value: object) -> None:
    raw: dict = {}
    assign_text(raw, setting)
    assert raw["train"][setting.split("=")[0].split(".")[1]] == value


@pytest.mark.parametrize("setting", ["steps", "=3", "train.=3", "train..steps=3"])
def test_a_setting_without_key_or_value_is_refused(setting: str) -> None:
    with pytest.raises(ConfigError, match="expected key=value"):
        assign_text({}, setting)
