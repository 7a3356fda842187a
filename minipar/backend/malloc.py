"""A setting of the C library's malloc, for programs that train."""

import ctypes


def keep_freed_memory(keep: bool = True) -> bool:
    """Tell glibc to hand freed memory to the next array instead of back to the kernel, or not to.

    Each fresh page costs a fault and a zeroing.  A training step allocates its activations anew, so
    it is about 13 % slower without the setting.  The setting holds for the whole process, so only
    programs call this.  Returns whether the C library has it (glibc; not macOS, not musl).
    """
    mmap_threshold, trim_threshold = -3, -1             # from malloc.h
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(mmap_threshold, 1 << (25 if keep else 17))
                and mallopt(trim_threshold, 1 << (30 if keep else 17)))
