"""Fixtures of the server's unit tests."""

from __future__ import annotations

import pytest

import wavefront


@pytest.fixture(scope="module")
def lm() -> wavefront.LM:
    return wavefront.load("toy")
