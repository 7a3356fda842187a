"""A checkpoint that answers: its model and tokenizer, and an engine on one rank or on a mesh."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from ..comm import Communicator
from ..comm.mesh import DeviceMesh
from ..data import Vocabulary
from ..inference import Engine, ModelRunner, SamplingParams, SchedulerConfig
from ..inference.cache import PagedKVCache
from ..inference.engine import Generation, IsStop
from ..inference.parallel.pipeline_engine import PipelineEngine
from ..inference.parallel.replica_router import ReplicaRouter, RoutedGeneration
from ..inference.parallel.tensor_runner import TensorParallelRunner
from ..launcher import UsageError
from ..nn import GPT
from ..parallel.tensor.parallelize import parallelize
from ..train.checkpoints.models import check_numbers, open_model
from ..train.tasks import LanguageTask

TextGeneration = Generation | RoutedGeneration      # a submitted request, on any engine


class TextModel(NamedTuple):
    """A model that generates text."""

    name: str
    model: GPT
    tokenizer: Vocabulary

    def encode(self, prompt: str) -> list[int]:
        """The tokens of a prompt.  Raises ValueError for an empty one, or an unknown character."""
        if not prompt:
            raise ValueError("the prompt is empty: give at least one character")
        return [int(token) for token in self.tokenizer.encode(prompt)]


def open_text_model(path: Path) -> TextModel:
    """The model of a checkpoint.  Raises UsageError if it generates no text."""
    checkpoint, task, model = open_model(path)
    check_numbers(path, checkpoint.model)
    if not isinstance(task, LanguageTask) or not isinstance(model, GPT):
        raise UsageError(f"{path}: this model generates no text: give the checkpoint of a GPT")
    folder = path if path.is_dir() else path.parent
    return TextModel(folder.resolve().name, model, task.vocabulary)


class TextEngine(Protocol):
    """The methods of every engine, whether it runs on one rank or on all ranks of a mesh."""

    engines: list[Engine]           # those that it consists of, on this rank

    @property
    def has_requests(self) -> bool:
        """True if any request is left to run."""

    def submit(self, prompt: list[int], max_tokens: int, params: SamplingParams | None = None,
               num_answers: int = 1, stop_tokens: Collection[int] = (),
               is_stop: IsStop | None = None, num_logprobs: int | None = None) -> Any:
        """Add a request; return its TextGeneration."""

    def cancel(self, generation: Any) -> None:
        """Forget a request."""

    def step(self) -> Any:
        """Run one step."""


def check_axes(sizes: Mapping[str, int]) -> None:
    """Raise UsageError for axes over which no text is generated."""
    if others := {axis for axis, size in sizes.items() if size > 1} - {"pp", "dp", "tp"}:
        raise UsageError(f"generating text runs over pp, dp and tp, not over {', '.join(others)}: "
                         "a model that was trained so is a plain one; leave it out")


def make_engine(model: GPT, config: SchedulerConfig, comm: Communicator | None = None,
                sizes: Mapping[str, int] | None = None,
                kind: type[PagedKVCache] = PagedKVCache) -> TextEngine:
    """Collective.  An engine on a mesh of `sizes` over the ranks of `comm`; without, on one rank.

    There are dp replicas.  Each has its layers on pp ranks, and its heads and vocabulary on tp
    ranks; for pp or tp the model is cut in place.  `kind` is the class of the cache:
    PagedKVCache or QuantizedKVCache.  Raises UsageError if the model cannot be cut so.
    """
    sizes = {axis: size for axis, size in (sizes or {}).items() if size > 1}
    check_axes(sizes)
    cache = config.num_blocks, config.block_size, kind
    if comm is None or not sizes:
        return Engine(ModelRunner(model, *cache), config)
    try:
        mesh = DeviceMesh(comm, **sizes)
        if "tp" in sizes:
            model = parallelize(model, mesh["tp"])
        engine: Engine | PipelineEngine
        if "pp" in sizes:
            engine = PipelineEngine(model, mesh["pp"], config, kind=kind)
        elif "tp" in sizes:
            engine = Engine(TensorParallelRunner(model, mesh["tp"], *cache), config)
        else:
            engine = Engine(ModelRunner(model, *cache), config)
        return ReplicaRouter(engine, mesh["dp"]) if "dp" in sizes else engine
    except ValueError as error:
        raise UsageError(str(error)) from error


def default_blocks(model: GPT, block_size: int, num_sequences: int) -> int:
    """The number of blocks for `num_sequences` sequences of the whole context."""
    return num_sequences * -(-model.config.context // block_size)


def text_of(tokenizer: Vocabulary, tokens: list[int]) -> str:
    """The text of tokens."""
    return tokenizer.decode(np.array(tokens, np.int64))
