"""Engine: one step, one loop, and everything that makes them fast.

This package contains batching, caches, CUDA graphs, speculation, replay and the options of a
decode. It imports every folder below it except `results`. Start reading at `step`, then `batcher`.
"""
