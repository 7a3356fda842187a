"""The sandbox: untrusted code may compute, and talk over the pipes that it was given.

    another user        if the checker is root: a number that nothing else belongs to
    limits              memory, CPU time, no files, no processes                     (setrlimit)
    system calls        a short list; every other one fails with PermissionError     (seccomp)

After `enter` with the list, the process can open no file, make no socket, start no process, and
send no signal.  So it finds no reference, writes no result, reaches no other machine, and leaves
nothing behind.  The list needs Linux on x86-64 or ARM; `is_supported` tells.  See seccomp(2) and
the kernel's Documentation/userspace-api/seccomp_filter.rst.
"""

import ctypes
import errno
import os
import platform
import struct
import sys

try:
    import resource
except ImportError:                 # Windows
    resource = None  # type: ignore[assignment]

# System calls that Python and NumPy need to compute, by machine: x86-64, ARM (None: not there).
# glibc's fstat is newfstatat, which tells a file's size and times, but not its contents.  No fcntl
# and no ioctl: with F_SETOWN and F_SETSIG, a pipe sends any signal to any process of the same user.
# No sysinfo: through the amount of free memory, a rank could tell another something without a
# message.
ALLOWED = {
    "read": (0, 63), "write": (1, 64), "readv": (19, 65), "writev": (20, 66), "close": (3, 57),
    "fstat": (5, 80), "newfstatat": (262, 79), "lseek": (8, 62), "poll": (7, None),
    "ppoll": (271, 73), "select": (23, None), "pselect6": (270, 72), "mmap": (9, 222),
    "mprotect": (10, 226), "munmap": (11, 215), "mremap": (25, 216), "madvise": (28, 233),
    "brk": (12, 214), "futex": (202, 98),
    "sched_yield": (24, 124), "sched_getaffinity": (204, 123), "rt_sigaction": (13, 134),
    "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139), "sigaltstack": (131, 132),
    "nanosleep": (35, 101), "clock_nanosleep": (230, 115), "clock_gettime": (228, 113),
    "clock_getres": (229, 114), "gettimeofday": (96, 169), "getrandom": (318, 278),
    "getrusage": (98, 165), "getpid": (39, 172), "gettid": (186, 178), "getuid": (102, 174),
    "geteuid": (107, 175), "getgid": (104, 176), "getegid": (108, 177), "uname": (63, 160),
    "membarrier": (324, 283), "rseq": (334, 293),
    "set_robust_list": (273, 99), "restart_syscall": (219, 128), "exit": (60, 93),
    "exit_group": (231, 94),
}
MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}      # column, AUDIT_ARCH_…
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
RET_ALLOW, RET_ERRNO, RET_KILL = 0x7FFF0000, 0x00050000, 0x80000000
LOAD, JUMP_EQUAL, JUMP_GREATER_EQUAL, RETURN = 0x20, 0x15, 0x35, 0x06   # BPF codes
FIRST_X32 = 0x40000000              # x86-64's second table of system calls


class Filter(ctypes.Structure):
    """The kernel's `struct sock_fprog`: the number of instructions, and where they are."""

    _fields_ = [("len", ctypes.c_ushort), ("filter", ctypes.c_void_p)]


def is_supported() -> bool:
    """True if this machine has the list of system calls."""
    return sys.platform == "linux" and platform.machine() in MACHINES


def program(machine: str) -> bytes:
    """The filter as BPF instructions: (code, jump if true, jump if false, operand)."""
    column, arch = MACHINES[machine]
    numbers = [calls[column] for calls in ALLOWED.values() if calls[column] is not None]
    refuse = RET_ERRNO | errno.EPERM
    code = [(LOAD, 0, 0, 4), (JUMP_EQUAL, 1, 0, arch), (RETURN, 0, 0, RET_KILL),
            (LOAD, 0, 0, 0), (JUMP_GREATER_EQUAL, len(numbers), 0, FIRST_X32)]
    code += [(JUMP_EQUAL, len(numbers) - i, 0, number) for i, number in enumerate(numbers)]
    code += [(RETURN, 0, 0, refuse), (RETURN, 0, 0, RET_ALLOW)]
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in code)


def enter(user: int | None, memory: int, seconds: int, with_filter: bool) -> None:
    """Limit this process for ever; with the filter, leave it only the right to compute.

    `user` is the number of another user, for root only; `memory` is in bytes beyond what is used
    now, `seconds` of CPU time.  Raises OSError if the system refuses.
    """
    if user is not None:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    if resource is not None:
        used = memory_in_use()
        for name, limit in (("AS", used + memory), ("CPU", seconds), ("FSIZE", 0), ("CORE", 0),
                            ("NPROC", 0 if with_filter else None)):
            if limit is not None and (name != "AS" or used):
                resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (limit, limit))
    if with_filter:
        install_filter()


def memory_in_use() -> int:
    """Bytes of address space that this process has; 0 where the system does not tell."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def install_filter() -> None:
    """Allow this process only the system calls in ALLOWED.  Raises OSError."""
    code = ctypes.create_string_buffer(program(platform.machine()))
    wanted = Filter((len(code) - 1) // 8, ctypes.addressof(code))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) \
            or libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(wanted), 0, 0):
        raise OSError(ctypes.get_errno(), "the system refuses a filter of system calls (seccomp)")
