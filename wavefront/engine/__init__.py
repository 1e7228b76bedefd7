"""Engine: one step, one loop, and everything that makes them fast.

Here live batching, caches, CUDA graphs, speculation, replay and the options of a decode. It
imports every room below it except `results`. Start reading at `step`, then `batcher`.
"""
