"""CoNaLa's intents and snippets as token<BLANK>token, the way its BLEU is counted.

    python recipes/conala/prepare.py train.jsonl > data/conala.train.tsv

Everything that is no letter, digit or underscore stands apart, camelCase is parted, and all quotes
are one, in intents as in snippets: so that what is to be copied looks the same in both.
"""

import json
import re
import sys


def cut(text: str) -> str:
    text = re.sub(r"([^A-Za-z0-9_])", r" \1 ", text)
    text = re.sub(r"([a-z])([A-Z])", r"\1 \2", text)
    return " ".join(re.sub("[\"'`]", "`", text).split())


def main() -> None:
    print("source\ttarget")
    with open(sys.argv[1], encoding="utf-8") as file:
        for row in map(json.loads, file):
            print(cut(row["rewritten_intent"]), cut(row["snippet"]), sep="\t")


if __name__ == "__main__":
    main()
