"""AESLC's e-mails as TSV: the first words of the body, and the subject.

python recipes/aeslc/prepare.py train.jsonl > data/aeslc.train.tsv
"""

import json
import sys

WORDS = 80  # of the body


def main(path: str) -> None:
    print("source\ttarget")
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            mail = json.loads(line)
            print(
                " ".join(mail["body"].split()[:WORDS]), " ".join(mail["subject"].split()), sep="\t"
            )


if __name__ == "__main__":
    main(sys.argv[1])
