"""The errors of this package: what was expected, what came, how to mend it."""

from collections.abc import Sequence

NO_VALUES_MESSAGE = ("the model has no numbers: call model.initialize(seed) first, and give it to "
                     "one strategy only")
NOT_REDUCED_MESSAGE = (
    "these gradients are still those of this rank alone: call strategy.backward(loss) "
    "instead of loss.backward(), and run the last microbatches outside no_sync()")
NEEDS_ALL_STAGES_MESSAGE = (
    "the stages of a pipeline compute a batch together, each of them in its turn: give its "
    "microbatches to strategy.forward_backward(microbatches), instead of calling "
    "model.loss and strategy.backward")
TIED_STAGES_MESSAGE = (
    "a weight is on two stages, which step at different times: choose a model with untied "
    "embeddings (--set model.untied=true)")
NO_LOSS_SCALE_MESSAGE = (
    "a stage steps before a gradient can be unscaled: train without a loss scale")
NO_NORM_MESSAGE = (
    "no stage waits for the gradients of the others, so there is no norm of all of them: leave "
    "clipping out (--clip 0)")
NEEDS_SLICES_MESSAGE = (
    "terapipe cuts the sequences of a GPT without dropout and experts into slices: give such a "
    "model")


def reduced_already_error() -> ValueError:
    """A backward would add to gradients that were summed over the ranks, and sum them again."""
    return ValueError("these gradients were reduced already, and would be again: call zero_grad() "
                      "first, or add up microbatches inside no_sync()")


def pipeline_only_error(strategy: str, schedule: str) -> ValueError:
    """A mesh or a schedule that a strategy cannot use which is a pipeline by itself."""
    return ValueError(f"{strategy} trains a stage on each rank by the schedule {schedule}: give "
                      "the mesh pp alone, and no other schedule")


def whole_gradients_error(wire: str) -> ValueError:
    """A wire that needs whole gradients, with a strategy that cuts them."""
    return ValueError(f"{wire} sums whole gradients: choose ddp, or send gradients in another way")


def no_wire_error(strategy: str) -> ValueError:
    """A wire that nothing would be sent by."""
    return ValueError(f"{strategy} sends no gradients by a wire: leave wire out, or choose ddp")


def accumulation_error(strategy: str) -> ValueError:
    """`no_sync` of a strategy that keeps no whole gradient."""
    return ValueError(f"{strategy} keeps no whole gradient that could add up: it reduces after "
                      "every backward; leave no_sync() out")


def cuts_error(cuts: Sequence[int], num_parts: int, num_stages: int) -> ValueError:
    """`cuts` that do not make `num_stages` stages, each with a part."""
    return ValueError(f"cuts={list(cuts)} do not cut {num_parts} parts into {num_stages} stages: "
                      f"give {num_stages - 1} numbers of parts that rise from 1 to {num_parts - 1}")


def in_no_part_error(names: Sequence[str]) -> ValueError:
    """Parameters whose module is in no part of the model's chain."""
    return ValueError(f"no part of the chain has {', '.join(names)}: list the module of every "
                      "parameter in its ChainPart")


def too_narrow_error(num_ranks: int) -> ValueError:
    """An axis of length 1, which tensor parallelism would cut."""
    return ValueError(f"a layer of width 1 cannot be cut over {num_ranks} ranks: make it wider, or "
                      "leave tensor parallelism off")


def heads_do_not_divide_error(heads: int, kv_heads: int, num_ranks: int) -> ValueError:
    """Attention whose heads, or kv heads, the ranks cannot share evenly."""
    numbers = ", ".join(str(n) for n in range(1, kv_heads + 1) if not kv_heads % n)
    return ValueError(f"{heads} heads with {kv_heads} of keys and values do not divide over "
                      f"{num_ranks} ranks: choose tp of {numbers}")


def ulysses_heads_do_not_divide_error(heads: int, kv_heads: int, num_ranks: int) -> ValueError:
    """Attention whose heads the ranks of Ulysses cannot share evenly."""
    good = [n for n in range(1, heads + 1)
            if not heads % n and not (kv_heads % n and n % kv_heads)]
    return ValueError(f"Ulysses gives {heads} heads with {kv_heads} of keys and values to "
                      f"{num_ranks} ranks, which does not divide: choose a degree of "
                      f"{', '.join(map(str, good))}, or the ring")


def experts_of_whole_sequences_error() -> ValueError:
    """Experts whose losses or places are counted by sequence, which cp cuts."""
    return ValueError("balance and z losses and capacities of experts are counted by sequence, and "
                      "cp cuts sequences: give the MoEConfig balance_loss=0, z_loss=0 and "
                      "capacity_factor=None (bias_rate still balances), or leave cp out")
