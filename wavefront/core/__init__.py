"""Core: the algebra of masks and the contracts that every other room builds on.

Here live canvases, strategies' interface, the decode state, spec strings and errors; no file or
network access. It imports no other room. Start reading at `masks`, then `canvas`, `strategy`, `state`.
"""
