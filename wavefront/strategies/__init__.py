"""Strategies: which positions a step commits, one strategy per file.

Selectors (`selectors/`) say how many and which candidates to commit. Cache policies (`caches/`) say
which positions a cached step recomputes, and how many. It imports `core` only. Start reading at
`wavefront`.
"""
