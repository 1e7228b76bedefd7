"""A stand-in for captured graphs, so that what they ask of a step is tested without a GPU."""

from __future__ import annotations

from wavefront.engine.cuda_graphs import Graphs, StaticBuffers


class Static(Graphs):
    """What captured graphs do, on the CPU: a frame a key, overwritten at every step's end."""

    def _new_pool(self):
        return None

    def _capture(self, step, tree):
        frame = StaticBuffers(tree)

        def run(tree):
            frame.load(tree)
            frame.make(step)
            return frame.tree, frame.shown()

        return run
