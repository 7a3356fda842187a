"""Schedules that exchange memory for time, or go two ways at once.

    zb_h2           no idle time between a rank's ends, for twice the activations
    v_shapes        V-Half and V-Min: half and a third of the activations
    dualpipe_v      forwards together with backwards, in a V
    two_ways        Chimera and DualPipe: microbatches in two directions

Their functions are in the table of `registry.py`, as those of `schedules.py`.
"""
