"""What is chosen does not hang on one line."""

import random

from saccade.data.lines import Example
from saccade.setup.choose import fill_config, gather
from saccade.setup.survey import survey


def words(count, seed=3):
    numbers = random.Random(seed)
    return ["".join(numbers.choices("abcdefg", k=numbers.randint(3, 9))) for _ in range(count)]


def test_one_endless_source_changes_no_setting(tmp_path):
    chosen = []
    for name, more in (("plain", ""), ("endless", "x" * 60_000 + "\tabc\n")):
        path = tmp_path / f"{name}.tsv"
        lines = [f"{word}\t{word[::-1]}\n" for word in words(300)]
        path.write_text("".join(lines) + more)
        chosen.append(fill_config(*gather(path))[0])
    plain, endless = chosen
    assert plain.task.metric == endless.task.metric == "sequence_error"
    for part in ("task", "encoder", "decoder", "train", "decode"):
        assert getattr(plain, part) == getattr(endless, part)


def test_one_endless_target_does_not_set_the_longest_output():
    rows = [Example((word,), word[::-1]) for word in words(300)]
    longest = max(len(str(row.target)) for row in rows)
    assert survey(rows).longest_target == longest
    odd = [*rows, Example(("a",), "b " * 30_000)]
    assert survey(odd).longest_target == longest
    assert not survey(odd).symbols


def test_targets_that_are_really_long_are_not_cut():
    rows = [Example(("a",), "b" * (5 + i % 40)) for i in range(300)]
    rows += [Example(("a",), "b" * 900) for _ in range(9)]
    assert survey(rows).longest_target == 900
    assert survey(rows[:20] + rows[-1:]).longest_target == 900  # too few to tell
