"""Trees for a decoder that says no words: each is XX, and a tag stays only on a word that is alone.

    python recipes/constituency_craft/prepare.py train.tsv > data/craft.train.tsv

Reads sentence<TAB>tree with a header, as in "(S (NP (DT the) (NN cat)) (VP (VBZ sits)))", and
writes "(S (NP XX XX ) (VP (VBZ XX ) ) )": no tags of words that stand beside others, and blanks
before brackets that close, so that each token is a word of a small vocabulary. The words are those
of the sentence, in their order (Vinyals et al. 2015, arxiv.org/abs/1412.7449); no bracket of more
than a tag is lost.
"""

import re
import sys
from collections.abc import Iterator

Node = str | tuple[str, list["Node"]]


def read(tokens: Iterator[str]) -> tuple[str, list[Node]]:
    """The bracket whose opening was read."""
    label, children = next(tokens), list[Node]()
    for token in tokens:
        if token == ")":
            break
        children.append(read(tokens) if token == "(" else token)
    return label, children


def written(node: Node, alone: bool = False) -> str:
    if isinstance(node, str):
        return "XX"
    label, children = node
    if not alone and len(children) == 1 and isinstance(children[0], str):
        return "XX"  # a tag on a word among others
    inner = " ".join(written(child, alone=len(children) == 1) for child in children)
    return f"({label} {inner} )"


def main() -> None:
    with open(sys.argv[1], encoding="utf-8") as file:
        print(next(file).rstrip("\n"))
        for line in file:
            sentence, tree = line.rstrip("\n").split("\t")
            tokens = iter(re.findall(r"[()]|[^\s()]+", tree))
            next(tokens)
            print(f"{sentence}\t{written(read(tokens), alone=True)}")


if __name__ == "__main__":
    main()
