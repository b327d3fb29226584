"""Strings to ids and back: tokenizers for text, vocabularies for labels."""

from saccade.text.tokenizers import Tokenizer
from saccade.text.vocab import SPECIALS, Inventory, Specials, Vocab

__all__ = ["SPECIALS", "Inventory", "Specials", "Tokenizer", "Vocab"]
