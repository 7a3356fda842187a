"""Data parallelism: every rank has all parameters and a part of the batch.

    ddp_graph               the specification: copy_to on every use of a weight
    buckets                 which gradients travel together
    ordered_launcher        the reductions of buckets are launched in one order on all ranks
    ddp                     DistributedDataParallel: an all-reduce of each bucket during backward
    classic_data_parallel   PyTorch's older DataParallel: rank 0 drives
    parameter_server        one rank keeps the parameters, synchronous or with bounded staleness
    over_dp                 ddp, zero1 and fsdp beside pp, cp and tp, after or during a schedule

Read them in this order.
"""
