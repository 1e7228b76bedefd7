"""Benchmarks: published items read from files, one benchmark per file."""
