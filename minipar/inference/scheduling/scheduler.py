"""Continuous batching: decide before every step which requests compute which tokens.

    waiting ──admit──▶ running ──all tokens──▶ finished
       ▲                 │  ▲
       └──── recompute ──┤  │ swap in           preempted when blocks run short:
                         └▶ swapped             the latest request goes first

One step, in this order.  The engine makes these calls, or `minipar replay` without a model.

    schedule    a  Running requests compute first, the oldest before the others.  One that decodes
                   computes one token; one that is still in its prompt computes a chunk of it; all
                   together at most `token_budget`.  If blocks run short, the latest request is
                   preempted, and the schedule ends after a.
                b  Swapped requests come back, the oldest first.
                c  If none stays swapped, waiting requests are admitted, first come, first served.
    advance     The step's tokens count as computed; a finished prompt forks into its answers.
    (run)       The runner moves blocks as the ScheduledStep says, runs the model and draws tokens.
    finish      The drawn tokens are appended; finished requests give their blocks back.

`schedule` decides which requests are preempted, and gives their blocks to others at once.  The keys
and values themselves move in (run), before anything is written: `PagedKVCache.apply`.

The policy says when c comes:
    TOKEN_BUDGET     last, as above
    PROMPTS_FIRST    first, unless requests are swapped; if c admits a request, the schedule ends
                     there.  Otherwise a and b follow, and c once more if no request runs
    STATIC           last, and only if no request runs
Yu et al. 2022 (Orca), section 3: a new schedule every step.  Kwon et al. 2023, section 4.5.
"""

import math
from collections import deque
from collections.abc import Collection

from .block_pool import BlockPool, blocks_for, prefix_keys
from .block_table import CachedSequence
from .request import Request
from .scheduler_config import Policy, Preemption, RequestTooLarge, SchedulerConfig
from .step import Scheduled, ScheduledStep


class Scheduler:
    """The queues of requests, and the pools of blocks on the device and on the host.

    The model runs between `advance` and `finish`.  If it fails, empty the prefix cache
    (`forget_cached`).
    """

    def __init__(self, config: SchedulerConfig):
        self.config = config
        self.pool = BlockPool(config.num_blocks, config.block_size)
        self.host_pool = BlockPool(config.num_blocks, config.block_size)
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []        # in the order of admission
        self.swapped: list[Request] = []        # in the order of admission
        self.num_steps = 0
        self.tokens_queried = self.tokens_hit = 0       # of the prefix cache

    @property
    def has_requests(self) -> bool:
        """True if any request is left to run."""
        return bool(self.waiting or self.running or self.swapped)

    def add(self, request: Request) -> None:
        """Append a request to the waiting ones.  Raises RequestTooLarge if it can never run."""
        self.check(request)
        self.waiting.append(request)

    def check(self, request: Request) -> None:
        """Raise RequestTooLarge if a request can never run."""
        size, has, budget = self.config.block_size, self.config.num_blocks, self.config.token_budget
        needs = request.most_blocks(size)
        if needs > has:
            raise RequestTooLarge(
                f"request {request.name!r} needs {needs} blocks of {size} tokens, and the pool has "
                f"{has}: lower max_tokens, or enlarge the pool", needs_blocks=needs, has_blocks=has)
        # an answer of one token computes none: the token is drawn from the prompt's logits
        at_once = max(sum(length > 1 for length in request.lengths),
                      len(request.prompt) if self.config.policy is Policy.PROMPTS_FIRST else 1)
        if budget and at_once > budget:
            raise RequestTooLarge(
                f"request {request.name!r} computes {at_once} tokens at once: raise token_budget "
                f"from {budget} to {at_once}", needs_tokens=at_once, token_budget=budget)

    def schedule(self) -> ScheduledStep:
        """The next step: its blocks are taken, nothing is computed yet."""
        step = ScheduledStep(self.num_steps)
        self.num_steps += 1
        budget = self.config.token_budget or math.inf
        if self.config.policy is Policy.PROMPTS_FIRST and not self.swapped:
            self._admit(step, budget)
            if step.admitted:
                return step
        budget = self._schedule_running(step, budget)               # a
        if not step.preempted:
            budget = self._swap_in(step, budget)                    # b
            joins_running = self.config.policy is Policy.TOKEN_BUDGET
            if not self.swapped and (joins_running or not self.running):
                self._admit(step, budget)                           # c
        return step

    def _schedule_running(self, step: ScheduledStep, budget: float) -> float:
        """Let running requests compute, oldest first; preempt the latest if blocks run short."""
        for request in list(self.running):
            if request not in self.running:     # preempted below
                break
            num_tokens = self._share_of(request, budget)
            if not num_tokens:
                continue
            while request.blocks_to_allocate(self.pool, num_tokens) > len(self.pool.free):
                victim = self.running[-1]
                self._preempt(step, victim)
                if victim is request:
                    return budget
            budget -= self._allocate(step, request, num_tokens)
        return budget

    def _share_of(self, request: Request, budget: float) -> int:
        """The tokens that each sequence of a request computes within a budget."""
        return int(min(request.num_pending, budget // len(request.sequences)))

    def _allocate(self, step: ScheduledStep, request: Request, num_tokens: int) -> int:
        """Give a request the blocks of its next tokens; return how many all sequences compute."""
        step.scheduled.append(Scheduled(request, request.num_computed, num_tokens,
                                        len(request.sequences)))
        for sequence in request.sequences:
            copy = sequence.copy_on_write(self.pool)
            if copy:
                step.copied.append(copy)
            blocks = sequence.allocate(self.pool, num_tokens)
            step.allocated += [(sequence.name, block) for block in blocks]
        return num_tokens * len(request.sequences)

    def _preempt(self, step: ScheduledStep, request: Request) -> None:
        """Take all blocks of a running request; one with several sequences is always swapped."""
        self.running.remove(request)
        step.preempted.append(request)
        if self.config.preempt_by is Preemption.SWAP or len(request.sequences) > 1:
            self._swap_out(step, request)
        else:       # recompute: it is the first that waits, with nothing computed
            step.freed += request.sequences[0].release(self.pool)
            self.waiting.appendleft(request)

    def _swap_out(self, step: ScheduledStep, request: Request) -> None:
        """Move the blocks of a request to the host."""
        # several may be swapped out at once, and together have more blocks than the device
        self.host_pool.grow_to(request.num_blocks)
        moved, freed = request.move(self.pool, self.host_pool)
        step.swapped_out, step.freed = step.swapped_out + moved, step.freed + freed
        self.swapped.insert(0, request)         # it was admitted before the other swapped ones

    def _swap_in(self, step: ScheduledStep, budget: float) -> float:
        """Bring swapped requests back, oldest first, while their blocks and next tokens fit."""
        while self.swapped:
            request = self.swapped[0]
            num_tokens = self._share_of(request, budget)
            needed = request.num_blocks + request.blocks_to_allocate(self.host_pool, num_tokens)
            if not num_tokens or needed > len(self.pool.free):
                break
            self.running.append(self.swapped.pop(0))
            step.swapped_in += request.move(self.host_pool, self.pool)[0]
            budget -= self._allocate(step, request, num_tokens)
        return budget

    def _admit(self, step: ScheduledStep, budget: float) -> None:
        """Let waiting requests begin, first come, first served, while all limits allow it."""
        limit = self.config.max_requests or math.inf
        while self.waiting and budget > 0 and len(self.running) < limit:
            request = self.waiting[0]
            hits = self._cached_prefix(request)
            start, num_known = len(hits) * self.config.block_size, len(request.sequences[0].tokens)
            end = int(min(num_known, start + budget))
            # PROMPTS_FIRST cuts a prompt only when nothing else runs: a recomputed request may
            # exceed token_budget
            is_split = self.config.policy is Policy.PROMPTS_FIRST and end < num_known
            if (is_split and self.running) or not self._fits(hits, end):
                break
            self._begin(step, self.waiting.popleft(), hits)
            budget -= self._allocate(step, request, end - start)

    def _cached_prefix(self, request: Request) -> list[int]:
        """The cached blocks at the beginning of a request; its last token is always computed."""
        if not self.config.prefix_caching:
            return []
        known = request.sequences[0].tokens[:-1]
        return self.pool.longest_prefix(prefix_keys(known, self.config.block_size, request.salt))

    def _fits(self, hits: list[int], num_tokens: int) -> bool:
        """True if the free queue has room for the new blocks, and for the hits that lie in it."""
        new = blocks_for(num_tokens, self.config.block_size) - len(hits)
        return new + sum(block in self.pool.free for block in hits) <= len(self.pool.free)

    def _begin(self, step: ScheduledStep, request: Request, hits: list[int]) -> None:
        """Let an admitted request use the cached blocks of its prefix."""
        sequence = request.sequences[0]
        for block in hits:
            self.pool.share(block)
        sequence.table, sequence.num_computed = hits, len(hits) * self.config.block_size
        self.running.append(request)
        step.admitted.append(request)
        if hits:
            step.hits.append((request.name, list(hits)))
        if self.config.prefix_caching:
            self.tokens_queried += len(sequence.tokens)
            self.tokens_hit += sequence.num_computed

    def advance(self, step: ScheduledStep) -> list[tuple[Request, CachedSequence]]:
        """Before the model runs: book the step's tokens as computed; fork prompts that are done.

        Return the sequences that will draw a token from the model's logits.
        """
        drawing = []
        for request, start, num_tokens, _ in step.scheduled:
            for sequence in request.sequences:
                sequence.num_computed += num_tokens
                if self.config.prefix_caching:
                    sequence.register(self.pool, start, request.salt)
            if request.num_pending == 0:
                request.fork(self.pool)
                drawing += [(request, sequence) for sequence in request.sequences]
        return drawing

    def finish(self, step: ScheduledStep, tokens: dict[CachedSequence, int],
               stopped: Collection[CachedSequence] = ()) -> None:
        """Append each sequence's new token; then let complete and `stopped` sequences go."""
        for sequence, token in tokens.items():
            sequence.tokens.append(token)
        step.record_usage(self.running, self.config.block_size)
        for request in list(self.running):
            for sequence in list(request.sequences):
                if sequence in stopped or request.is_complete(sequence):
                    step.freed += request.end(sequence, self.pool)
            if not request.sequences:
                self.running.remove(request)
                step.finished.append(request)
        step.num_free = len(self.pool.free)

    def cancel(self, request: Request) -> None:
        """Forget a request and give its blocks back, in whichever queue it is."""
        pool = self.host_pool if request in self.swapped else self.pool
        for queue in (self.waiting, self.running, self.swapped):
            if request in queue:
                queue.remove(request)
        for sequence in list(request.sequences):
            request.end(sequence, pool)

    def forget_cached(self) -> None:
        """Empty the prefix cache."""
        for block in list(self.pool.key_of):
            self.pool.forget(block)
