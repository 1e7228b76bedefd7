"""Every test of a module, one after the other, where there is no pytest."""

from __future__ import annotations

import time
import traceback
from collections.abc import Mapping
from typing import Any


def run(module: Mapping[str, Any]) -> int:
    """All of them, whatever fails: the number to exit with."""
    failed = []
    for name, test in list(module.items()):
        if not name.startswith("test_"):
            continue
        began = time.monotonic()
        try:
            test()
        except Exception:  # an assertion, or whatever the device raises
            traceback.print_exc()
            failed.append(name)
        word = "FAIL" if name in failed[-1:] else "ok"
        print(f"{word:4} {name} ({time.monotonic() - began:.1f} s)", flush=True)
    if failed:
        print(f"{len(failed)} failed: {', '.join(failed)}", flush=True)
    return 1 if failed else 0
