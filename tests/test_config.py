"""Configurations: in and out, and every mistake at once."""

import tomllib

import pytest

from saccade import config as c
from saccade.config import Config, assign_text, parse, write_toml
from saccade.config.readers import Strict
from saccade.config.toml import validate
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
    assert found == ["run.toml: unknown key 'encoder.dims' (did you mean 'encoder.dim'?)"]


def test_a_key_in_the_wrong_table_is_shown_the_right_one() -> None:
    found = mistakes(translate(rate=0.1))
    assert found == ["run.toml: unknown key 'rate' (did you mean 'train.rate'?)"]


def test_nobody_is_shown_the_key_that_was_refused() -> None:
    class OneTask(Strict):
        task: c.Classify

    raw = {"task": {"kind": "classify", "joint": True}}
    with pytest.raises(ConfigError, match=r"unknown key 'task\.joint'; the keys here are") as told:
        validate(OneTask, raw, "x")
    assert "did you mean 'task.joint'" not in str(told.value)


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
        "'encoder.dims' (did you mean 'encoder.dim'?)",
        "dim (63) must be divisible",
        "unknown kind 'recurent' (did you mean 'recurrent'?)",
        "train.rate",
        "'cosin' (did you mean 'cosine'?)",
        "train.steps",
        "'trian' (did you mean 'train'?)",
    ):
        assert part in text


def test_all_that_does_not_go_together_comes_at_once() -> None:
    raw = translate(encoder={"kind": "transformer", "dim": 128}, decode={"ctc": 0.3})
    raw["task"]["joint"] = True
    found = mistakes(raw | {"train": {"label_smoothing": 0.1, "optimizer": "sparse"}})
    assert [line.split(": ")[:2] for line in found] == [
        ["run.toml", "train"],
        ["run.toml", "decode"],
        ["run.toml", "task"],
    ]


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


# --- kinds of search ------------------------------------------------------------------------------

OLD = {  # as it was written before a search had a kind
    "width": 3, "length": "gnmt", "alpha": 0.6, "complete": 4, "groups": 1, "diversity": 0.5,
    "coverage": 0.1, "seed": 7, "temperature": 0.7, "top_k": 9, "top_p": 0.9, "min_p": 0.0,
    "typical": 1.0, "risk": "chrf", "candidates": 8, "min_len": 1, "max_len": 20, "max_ratio": 2.0,
    "no_repeat": 2, "repetition": 1.5, "banned": ["x"], "only": "", "model": "",
    "model_weight": 0.2, "batch_tokens": 99, "engine": "torch", "int8": False, "workers": 1,
}  # fmt: skip


@pytest.mark.parametrize("sample", [False, True])
def test_an_old_table_of_decoding_is_read(sample: bool) -> None:
    decode = parse(translate(decode=OLD | {"sample": sample}), "x").decode
    new = {"stop_after" if key == "complete" else key: value for key, value in OLD.items()}
    kind = c.Sample if sample else c.Beam
    wanted = {key: value for key, value in new.items() if key in kind.model_fields}
    assert isinstance(decode, kind)
    known = decode.model_dump(mode="json", exclude_none=True)  # newer keys are left open
    assert known == wanted | {"kind": "sample" if sample else "beam", "tree": False}
    again = tomllib.loads(write_toml(parse(translate(decode=OLD | {"sample": sample}), "x")))
    assert again["decode"] == known
    assert next(iter(again["decode"])) == "kind"


def test_a_table_without_a_kind_is_a_beam() -> None:
    assert parse(translate(decode={"max_len": 9}), "x").decode == c.Beam(max_len=9)
    assert parse(translate(decode={"complete": 2}), "x").decode == c.Beam(stop_after=2)
    assert parse(translate(), "x").decode == c.Beam()


def test_a_key_of_another_kind_is_refused_with_that_kind() -> None:
    assert mistakes(translate(decode={"temperature": 0.7})) == [
        "run.toml: decode.temperature belongs to decode.kind = 'sample'; set that, or leave it out"
    ]
    assert mistakes(translate(decode={"kind": "sample", "width": 3})) == [
        "run.toml: decode.width belongs to decode.kind = 'beam'; set that, or leave it out"
    ]
    assert mistakes(translate(encoder={"kind": "transformer", "cell": "gru"})) == [
        "run.toml: encoder.cell belongs to encoder.kind = 'recurrent'; set that, or leave it out"
    ]
    assert "did you mean 'decode.temperature', of decode.kind = 'sample'?" in "".join(
        mistakes(translate(decode={"temprature": 0.7}))
    )
    assert "choose one of beam, sample" in mistakes(translate(decode={"kind": "exact"}))[0]


def test_another_kind_keeps_what_both_share() -> None:
    beam = c.Beam(width=7, alpha=0.3, max_len=33, risk="chrf", engine="torch")
    drawn = c.change_decode(beam, {"sample": True, "temperature": 0.7})
    assert drawn == c.Sample(max_len=33, risk="chrf", engine="torch", temperature=0.7)
    assert c.change_decode(beam, {"kind": "sample"}) == c.change_decode(beam, {"sample": True})
    assert c.change_decode(drawn, {"sample": False}) == c.Beam(
        max_len=33, risk="chrf", engine="torch"
    )
    assert c.change_decode(beam, {"complete": 2}) == beam.model_copy(update={"stop_after": 2})
    assert c.change_decode(beam, {}) is beam
    exact = c.exact_decode(beam, {"budget": 9})
    assert exact == c.Exact(budget=9, alpha=0.3, max_len=33, engine="torch")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": 0.7}, r"a setting of sampling; set decode\.kind to 'sample'"),
        ({"sample": True, "width": 3}, "leave out --sample"),
        ({"sample": "yes"}, "decode.sample"),
        ({"sample": True, "kind": "beam"}, "decode.sample"),
        ({"kind": "greedy"}, "choose one of beam, sample"),
    ],
)
def test_settings_that_contradict_the_kind_are_refused(settings: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        c.change_decode(c.Beam(), settings)
    if "width" in settings:
        with pytest.raises(ConfigError, match=r"set decode\.kind to 'beam'"):
            c.change_decode(c.Sample(), {"width": 3})


def test_exact_search_refuses_what_only_a_beam_or_a_sample_has() -> None:
    for key, value in (("risk", "chrf"), ("groups", 5), ("seed", 2), ("complete", 1)):
        with pytest.raises(ConfigError, match="not supported by exact search"):
            c.exact_decode(c.Beam(), {key: value})


def test_a_value_in_place_of_a_list_is_told_how_a_list_is_written() -> None:
    with pytest.raises(ConfigError) as told:
        parse({"task": {"kind": "translate"}, "data": {"source": "word"}}, "settings")
    assert 'settings: data.source: a list is needed, as in data.source=["word"]' in str(told.value)
