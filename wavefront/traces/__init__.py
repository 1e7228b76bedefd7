"""Traces: the record of a decode, step by step, and its file format.

A trace replays every canvas of a decode without the model. It imports `core` and `storage`.
Start reading at `trace.Trace`.
"""
