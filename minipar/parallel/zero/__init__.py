"""ZeRO and FSDP: optimizer states, gradients and parameters are sharded over the ranks."""
