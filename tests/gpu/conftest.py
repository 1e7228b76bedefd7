"""Every test in this folder needs CUDA; `make test` and CI leave them out by their mark."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items) -> None:
    for item in items:
        if "gpu" in item.path.parts:
            item.add_marker(pytest.mark.gpu)
