"""A stand-in for CUDA graphs, to test without a GPU what they demand of a step."""

from __future__ import annotations

from typing import Any

from wavefront.engine.cuda_graphs import AutomaticGraphs, Graphs, StaticBuffers, TreeStep


class Static(Graphs):
    """Runs steps on the CPU as CUDA graphs do: in static buffers that each step overwrites."""

    def _new_pool(self):
        return None

    def _capture(self, step: TreeStep, tree: Any) -> TreeStep:
        buffers = StaticBuffers(tree)
        _, output = step(buffers.tree)  # a capture warms up; a step may be repeated
        buffers.reserve(output)

        def run(tree: Any) -> Any:
            buffers.load(tree)
            buffers.run(step)
            return buffers.tree, buffers.copy_output()

        return run


class AutomaticStatic(AutomaticGraphs, Static):
    """The same, captured only when `AutomaticGraphs` decides so."""
