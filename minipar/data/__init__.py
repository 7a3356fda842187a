"""Data without downloads and without state, for lessons, tests and first programs.

    text.py       a text as token ids, one for each character: load_text("docs")
    tasks.py      handwritten digits; a made-up language whose best loss is known
    batches.py    the batch of a step, its rows on this rank, its microbatches

No iterator has a position: a run resumes at any step.
"""

from .batches import Batch, Batches, TextBatches, shard_range
from .tasks import Digits, SyntheticSequence, digits, synthetic_sequence
from .text import CharacterVocabulary, TextDataset, documentation_text, load_text, read_text

__all__ = ["Batch", "Batches", "CharacterVocabulary", "Digits", "SyntheticSequence",
           "TextBatches", "TextDataset", "digits", "documentation_text", "load_text", "read_text",
           "shard_range", "synthetic_sequence"]
