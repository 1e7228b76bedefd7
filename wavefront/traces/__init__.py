"""Traces: the record of a decode, step by step, and its file format.

It imports `core` and `storage`. Start reading at `trace`.
"""
