"""A sentence of lessons 02 and 03: "auto" may not take the fastest algorithm of their tables."""

from minipar.comm import Communicator
from minipar.comm.cost.calibration import BUILT_IN


def about_auto(comm: Communicator) -> str:
    """Say by which numbers "auto" chooses on these ranks."""
    if comm.is_simulated:
        return ("*auto* takes what the cost model finds fastest on the simulated links. The model "
                "is exact there.")
    if comm.rank_state.calibration in (None, BUILT_IN):
        return ("*auto* has not seen these times. It goes by a cost model of some other machine's "
                "links, until you measure this one: `mpirun -n N minipar calibrate`. The model "
                "knows no copies in memory, and each of its ranks has a core of its own. So its "
                "choice can be much slower here than the fastest of a row.")
    return ("*auto* goes by the table that `minipar calibrate` measured on this machine, and by "
            "the cost model where the table has no entry. Where ranks share cores, times change "
            "from run to run: the fastest of a row may be another one then.")
