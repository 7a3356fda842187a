"""Seconds and bytes as a person writes them: 3 ms, 1.5 MB."""


def time_unit(seconds: float) -> tuple[str, float]:
    """The unit in which a number of seconds reads best, and how many of it make a second."""
    for name, per_second in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        if seconds * per_second >= 1:
            return name, per_second
    return "ns", 1e9


def byte_unit(count: float) -> tuple[str, float]:
    """The unit in which a number of bytes reads best (powers of 1000), and its size in bytes."""
    units = ["B", "kB", "MB", "GB", "TB", "PB"]
    size = 1.0
    while count >= 1000 * size and len(units) > 1:
        size *= 1000
        del units[0]
    return units[0], size


def in_bytes(count: float) -> str:
    """A number of bytes as a person writes it: 512 B, 4 kB, 1.5 MB (powers of 1000)."""
    name, size = byte_unit(count)
    return f"{count / size:.4g} {name}"
