"""The scheduler: requests that can never run are refused, cancelled ones leave nothing behind."""

import pytest

from minipar.inference.scheduling import (
    BlockPool,
    CachedSequence,
    Policy,
    Preemption,
    Request,
    RequestTooLarge,
    Scheduler,
    SchedulerConfig,
    prefix_keys,
)


def run_step(scheduler: Scheduler):
    """One step in which every sequence draws its position as its token."""
    step = scheduler.schedule()
    tokens = {sequence: len(sequence.tokens) for _, sequence in scheduler.advance(step)}
    scheduler.finish(step, tokens)
    return step


def is_empty(scheduler: Scheduler) -> bool:
    pools = scheduler.pool, scheduler.host_pool
    return not scheduler.has_requests and not any(pool.num_used for pool in pools)


def test_answers_need_their_blocks_together():
    scheduler = Scheduler(SchedulerConfig(num_blocks=7, block_size=4))
    # 5 tokens of prompt: one whole block is shared; positions up to 11: two more for each answer
    scheduler.add(Request("three", [1] * 5, 8, num_answers=3))
    with pytest.raises(RequestTooLarge, match="needs 9 blocks of 4 tokens, and the pool has 7"):
        scheduler.add(Request("four", [1] * 5, 8, num_answers=4))
    while scheduler.has_requests:
        run_step(scheduler)
    assert is_empty(scheduler)


def test_a_request_beyond_the_budget_of_any_step_is_refused():
    with pytest.raises(RequestTooLarge, match="raise token_budget from 2 to 3"):
        Scheduler(SchedulerConfig(9, token_budget=2)).add(Request("A", [1], 2, num_answers=3))
    with pytest.raises(RequestTooLarge, match="raise token_budget from 4 to 5"):
        Scheduler(SchedulerConfig(9, token_budget=4, policy="prompts_first")).add(
            Request("A", [1] * 5, 1))


def test_the_longest_request_that_fits_runs_to_its_end():
    for prompt in range(1, 9):
        scheduler = Scheduler(SchedulerConfig(num_blocks=3, block_size=4))
        scheduler.add(Request("A", [1] * prompt, 13 - prompt))
        while scheduler.has_requests:
            run_step(scheduler)
        with pytest.raises(RequestTooLarge, match="needs 4 blocks"):
            scheduler.add(Request("B", [1] * prompt, 14 - prompt))


def test_rules_may_be_given_as_strings():
    config = SchedulerConfig(6, preempt_by="swap", policy="static")
    assert config.preempt_by is Preemption.SWAP and config.policy is Policy.STATIC
    assert config == SchedulerConfig(6, preempt_by=Preemption.SWAP, policy=Policy.STATIC)
    with pytest.raises(ValueError, match="unknown policy 'luck': choose from token_budget, prompt"):
        SchedulerConfig(6, policy="luck")


@pytest.mark.parametrize("preempt_by", ["recompute", "swap"])
def test_cancelling_gives_everything_back_from_every_queue(preempt_by):
    def after(num_steps: int) -> tuple[Scheduler, list[Request]]:
        scheduler = Scheduler(SchedulerConfig(6, 4, max_requests=3, preempt_by=preempt_by))
        requests = [Request(name, [1] * 6, 9) for name in "ABCD"]
        for request in requests:
            scheduler.add(request)
        for _ in range(num_steps):
            run_step(scheduler)
        return scheduler, requests

    scheduler, _ = after(6)
    assert scheduler.waiting and (scheduler.swapped or preempt_by == "recompute")
    for victims in ((0,), (1, 2), (3, 0), (2,), (0, 1, 2, 3)):
        scheduler, requests = after(6)
        for victim in victims:
            scheduler.cancel(requests[victim])
        while scheduler.has_requests:
            run_step(scheduler)
        assert is_empty(scheduler)


def test_no_blocks_of_another_salt_are_used():
    scheduler = Scheduler(SchedulerConfig(9, 4, prefix_caching=True))
    hits = []
    for salt in ("", "", "adapter", "adapter"):
        scheduler.add(Request("A", [1] * 9, 1, salt=salt))
        hits.append(len(run_step(scheduler).hits))
    assert hits == [0, 1, 0, 1]


def test_a_preempted_request_that_outgrew_the_budget_comes_back_in_pieces():
    scheduler = Scheduler(SchedulerConfig(6, 2, token_budget=4, policy="prompts_first"))
    for name in "AB":
        scheduler.add(Request(name, [1] * 4, 8))
    steps = []
    while scheduler.has_requests:
        assert len(steps) < 40
        steps.append(run_step(scheduler))
    assert [request.name for step in steps for request in step.preempted] == ["B"]
    assert [each.num_tokens for step in steps[9:] for each in step.scheduled][:3] == [4, 3, 1]
    assert is_empty(scheduler)


def test_a_rewound_block_leaves_the_prefix_cache_when_it_is_overwritten():
    pool = BlockPool(4, 2)
    first = CachedSequence("first", [1, 2])
    first.allocate(pool, 2)
    first.num_computed = 2
    first.register(pool, 0)
    second = first.fork(pool, "second")
    second.rewind(pool, 1)                      # shared with the first, so still cached
    first.release(pool)
    assert pool.longest_prefix(prefix_keys([1, 2], 2)) == second.table      # 2 is still in its slot
    assert second.copy_on_write(pool) is None   # now 2 will be overwritten
    assert not pool.longest_prefix(prefix_keys([1, 2], 2))
