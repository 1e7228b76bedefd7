"""Benchmarks: published items read from files, one benchmark per file.

Start reading at `_benchmark`, the base class.
"""
