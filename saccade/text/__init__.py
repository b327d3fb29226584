"""Strings to ids and back: tokenizers for text, vocabularies for labels."""

from saccade.text.tokenizers import Tokenizer
from saccade.text.vocab import BOS, EOS, PAD, SEP, SPECIALS, UNK, Vocab

__all__ = ["BOS", "EOS", "PAD", "SEP", "SPECIALS", "UNK", "Tokenizer", "Vocab"]
