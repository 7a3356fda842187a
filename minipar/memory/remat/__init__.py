"""Rematerialization (activation checkpointing): recompute in backward instead of keeping."""
