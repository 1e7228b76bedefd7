"""Measures: what a trace says of a decode, a file a measure, pure functions (docs/measures.md).

>>> from wavefront.analysis.measures import mhco
>>> mhco.measure(trace).candidates.mean()  # doctest: +SKIP
"""
