"""End a worker process when its parent ends."""

from __future__ import annotations

import multiprocessing
import os
import threading


def end_with_parent() -> None:
    """End this `multiprocessing` process as soon as its parent ends, even by SIGKILL.

    Call this first in the function that the process runs. A thread waits for the parent, so the
    process also ends while it computes, loads a model, or waits for something else.
    """
    parent = multiprocessing.parent_process()
    if parent is None:  # this process was not started by multiprocessing
        return

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, name="end_with_parent", daemon=True).start()
