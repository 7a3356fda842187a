"""Data parallelism: every rank has all parameters and a part of the batch.

    ddp_by_autograd         the specification: copy_to on every use of a weight
    ddp                     DistributedDataParallel: each bucket is summed during backward
    trained_apart           base of the five that follow: each rank has parameters of its own
    local_sgd               … averaged every few steps
    diloco                  … whose mean change is an outer optimizer's gradient, every few steps
    gossip                  … mixed with those of two neighbours in every step
    elastic_averaging       … on a spring to a common centre
    delayed_averaging       … stepped by the rank's own gradient, corrected some steps later
    apart_by_copies         these five, specified: copies of a model in one process
    classic_data_parallel   PyTorch's older DataParallel: rank 0 drives

Read them in this order.  A parameter server is no strategy here but a program,
lessons/parameter_server.py.
"""
