"""Core: the algebra of masks and the contracts that every other room builds on.

This package contains the canvas, the strategy interface, the decode state, spec strings and errors.
Nothing here reads files or the network. It imports no other room. Start reading at `masks`, then
`canvas`, `strategy` and `state`.
"""
