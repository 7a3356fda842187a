"""The tasks: a GPT on a text, or an MLP on digits.  Each has a model, batches and a score."""

import math
from functools import cached_property
from itertools import takewhile
from typing import NamedTuple, Protocol

import numpy as np

from ..autograd import no_grad
from ..data import Batches, CharacterVocabulary, TextBatches, digits, vocabulary_of
from ..inference import generate
from ..launcher import UsageError, errors_as_usage
from ..nn import GPT, MLP, Module
from .config import DataConfig, TrainConfig
from .setup.corpus import Corpus, NoText, absolute_path, data_seed, name_of_text, read_corpus
from .setup.gpt_sizes import gpt_config, sizes_of_gpt
from .setup.mlp_sizes import sizes_of_mlp

SCORED_BATCHES = 16         # of 32 windows of text that the model was not trained on


class Score(NamedTuple):
    """The loss of a model on data it has not seen, and of a classifier also its accuracy."""

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
    unseen: str                     # the data of the score, in words
    targets_per_sample: int

    def build(self) -> Module:
        """A new model, without numbers."""

    def trained_part(self, model: Module) -> Module:
        """The part of a model that computes in the precision of the run: by default all."""
        return model

    def describe(self) -> dict:
        """The entries of a checkpoint's description about the model and the data."""

    def progress(self, step: int) -> dict:
        """The entries of a description that say which data are used up before `step`."""
        return {}

    def go_on(self, description: dict) -> None:
        """Begin with the data that the run of a checkpoint with this description has not used.

        Raises UsageError if that cannot be.
        """

    def example_inputs(self) -> np.ndarray:
        """Inputs in the shape of a batch, made without reading a text."""

    def reference_loss(self) -> tuple[float, str]:
        """A loss in nats to compare with, and its name."""

    def score(self, model: Module) -> Score:
        """The score of the model on data it has not seen."""

    def summary(self, model: Module) -> tuple[Score, str]:
        """A quick score, and one line on it."""


class DigitsTask(Task):
    """Recognize digits with an MLP.  A resumed run, too, sees each sample once an epoch."""

    target, targets_per_sample, unseen = "image", 1, "handwritten digits it has not seen"

    def __init__(self, config: TrainConfig):
        self.config, self.data = config, digits()
        self.sizes = [self.data.train_x.shape[1], *hidden_sizes(config), 10]
        self.batches = self._batches(config.data.batch)

    def _batches(self, batch_size: int) -> Batches:
        x = self.data.train_x.astype(self.config.precision.dtype)
        return Batches(x, self.data.train_y, batch_size, self.config.run.seed)

    def build(self) -> MLP:
        return MLP(self.sizes, self.config.model.activation, self.config.model.dropout)

    def describe(self) -> dict:
        return {"data": "digits",
                "model": sizes_of_mlp(self.sizes, self.config.model.activation)}

    def progress(self, step: int) -> dict:
        return {"samples": self.batches.first_sample(step)}

    def go_on(self, description: dict) -> None:
        step, samples = description["step"], description.get("samples")
        if samples is None:         # older checkpoints: assume the last batch size for all steps
            batch_size = description["config"].get("data", {}).get("batch", DataConfig().batch)
            samples = self._batches(batch_size).first_sample(step)
        if samples % len(self.data.train_x) and description["seed"] != self.config.run.seed:
            raise UsageError(f"--seed {self.config.run.seed} would begin another order of samples "
                             f"within an epoch, which began with seed {description['seed']}: leave "
                             "--seed out")
        self.batches = self.batches.continued(step, samples)

    def example_inputs(self) -> np.ndarray:
        return self.batches.batch(0)[0]

    def reference_loss(self) -> tuple[float, str]:
        return math.log(10), "guessing evenly"

    def score(self, model: MLP) -> Score:
        with no_grad():
            logits = model.logits(self.data.test_x.astype(self.config.precision.dtype))
            nats = float(model.criterion(logits, self.data.test_y).data)
        correct = np.argmax(logits.data, axis=1) == self.data.test_y
        return Score(nats, float(np.mean(correct)))

    def summary(self, model: MLP) -> tuple[Score, str]:
        score = self.score(model)
        return score, (f"{score.accuracy:.1%} of {len(self.data.test_y)} digits it has not seen "
                       "are recognized")


def hidden_sizes(config: TrainConfig) -> list[int]:
    """--hidden as numbers.  Raises UsageError for another text."""
    text = config.model.hidden
    sizes = text.split(",") if text else []
    if any(not size.isdecimal() or int(size) < 1 for size in sizes):
        raise UsageError("--hidden takes sizes separated by commas, for example 128,64, not "
                         f"{text!r}")
    return [int(size) for size in sizes]


class LanguageTask(Task):
    """Predict the next token of a text: a character, if the vocabulary has characters.

    The vocabulary comes from the checkpoint, if there is one; the text is then read when it is
    first needed.  Otherwise the vocabulary comes from the text, which is read now.
    """

    def __init__(self, config: TrainConfig):
        self.config = config
        known = config.data.recorded.vocabulary
        self.vocabulary = vocabulary_of(known) if known \
            else CharacterVocabulary.from_text(self.corpus.text)
        has_characters = isinstance(self.vocabulary, CharacterVocabulary)
        self.target = "character" if has_characters and config.data.source != "synthetic" \
            else "token"
        self.unseen = f"the validation part of {name_of_text(config)}"
        self.sizes = gpt_config(config, len(self.vocabulary))
        self.targets_per_sample = config.model.context
        if not known:
            _ = self.batches, self.validation       # finds mistakes in the text now
        if config.run.sample:
            self._prompt()          # an unknown character is found now, not after the training

    @cached_property
    def corpus(self) -> Corpus:
        """The text.  Raises UsageError."""
        return read_corpus(self.config)

    @cached_property
    def ids(self) -> np.ndarray:
        """The text as tokens.  Raises UsageError for characters that the vocabulary lacks."""
        if not isinstance(self.vocabulary, CharacterVocabulary):
            with errors_as_usage(f"--data {self.config.data.source}: "):
                return self.vocabulary.encode(self.corpus.text)
        unknown = sorted(set(self.corpus.text) - set(self.vocabulary.characters))
        if unknown:
            raise UsageError(f"--data {self.config.data.source} has {len(unknown)} characters that "
                             f"the model does not know, {''.join(unknown)[:20]!r}: give a text of "
                             f"the {len(self.vocabulary)} characters it was trained on")
        return self.vocabulary.encode(self.corpus.text)

    @cached_property
    def batches(self) -> TextBatches:
        return self._windows(self.config.data.batch, "train")

    @cached_property
    def validation(self) -> TextBatches:
        """Windows that the model was not trained on."""
        return self._windows(32, "validation")

    def _windows(self, batch_size: int, split: str) -> TextBatches:
        with errors_as_usage():
            return TextBatches(self.ids, self.config.model.context, batch_size,
                               self.config.run.seed, split)

    @property
    def optimal_loss(self) -> float | None:
        """The smallest possible loss, where it is known."""
        return self.corpus.optimal_loss

    def build(self) -> GPT:
        return GPT(self.sizes)

    def describe(self) -> dict:
        return {"data": self.config.data.source, "data_path": absolute_path(self.config),
                "data_seed": data_seed(self.config), "vocabulary": self.vocabulary.description(),
                "model": sizes_of_gpt(self.sizes)}

    def example_inputs(self) -> np.ndarray:
        shape = self.config.data.batch, self.config.model.context
        return np.arange(math.prod(shape), dtype=np.int64).reshape(shape) % len(self.vocabulary)

    def reference_loss(self) -> tuple[float, str]:
        if self.optimal_loss is not None:
            return self.optimal_loss, "the best possible"
        return math.log(len(self.vocabulary)), "guessing evenly"

    def score(self, model: GPT, num_batches: int = SCORED_BATCHES) -> Score:
        """The score on the first batches of the validation part."""
        with no_grad():
            losses = [float(model.loss(*self.validation.batch(i)[:2]).data)
                      for i in range(num_batches)]
        return Score(float(np.mean(losses)))

    def summary(self, model: GPT) -> tuple[Score, str]:
        score = self.score(model, 4)
        text = (f"validation loss {score.nats:.3f} nats = {score.bits:.2f} bits per {self.target}, "
                f"on the last tenth of {name_of_text(self.config)}")
        best = self.optimal_loss
        known = "" if best is None else f" (the best possible is {best:.3f} nats)"
        return score, text + known

    def _prompt(self) -> np.ndarray:
        prompt = self.config.run.prompt.replace("\\n", "\n")
        if self.config.data.source == "synthetic" and prompt == "\n":
            prompt = "A"
        with errors_as_usage("--prompt: "):
            ids = self.vocabulary.encode(prompt)
        if not ids.size:
            raise UsageError("--prompt must have at least one character")
        return ids

    def sample(self, model: GPT) -> str:
        """Generated text, after the prompt and up to an end token."""
        run, ends = self.config.run, self.vocabulary.markers.ends
        tokens = takewhile(lambda token: token not in ends, generate(
            model, self._prompt(), run.sample, run.temperature, run.seed))
        return self.vocabulary.decode(np.array(list(tokens), np.int64))


def make_task(config: TrainConfig) -> LanguageTask | DigitsTask:
    """The task that --data names.  Raises UsageError for data or sizes that cannot work."""
    with errors_as_usage():
        return DigitsTask(config) if config.data.source == "digits" else LanguageTask(config)


def score_line(score: Score, task: Task) -> str:
    """One line on a score: how good, and on which data."""
    share = f" = {score.bits:.4f} bits per {task.target}" if score.accuracy is None \
        else f", {score.accuracy:.2%} of {task.target}s recognized"
    return f"loss {score.nats:.4f} nats{share}, on {task.unseen}"


def try_score(task: Task, model: Module) -> tuple[Score | None, str]:
    """The score and a line on it; or None and the reason, where the text is gone."""
    try:
        score = task.score(model)
    except NoText as error:
        return None, f"not scored: {error}"
    return score, score_line(score, task)
