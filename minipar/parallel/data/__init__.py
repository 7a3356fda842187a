"""Data parallelism: every rank has all parameters and a part of the batch.

    ddp_by_autograd         the specification: copy_to on every use of a weight
    ddp                     DistributedDataParallel: each bucket is summed during backward
    local_sgd               each rank trains alone, and the parameters are averaged every few steps
    local_sgd_by_copies     local SGD, specified: copies of a model in one process
    apart                   base of the strategies whose ranks have parameters of their own
    delayed_averaging       each rank steps by its own gradient, and corrects it some steps later
    delayed_by_copies       the same, specified: copies of a model in one process
    classic_data_parallel   PyTorch's older DataParallel: rank 0 drives

Read them in this order.  A parameter server is a program: lessons/parameter_server.py.
"""
