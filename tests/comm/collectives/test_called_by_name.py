"""Any operation in one way; what each gives is asserted in test_operations.py."""

import numpy as np
import pytest

from minipar.comm import Cluster
from minipar.comm.collectives import operations


def test_an_unknown_operation_is_refused():
    with pytest.raises(ValueError, match="'all_sum': choose from all_gather, all_reduce, "):
        Cluster(2).run(lambda comm: operations.call("all_sum", "ring", comm, np.ones(3)))


def test_the_table_of_pieces():
    assert operations.table_of_pieces(3, 7) == [[3, 2, 2]] * 3
