"""`minipar generate CHECKPOINT`: text that follows one prompt or several, as it comes.

    minipar generate out/gpt --prompt "def " --max-tokens 200
    minipar generate out/gpt --prompt "a" --prompt "b" --temperature 0.7 --top-p 0.9 --samples 2
    minipar generate out/gpt --mesh tp=2 --ranks 2
    minipar generate out/gpt --draft out/small --drafts 4       speculative decoding

All prompts run at the same time, step by step; their texts are printed in their order.
"""

import argparse
import math
import time
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from ...comm import Cluster, Communicator
from ...environment import launched
from ...inference import SchedulerConfig
from ...inference.cache import CACHES
from ...inference.engine import Answer
from ...inference.sampling.speculative import SpeculativeDecoder
from ...launcher import UsageError, launch
from ...serve.detokenizer import Detokenizer
from ...serve.text_model import TextModel, make_engine, open_text_model
from ...train.setup.mesh import MOST_SIMULATED, sizes_of
from ..tables import Column, Output, Table
from .options import add_sampling, add_scheduling, sampling_of, scheduling_of

DEFAULT_TOKENS, DEFAULT_DRAFTS, MOST_SAMPLES = 100, 4, 2**16
NOT_WITH_DRAFT = {"samples": 1, "blocks": None, "cache": "full", "token_budget": None,
                  "max_requests": None, "prefix_caching": False,
                  "preempt_by": SchedulerConfig.preempt_by}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("checkpoint", type=Path, metavar="CHECKPOINT",
                        help="a checkpoint of a GPT, or the folder of one")
    parser.add_argument("--prompt", action="append", metavar="TEXT",
                        help="text to go on from; may be given several times (a line break)")
    parser.add_argument("--max-tokens", type=int, metavar="N",
                        help="tokens of each answer (100, or what the context has room for)")
    parser.add_argument("--samples", type=int, default=1, metavar="N",
                        help="answers to each prompt (1)")
    parser.add_argument("--stop", action="append", default=[], metavar="TEXT",
                        help="end an answer before this text; may be given several times")
    parser.add_argument("--ignore-eos", action="store_true",
                        help="go on after the model's end token")
    parser.add_argument("--draft", type=Path, metavar="CHECKPOINT",
                        help="a small model that guesses tokens, which the large one checks: "
                             "speculative decoding, of one prompt after the other")
    parser.add_argument("--drafts", type=int, metavar="N",
                        help="guesses for each step of the large model (4)")
    add_sampling(parser)
    add_scheduling(parser)
    parser.add_argument("--ranks", type=int, metavar="N",
                        help="number of simulated ranks; with mpirun it is known")
    parser.add_argument("--mesh", metavar="AXIS=N,…",
                        help="the grid of ranks: tp=2 (heads over ranks), pp=2 (layers over "
                             "ranks), dp=2 (replicas), or several: pp=2,tp=2")


def main(options: argparse.Namespace, output: Output) -> None:
    """Print the generated text.  Raises UsageError."""
    sizes = sizes_of(options.mesh) if options.mesh is not None else {}
    if options.ranks is not None and options.ranks < 1:
        raise UsageError(f"--ranks takes a positive whole number, not {options.ranks}: for example "
                         "--ranks 4")
    if not 1 <= options.samples <= MOST_SAMPLES:
        raise UsageError(f"--samples is a number from 1 to {MOST_SAMPLES}, not {options.samples}")
    if "" in options.stop:
        raise UsageError("--stop is empty, and would end every answer at once: give a text")
    world, product = launched(), math.prod(sizes.values())
    num_ranks = world.size if world else options.ranks or 1
    if options.mesh is None:
        sizes = {"dp": num_ranks}
    elif options.ranks is None and not world:
        num_ranks = product
    elif product != num_ranks:
        raise UsageError(f"--mesh {options.mesh} is for {product} ranks, and there are "
                         f"{num_ranks}: say --ranks {product}")
    if not world and num_ranks > MOST_SIMULATED:
        raise UsageError(f"{num_ranks} ranks are more than can be simulated here: choose at most "
                         f"{MOST_SIMULATED}")
    sampling_of(options)                    # mistakes are found before ranks start
    text = open_text_model(options.checkpoint)
    scheduling_of(options, text)
    check_draft(options, num_ranks)
    if options.draft is not None:
        speculate(options, output, text)
        return
    launch(lambda comm: run(comm, options, output, sizes), cluster=Cluster(num_ranks))


def check_draft(options: argparse.Namespace, num_ranks: int) -> None:
    """Raise UsageError for options that mean nothing with --draft, or without it."""
    if options.draft is None:
        if options.drafts is not None:
            raise UsageError("--drafts is the number of guesses of a model: name it with --draft")
        return
    if num_ranks > 1:
        raise UsageError(f"--draft decodes on one rank, not on {num_ranks}: leave --mesh, --ranks "
                         "and mpirun out")
    others = [f"--{name.replace('_', '-')}" for name, default in NOT_WITH_DRAFT.items()
              if getattr(options, name) != default]
    if others:
        raise UsageError("--draft decodes one answer at a time, in a cache of its own: leave "
                         f"{', '.join(others)} out")
    if options.drafts is not None and options.drafts < 1:
        raise UsageError(f"--drafts must be at least 1, not {options.drafts}")


def run(comm: Communicator, options: argparse.Namespace, output: Output,
        sizes: dict[str, int]) -> None:
    """Collective.  Generate all answers; rank 0 prints them."""
    text = open_text_model(options.checkpoint)
    engine = make_engine(text.model, scheduling_of(options, text), comm, sizes,
                         CACHES[options.cache])
    params, begin = sampling_of(options), time.perf_counter()
    printer = Printer(output.console if comm.rank == 0 else Console(quiet=True))
    for prompt in options.prompt or ["\n"]:
        stop = detokenizer_of(options, text)
        try:
            tokens = text.encode(prompt)
            generation = engine.submit(tokens, max_tokens_of(options, text, tokens), params,
                                       num_answers=options.samples, is_stop=stop.is_stop)
        except ValueError as error:
            raise UsageError(f"--prompt {prompt[:20]!r}: {error}") from error
        printer.shown += [Shown(prompt, answer, detokenizer_of(options, text))
                          for answer in generation.answers]
    while engine.has_requests:
        engine.step()
        printer.update()
    if comm.rank == 0:
        output.table(printer.table(time.perf_counter() - begin), show=False)


def speculate(options: argparse.Namespace, output: Output, text: TextModel) -> None:
    """Generate one answer after the other by speculative decoding, and print them."""
    draft, params = open_text_model(options.draft), sampling_of(options)
    draft.tokenizer.markers = text.tokenizer.markers        # a draft may have others, unused here
    if draft.tokenizer.description() != text.tokenizer.description():
        raise UsageError(f"--draft {options.draft}: its tokens are others than those of "
                         f"{options.checkpoint}: both need the same vocabulary")
    printer, begin = Printer(output.console), time.perf_counter()
    try:
        decoder = SpeculativeDecoder(text.model, draft.model, options.drafts or DEFAULT_DRAFTS,
                                     options.block_size)
        for prompt in options.prompt or ["\n"]:
            tokens = text.encode(prompt)
            shown = Shown(prompt, Answer(), detokenizer_of(options, text))
            printer.shown.append(shown)
            for token in decoder.generate(tokens, max_tokens_of(options, text, tokens), params):
                shown.answer.tokens.append(token)
                if shown.detokenizer.is_stop(shown.answer.tokens):
                    shown.answer.finish_reason = "stop"
                    break
                printer.update()
            shown.answer.finish_reason = shown.answer.finish_reason or "length"
            printer.update()
    except ValueError as error:
        raise UsageError(str(error)) from error
    stats = decoder.stats
    output.console.print(f"{stats.tokens_per_call:.2f} tokens for each step of the large model; "
                         f"{stats.accepted} of {stats.checked} guesses were right", style="dim")
    output.table(printer.table(time.perf_counter() - begin), show=False)


def detokenizer_of(options: argparse.Namespace, text: TextModel) -> Detokenizer:
    """What turns the tokens of one answer into text, and sees its end."""
    ends = () if options.ignore_eos else text.tokenizer.markers.ends
    return Detokenizer(text.tokenizer, options.stop, ends)


def max_tokens_of(options: argparse.Namespace, text: TextModel, prompt: list[int]) -> int:
    """The tokens of an answer, at most."""
    if options.max_tokens is not None:
        return options.max_tokens
    return max(1, min(DEFAULT_TOKENS, text.model.config.context - len(prompt)))


class Shown(NamedTuple):
    """An answer, and how much of its text was printed."""

    prompt: str
    answer: Answer
    detokenizer: Detokenizer


class Printer:
    """Prints answers in their order: each one streams as soon as those before it have ended."""

    def __init__(self, console: Console):
        self.console, self._next, self._has_head = console, 0, False
        self.shown: list[Shown] = []

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
