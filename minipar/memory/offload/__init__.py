"""Offload: what backward needs waits in host memory, or in a file."""
