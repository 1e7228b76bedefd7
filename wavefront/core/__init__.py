"""Core: the algebra of masks, ties included, and the interfaces that every other room uses.

This package contains the canvas, the strategy interface, the decode state, spec strings and errors.
Nothing here reads files or the network. It imports no other room. Start reading at `masks`, then
`canvas`, `strategy` and `state`.
"""
