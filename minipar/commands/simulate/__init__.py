"""`minipar simulate`: a step of a large run on simulated GPUs.

    simulate            the command and its options
    model_and_layout    reads options and files: the model and the layout to simulate
    tables              what it prints
    cluster_file        this machine as a cluster file, for `minipar calibrate`

What they call is `minipar.step_simulation`.
"""
