"""Data without downloads and without state: what the lessons and tests train on."""

from .batches import Batches, TextBatches, shard_range
from .tasks import Digits, SyntheticSequence, digits, synthetic_sequence
from .text import CharacterVocabulary, documentation_text, read_text

__all__ = ["Batches", "CharacterVocabulary", "Digits", "SyntheticSequence", "TextBatches", "digits",
           "documentation_text", "read_text", "shard_range", "synthetic_sequence"]
