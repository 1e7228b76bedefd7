"""Cache policies: which positions a cached step recomputes; a file name is a spec name.

The published policies `prefix` and `dual` live here, and our own `wave`. It imports `core` only.
Start reading at `wave`.
"""
