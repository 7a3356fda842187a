"""What can be trained on: a task brings its model, its batches and what to show of the result."""

import argparse
import math
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np

from ..autograd import no_grad
from ..checkpoint import Checkpoint
from ..data import Batches, CharacterVocabulary, TextBatches, digits
from ..inference import generate
from ..launcher import UsageError
from ..nn import GPT, MLP, Module
from .corpus import Corpus, data_seed, place_of, read_corpus
from .flags import gpt_config, hidden_sizes

SCORED_BATCHES = 16         # of 32 windows of text that the model was not trained on


class Score(NamedTuple):
    """How well a model does on data it has not seen: its loss; of a classifier, how much is right.
    """

    nats: float
    accuracy: float | None = None

    @property
    def bits(self) -> float:
        """The loss in bits."""
        return self.nats / math.log(2)


class Task(Protocol):
    """A model to train and the data to train it on."""

    batches: TextBatches | Batches  # reading them may raise UsageError: the data may be gone
    target: str                     # what one target is: a character, a token, an image

    def build(self) -> Module:
        """A new model, without numbers."""

    def describe(self) -> dict:
        """What a checkpoint has to say for the run to be repeated or resumed."""

    def example_inputs(self) -> np.ndarray:
        """Inputs of the shape of a batch's, for which no data are read."""

    def reference_loss(self) -> tuple[float, str]:
        """A loss in nats to compare with, and what it is."""

    def score(self, model: Module) -> Score:
        """How well the model does on data it has not seen."""

    def summary(self, model: Module) -> str:
        """One line on that."""


class LanguageTask:
    """Predict the next character of a text, or the next token of the synthetic language.

    The vocabulary is that of the options, from a checkpoint, or else of the text, which is read now
    or, if there is a vocabulary, when it is needed.
    """

    def __init__(self, options: argparse.Namespace):
        self.options = options
        self.target = "token" if options.data == "synthetic" else "character"
        self.vocabulary = CharacterVocabulary(options.vocabulary) if options.vocabulary \
            else CharacterVocabulary.from_text(self.corpus.text)
        self.config = gpt_config(options, len(self.vocabulary))
        if not options.vocabulary:
            _ = self.batches, self.validation       # what is wrong with them is found now
        if options.sample:
            self._prompt()          # an unknown character is found now, not after the training

    @cached_property
    def corpus(self) -> Corpus:
        """The text.  Raises UsageError."""
        return read_corpus(self.options)

    @cached_property
    def ids(self) -> np.ndarray:
        """The text as tokens.  Raises UsageError for characters that the vocabulary lacks."""
        unknown = sorted(set(self.corpus.text) - set(self.vocabulary.characters))
        if unknown:
            raise UsageError(f"--data {self.options.data} has {len(unknown)} characters that the "
                             f"model does not know, {''.join(unknown)[:20]!r}: give a text of the "
                             f"{len(self.vocabulary)} characters it was trained on")
        return self.vocabulary.encode(self.corpus.text)

    @cached_property
    def batches(self) -> TextBatches:
        """See Task."""
        return self._windows(self.options.batch, "train")

    @cached_property
    def validation(self) -> TextBatches:
        """Windows that the model was not trained on."""
        return self._windows(32, "validation")

    def _windows(self, batch_size: int, split: str) -> TextBatches:
        try:
            return TextBatches(self.ids, self.options.context, batch_size, self.options.seed, split)
        except ValueError as error:
            raise UsageError(str(error)) from error

    @property
    def optimal_loss(self) -> float | None:
        """The smallest possible loss, where it is known."""
        return self.corpus.optimal_loss

    def build(self) -> GPT:
        """See Task."""
        return GPT(self.config)

    def describe(self) -> dict:
        """See Task."""
        return {"data": self.options.data, "data_path": place_of(self.options),
                "data_seed": data_seed(self.options), "vocabulary": self.vocabulary.characters,
                "model": dict(vars(self.config))}

    def example_inputs(self) -> np.ndarray:
        """See Task."""
        shape = self.options.batch, self.options.context
        return np.arange(math.prod(shape), dtype=np.int64).reshape(shape) % len(self.vocabulary)

    def reference_loss(self) -> tuple[float, str]:
        """See Task."""
        if self.optimal_loss is not None:
            return self.optimal_loss, "the best possible"
        return math.log(len(self.vocabulary)), "guessing evenly"

    def score(self, model: GPT, num_batches: int = SCORED_BATCHES) -> Score:
        """See Task; of the first batches of the validation part."""
        with no_grad():
            losses = [float(model.loss(*self.validation.batch(i)[:2]).data)
                      for i in range(num_batches)]
        return Score(float(np.mean(losses)))

    def summary(self, model: GPT) -> str:
        """See Task."""
        score = self.score(model, 4)
        text = f"validation loss {score.nats:.3f} nats = {score.bits:.2f} bits per {self.target}"
        if self.optimal_loss is not None:
            text += f" (the best possible is {self.optimal_loss:.3f} nats)"
        return text

    def _prompt(self) -> np.ndarray:
        prompt = self.options.prompt.replace("\\n", "\n")
        if self.options.data == "synthetic" and prompt == "\n":
            prompt = "A"
        try:
            ids = self.vocabulary.encode(prompt)
        except ValueError as error:
            raise UsageError(f"--prompt: {error}") from error
        if not ids.size:
            raise UsageError("--prompt must have at least one character")
        return ids

    def sample(self, model: GPT) -> str:
        """Generated text, after the prompt."""
        tokens = generate(model, self._prompt(), self.options.sample, self.options.temperature,
                          self.options.seed)
        return self.vocabulary.decode(np.array(list(tokens), np.int64))


class DigitsTask:
    """Recognize handwritten digits with an MLP."""

    target = "image"

    def __init__(self, options: argparse.Namespace):
        self.options, self.data = options, digits()
        self.sizes = [self.data.train_x.shape[1], *hidden_sizes(options), 10]
        x = self.data.train_x.astype(options.dtype)
        self.batches = Batches(x, self.data.train_y, options.batch, options.seed)

    def build(self) -> MLP:
        """See Task."""
        return MLP(self.sizes, dropout=self.options.dropout)

    def describe(self) -> dict:
        """See Task."""
        return {"data": "digits", "model": {"sizes": self.sizes}}

    def example_inputs(self) -> np.ndarray:
        """See Task."""
        return self.batches.batch(0)[0]

    def reference_loss(self) -> tuple[float, str]:
        """See Task."""
        return math.log(10), "guessing evenly"

    def score(self, model: MLP) -> Score:
        """See Task."""
        with no_grad():
            logits = model.logits(self.data.test_x.astype(self.options.dtype))
            nats = float(model.criterion(logits, self.data.test_y).data)
        correct = np.argmax(logits.data, axis=1) == self.data.test_y
        return Score(nats, float(np.mean(correct)))

    def summary(self, model: MLP) -> str:
        """See Task."""
        return (f"{self.score(model).accuracy:.1%} of {len(self.data.test_y)} digits it has not "
                "seen are recognized")


def make_task(options: argparse.Namespace) -> LanguageTask | DigitsTask:
    """The task that --data names.  Raises UsageError, saying what is wrong with it."""
    try:
        return DigitsTask(options) if options.data == "digits" else LanguageTask(options)
    except (ValueError, OSError) as error:
        raise UsageError(str(error)) from error


def check_resume(task: Task, checkpoint: Checkpoint, options: argparse.Namespace) -> None:
    """Refuse to go on from a checkpoint of another model or data.  Raises UsageError."""
    ours, theirs = task.describe(), checkpoint.description
    for what, mend in (("vocabulary", "give the --data it was trained on"),
                       ("model", "give the sizes it was trained with")):
        if _given(ours.get(what)) != _given(theirs.get(what)):
            raise UsageError(f"--resume {options.resume}: the {what} of the checkpoint differs, "
                             f"{_difference(theirs.get(what), ours.get(what))}: {mend}")
    if theirs.get("optimizer") not in (None, options.optimizer):
        raise UsageError(f"--resume {options.resume}: the checkpoint was trained with "
                         f"--optimizer {theirs['optimizer']}, not {options.optimizer}")
    if theirs["step"] >= options.steps:
        raise UsageError(f"--resume {options.resume}: {theirs['step']} steps are done already: "
                         f"ask for more with --steps {theirs['step'] + options.steps}")


def _given(described: object) -> object:
    """Without the sizes that follow from others: None, or not there in older checkpoints."""
    if not isinstance(described, dict):
        return described
    return {name: value for name, value in described.items() if value is not None}


def _difference(theirs: object, ours: object) -> str:
    if isinstance(theirs, dict) and isinstance(ours, dict):
        keys = [key for key in {**theirs, **ours} if theirs.get(key) != ours.get(key)]
        return ", ".join(f"{key} is {theirs.get(key)}, not {ours.get(key)}" for key in keys)
    if isinstance(theirs, str) and isinstance(ours, str):
        return f"{len(theirs)} characters against {len(ours)} in --data"
    return "it is of another kind"
