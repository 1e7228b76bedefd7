"""Measures: pure functions of a trace, one measure per file (docs/experiments.md).

>>> from wavefront.analysis.measures import mhco
>>> mhco.measure(trace).candidates.mean()  # doctest: +SKIP
"""
