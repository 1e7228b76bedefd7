"""What the site does beyond its settings: pages that are still to come are left out of the menu."""

from __future__ import annotations

from pathlib import Path
from typing import Any

# Named in the menu of mkdocs.yml already; each appears once its file is there.
LATER = ("serve.md", "transformers.md", "experiments.md")


def on_config(config: Any) -> Any:
    folder = Path(config.docs_dir)
    missing = {page for page in LATER if not (folder / page).exists()}
    config.nav = _without(config.nav, missing)
    return config


def _without(entries: list[Any], missing: set[str]) -> list[Any]:
    kept: list[Any] = []
    for entry in entries:
        ((title, target),) = entry.items()
        if isinstance(target, list):
            kept.append({title: _without(target, missing)})
        elif target not in missing:
            kept.append(entry)
    return kept
