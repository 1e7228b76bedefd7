"""Analysis: measures of traces, BERTScore, and figures.

A measure is a pure function of a trace, and a figure draws what measures return. It imports the
rooms up to `engine`, and `results`. Start reading at `measures/order`.
"""
