"""`minipar generate CHECKPOINT`: text that follows one prompt or several, as it comes.

    minipar generate out/gpt --prompt "def " --max-tokens 200
    minipar generate out/gpt --prompt "a" --prompt "b" --temperature 0.7 --top-p 0.9 --samples 2
    minipar generate out/gpt --mesh tp=2 --ranks 2
    minipar generate out/gpt --draft out/small --drafts 4       speculative decoding

All prompts run at the same time, step by step; with --draft they run one after the other.  The
texts are printed in the order of the prompts.
"""

import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from ...comm import Cluster, Communicator
from ...inference.cache import CACHES
from ...inference.engine import Answer
from ...inference.sampling.speculative import SpeculativeDecoder
from ...launcher import UsageError, errors_as_usage, launch
from ...serve.detokenizer import Detokenizer
from ...serve.text_model import TextModel, make_engine, open_text_model
from ...train.option import Beside, checkpoint, option, ranks
from ..tables import Column, Output, Table
from .options import SamplingOptions, SchedulingOptions, sizes_for

DEFAULT_TOKENS = 100


def main(options: "Options", output: Output) -> None:
    """Print the generated text.  Raises UsageError."""
    if "" in options.stop:
        raise UsageError("--stop is empty, and would end every answer at once: give a text")
    sizes = sizes_for(options.mesh, options.ranks)
    num_ranks = math.prod(sizes.values())
    if options.draft is not None and num_ranks > 1:
        raise UsageError(f"--draft decodes on one rank, not on {num_ranks}: leave --mesh, --ranks "
                         "and mpirun out")
    _ = options.sampling                    # mistakes are found before ranks start
    text = open_text_model(options.checkpoint)
    options.scheduling(text)
    if options.draft is not None:
        speculate(options, output, text)
        return
    launch(lambda comm: run(comm, options, output, sizes), cluster=Cluster(num_ranks))


@dataclass(frozen=True, kw_only=True)
class Options(SamplingOptions, SchedulingOptions):
    """The options of the command."""

    checkpoint: Path = checkpoint("a checkpoint of a GPT, or the folder of one")
    prompt: tuple[str, ...] = option(("\n",), "text to go on from; may be given several times",
                                     metavar="TEXT", default_text="a line break")
    max_tokens: int | None = option(None, "tokens of each answer", least=1, default_text=(
        f"{DEFAULT_TOKENS}, or what the context has room for"))
    samples: int = option(1, "answers to each prompt", least=1, most=2**16)
    stop: tuple[str, ...] = option((), "end an answer before this text; may be given several times",
                                   metavar="TEXT")
    ignore_eos: bool = option(False, "go on after the model's end token")
    draft: Path | None = option(
        None, "a small model that guesses tokens, which the large one checks: speculative "
        "decoding, of one prompt after the other", metavar="CHECKPOINT",
        without=tuple([Beside(key, "", "decodes one answer at a time, in a cache of its own")
                       for key in ("samples", "blocks", "cache", "token_budget", "max_requests",
                                   "prefix_caching", "preempt_by")]))
    drafts: int = option(4, "guesses for each step of the large model", least=1,
                         needs=Beside("draft", "CHECKPOINT", "is the number of guesses of a model"))
    ranks: int | None = ranks(None, text="number of simulated ranks; with mpirun it is known")
    mesh: str | None = option(None, "the grid of ranks: tp=2 (heads over ranks), pp=2 (layers over "
                              "ranks), dp=2 (replicas), or several: pp=2,tp=2", metavar="AXIS=N,…")


def run(comm: Communicator, options: Options, output: Output, sizes: dict[str, int]) -> None:
    """Collective.  Generate all answers; rank 0 prints them."""
    text = open_text_model(options.checkpoint)
    engine = make_engine(text.model, options.scheduling(text), comm, sizes, CACHES[options.cache])
    params, begin = options.sampling, time.perf_counter()
    printer = Printer(output.console if comm.rank == 0 else Console(quiet=True))
    for prompt in options.prompt:
        stop = detokenizer_of(options, text)
        with errors_as_usage(f"--prompt {prompt[:20]!r}: "):
            tokens = text.encode(prompt)
            generation = engine.submit(tokens, max_tokens_of(options, text, tokens), params,
                                       num_answers=options.samples, is_stop=stop.is_stop)
        printer.shown += [ShownAnswer(prompt, answer, detokenizer_of(options, text))
                          for answer in generation.answers]
    while engine.has_requests:
        engine.step()
        printer.update()
    if comm.rank == 0:
        output.table(printer.table(time.perf_counter() - begin), show=False)


def speculate(options: Options, output: Output, text: TextModel) -> None:
    """Generate one answer after the other by speculative decoding, and print them."""
    draft, params = open_text_model(options.draft), options.sampling
    draft.tokenizer.markers = text.tokenizer.markers        # the draft's own are not used here
    if draft.tokenizer.description() != text.tokenizer.description():
        raise UsageError(f"--draft {options.draft}: its tokens are others than those of "
                         f"{options.checkpoint}: both need the same vocabulary")
    printer, begin = Printer(output.console), time.perf_counter()
    decoder = SpeculativeDecoder(text.model, draft.model, options.drafts, options.block_size)
    for prompt in options.prompt:
        with errors_as_usage(f"--prompt {prompt[:20]!r}: "):
            tokens = text.encode(prompt)
            drawn = decoder.generate(tokens, max_tokens_of(options, text, tokens), params)
        shown = ShownAnswer(prompt, Answer(), detokenizer_of(options, text))
        printer.shown.append(shown)
        for token in drawn:
            shown.answer.tokens.append(token)
            if shown.detokenizer.is_stop(shown.answer.tokens):
                shown.answer.finish_reason = "stop"
                break
            printer.update()
        shown.answer.finish_reason = shown.answer.finish_reason or "length"
        printer.update()
    stats = decoder.stats
    output.console.print(f"{stats.tokens_per_call:.2f} tokens for each step of the large model; "
                         f"{stats.accepted} of {stats.checked} guesses were right", style="dim")
    output.table(printer.table(time.perf_counter() - begin), show=False)


def detokenizer_of(options: Options, text: TextModel) -> Detokenizer:
    """A detokenizer, which turns the tokens of one answer into text and sees its end."""
    ends = () if options.ignore_eos else text.tokenizer.markers.ends
    return Detokenizer(text.tokenizer, options.stop, ends)


def max_tokens_of(options: Options, text: TextModel, prompt: list[int]) -> int:
    """The largest number of tokens of an answer to `prompt`."""
    if options.max_tokens is not None:
        return options.max_tokens
    return max(1, min(DEFAULT_TOKENS, text.model.config.context - len(prompt)))


class ShownAnswer(NamedTuple):
    """An answer, and the detokenizer that knows how much of its text was printed."""

    prompt: str
    answer: Answer
    detokenizer: Detokenizer


class Printer:
    """Prints answers in order: each one streams as soon as the answers before it have ended."""

    def __init__(self, console: Console):
        self.console, self._next, self._has_head = console, 0, False
        self.shown: list[ShownAnswer] = []

    def update(self) -> None:
        """Print the text that is new."""
        while self._next < len(self.shown):
            prompt, answer, detokenizer = self.shown[self._next]
            if not self._has_head and len(self.shown) > 1:
                self.console.rule(repr(prompt)[1:-1][:60], align="left")
            self._has_head = True
            is_last = answer.finish_reason is not None
            new = detokenizer.update(answer.tokens, is_last)
            self.console.print(new, end="", markup=False)
            if not is_last:
                return
            self.console.print()
            self._next, self._has_head = self._next + 1, False

    def table(self, seconds: float) -> Table:
        """The answers, for scripts."""
        table = Table.of(f"generated in {seconds:.2f} s", "prompt", Column("text", is_text=True),
                         "tokens", Column("ended by", is_text=True))
        for prompt, answer, detokenizer in self.shown:
            table.add(prompt, detokenizer.shown, len(answer.tokens), answer.finish_reason)
        return table
