"""The files of the page."""

from __future__ import annotations

from pathlib import Path

import wavefront
from wavefront.core.bounds import DEFAULT_STRATEGY
from wavefront.server.static_files import shared_page


def test_shared_page_loads_nothing_and_runs_one_script() -> None:
    page = shared_page()
    assert page.count("__DATA__") == 1
    assert page.count("sha256-") == 2
    assert "http://" not in page
    assert "https://" not in page
    assert " src=" not in page


def test_page_starts_with_the_default_strategy_of_the_package() -> None:
    cards = (Path(wavefront.__file__).parent / "server" / "page" / "cards.js").read_text("utf-8")
    assert f"const DEFAULT = '{DEFAULT_STRATEGY}';" in cards
