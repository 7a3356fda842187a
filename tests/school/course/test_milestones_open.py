"""Milestones: of right functions that differ from the reference, none is refused."""

from pathlib import Path

import pytest

from minipar.school.course.milestones.attempt import TrainedStep, Version, compare, train
from minipar.school.course.milestones.goal import milestones
from minipar.school.exercises.source import as_block
from minipar.school.exercises.workspace import Workspace

ANYWHERE = """
p, right, left = comm.size, (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
chunks = [{cut} for i in range(p)]
combine = find_operator(op)
for k in range(p - 1):
    goes, comes = chunks[(comm.rank - k + {start}) % p], chunks[(comm.rank - k + {start} - 1) % p]
    arrived = np.empty_like(comes)
    comm.sendrecv(goes, right, arrived, left)
    combine(comes, arrived, out=comes)
for k in range(p - 1):
    comm.sendrecv(chunks[(comm.rank - k + {start} + 1) % p], right,
                  chunks[(comm.rank - k + {start}) % p], left)
"""
EVEN, CEILING = "np.array_split(flat, p)[i]", "flat[i * -(-flat.size // p):][:-(-flat.size // p)]"
RIGHT = {
    "ring": {"ring_all_reduce": [ANYWHERE.format(start=start, cut=cut) for start, cut in
                                 ((0, EVEN), (1, EVEN), (2, CEILING))]},
    "zero": {"gather_parameters": ["""
for flat in self.flats[::-1]:
    flat.data[...] = all_gather(flat.comm, self.piece_of[flat].data.copy(), counts=flat.counts)
"""]},
    "pipeline": {"pipeline_shared": ["""
if not self.is_synchronizing:
    return
self.finish()
for comm, gradient in list(self.shared_gradients())[::-1]:
    gradient[...] = all_reduce(comm, gradient)
self._is_synced = True
"""], "cut_evenly": ["""
if not 1 <= num_stages <= len(weights):
    raise ValueError(f"{len(weights)} parts give 1 to {len(weights)} stages, not {num_stages}")
sums = [0, *accumulate(weights)]
best = [(weight, []) for weight in sums]
for stage in range(1, num_stages):          # of equally good cuts, the last
    best = [min(((max(best[cut][0], sums[n] - sums[cut]), [*best[cut][1], cut])
                 for cut in reversed(range(stage, n))), key=lambda pair: pair[0],
                default=(math.inf, [])) for n in range(len(sums))]
return best[-1][1]
"""]},
    "tensor": {"copy_to_backward": ["return [back(ctx.comm, g, **ctx.options)]"],
               "row_linear": ["""
y = self.split.leave(ag.matmul(x, self.weight))
return self.split.shared(self.bias) + y if self.has_bias else y
"""]},
}


@pytest.mark.parametrize("name, exercise, body", [
    pytest.param(name, exercise, body, marks=[pytest.mark.slow] * (exercise != "ring_all_reduce"))
    for name, bodies in RIGHT.items() for exercise, own in bodies.items() for body in own])
@pytest.mark.one_in(3)
def test_another_right_function_reaches_it_too(name, exercise, body):
    workspace = Workspace(Path(__file__).parents[3])
    entry = workspace.find(exercise)
    runs = milestones()[name].runs
    for options in [*runs.values()][:1] if name == "ring" else runs.values():
        right = workspace.patches([])
        right.setdefault(entry.file, []).append((entry.function, as_block(body)))
        assert compare(train(workspace, workspace.patches([]), options),
                       train(workspace, right, options)) == ""


def test_all_ranks_together_send_no_more_than_the_reference():
    def run(*sent):
        return Version([TrainedStep(1.0, 1.0, [{"control": one} for one in sent], [1] * len(sent))])
    reference = run((56, 7), (64, 7))
    assert compare(reference, run((64, 7), (56, 7))) == ""
    assert compare(reference, run((56, 6), (64, 7))) == "", "fewer is no fault"
    assert compare(reference, run((64, 7), (64, 7))) == ("step 0: control sends 128 bytes, the "
                                                         "reference 120")
    assert "sends 15 messages, the reference 14" in compare(reference, run((64, 8), (56, 7)))
