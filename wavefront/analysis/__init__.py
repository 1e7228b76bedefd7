"""Analysis: measures of traces, BERTScore, and figures.

It imports the rooms up to `engine`, and `results`. Start reading at `measures/order`.
"""
