"""Data without downloads and without state, for lessons, tests and first programs.

    text.py       a text as token ids, one for each character: load_text("docs")
    byte_bpe.py   GPT-2's tokenizer
    markers.py    the tokens that begin and end a text
    vocabulary.py what all tokenizers can do, and how a checkpoint describes them
    tasks.py      handwritten digits; a made-up language whose best loss is known
    batches.py    the batch of a step, its rows on this rank, its microbatches

The number of a step determines its batch, so that a run can resume at any step.
"""

from .batches import Batch, Batches, TextBatches, shard_range
from .byte_bpe import ByteBPE
from .markers import Markers
from .tasks import Digits, SyntheticSequence, digits, synthetic_sequence
from .text import CharacterVocabulary, TextDataset, documentation_text, load_text, read_text
from .vocabulary import Numbers, Vocabulary, vocabulary_of

__all__ = ["Batch", "Batches", "ByteBPE", "CharacterVocabulary", "Digits", "Markers", "Numbers",
           "SyntheticSequence", "Vocabulary",
           "TextBatches", "TextDataset", "digits", "documentation_text", "load_text", "read_text",
           "shard_range", "synthetic_sequence", "vocabulary_of"]
