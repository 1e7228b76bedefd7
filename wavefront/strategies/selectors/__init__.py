"""Selectors: how many candidates a step commits, and which; a file name is a spec name.

Selectors with a fixed budget and adaptive selectors live here. It imports `core` only. Start
reading at `quota`, then `threshold`.
"""
