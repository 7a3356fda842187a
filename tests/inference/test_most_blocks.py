"""A request is refused exactly if it could not run even alone: tried with all numbers of blocks."""

from itertools import combinations_with_replacement, product

import pytest

from minipar.inference.scheduling import (
    Policy,
    Preemption,
    Request,
    RequestTooLarge,
    Scheduler,
    SchedulerConfig,
)

LENGTHS = [lengths for n in (1, 2, 3) for lengths in combinations_with_replacement((1, 2, 3, 6), n)]
ENOUGH = 40


class Unchecked(Scheduler):
    """A scheduler that refuses no request."""

    def check(self, request: Request) -> None:
        """Accept it."""


def runs_to_its_end(scheduler: Scheduler, request: Request) -> bool:
    """True if the request, alone, gets all its tokens; after many steps the answer is no."""
    scheduler.add(request)
    for _ in range(4 * (len(request.prompt) + sum(request.lengths))):
        step = scheduler.schedule()
        drawing = scheduler.advance(step)
        scheduler.finish(step, {sequence: 7 for _, sequence in drawing})
        if not scheduler.has_requests:
            return [len(request.outputs(each)) for each in sorted(
                request.ended, key=lambda sequence: sequence.answer_index)] == list(request.lengths)
    return False


def fresh(num_prompt: int, lengths: tuple[int, ...]) -> Request:
    return Request("A", [1] * num_prompt, max(lengths), len(lengths), lengths=list(lengths))


def is_refused(config: SchedulerConfig, request: Request) -> bool:
    try:
        Scheduler(config).check(request)
    except RequestTooLarge:
        return True
    return False


@pytest.mark.parametrize("preempt_by", Preemption)
@pytest.mark.parametrize("policy", Policy)
@pytest.mark.parametrize("block_size", [1, 2, 3, 4])
@pytest.mark.one_in(2)
def test_the_bound_is_the_least_number_of_blocks_with_which_it_runs(block_size, policy, preempt_by):
    for num_prompt, lengths in product(range(1, 2 * block_size + 2), LENGTHS):
        needed = fresh(num_prompt, lengths).most_blocks(block_size)
        for num_blocks in range(max(1, needed - 2), needed + 2):
            config = SchedulerConfig(num_blocks, block_size, prefix_caching=num_prompt % 2 == 0,
                                     policy=policy, preempt_by=preempt_by)
            runs = runs_to_its_end(Unchecked(config), fresh(num_prompt, lengths))
            assert runs == (num_blocks >= needed), (num_prompt, lengths, num_blocks)
            assert is_refused(config, fresh(num_prompt, lengths)) == (not runs)


@pytest.mark.parametrize("policy", [Policy.TOKEN_BUDGET, Policy.STATIC])
@pytest.mark.parametrize("budget", [1, 2, 3])
def test_a_budget_refuses_only_answers_that_cannot_share_a_step(budget, policy):
    for lengths in LENGTHS:
        config = SchedulerConfig(ENOUGH, 2, token_budget=budget, policy=policy)
        runs = runs_to_its_end(Unchecked(config), fresh(5, lengths))
        assert is_refused(config, fresh(5, lengths)) == (not runs), lengths


@pytest.mark.parametrize("num_prompt", range(1, 9))
@pytest.mark.parametrize("max_tokens", [1, 2, 5, 6])
def test_one_answer_needs_blocks_for_all_tokens_but_the_last(num_prompt, max_tokens):
    needed = Request("A", [1] * num_prompt, max_tokens).most_blocks(4)
    assert needed == -(-(num_prompt + max_tokens - 1) // 4)
