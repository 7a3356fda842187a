"""Tensor parallelism: the matrices of a layer are split over ranks."""
