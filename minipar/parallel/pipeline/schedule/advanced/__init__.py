"""Schedules that exchange memory for time, or go two ways at once.

    zb_h2           no idle time between a rank's ends, for twice the activations
    v_shapes        V-Half and V-Min: half and a third of the activations
    dualpipe_v      forwards together with backwards, in a V
    two_ways        Chimera and DualPipe: microbatches in two directions

The table of `registry.py` has their functions, beside those of `schedules.py`.
"""
