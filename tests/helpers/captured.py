"""A stand-in for CUDA graphs, to test without a GPU what they demand of a step."""

from __future__ import annotations

from wavefront.engine.cuda_graphs import Graphs, StaticBuffers


class Static(Graphs):
    """Runs steps on the CPU as CUDA graphs do: in static buffers that each step overwrites."""

    def _new_pool(self):
        return None

    def _capture(self, step, tree):
        buffers = StaticBuffers(tree)

        def run(tree):
            buffers.load(tree)
            buffers.run(step)
            return buffers.tree, buffers.copy_output()

        return run
