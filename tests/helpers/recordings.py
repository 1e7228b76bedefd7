"""Recorded decodes for tests of the report."""

from __future__ import annotations

import functools
from dataclasses import replace

import wavefront
from wavefront.traces.trace import Trace

HOSTILE = (
    "</script><img src=x onerror=alert(1)>",
    "<script>alert(1)</script>",
    "<!-- <script>",
    "]]></style><svg onload=alert(1)>",
    '" onmouseover="alert(1)',
    "' onmouseover='alert(1)",
    "&lt;b&gt; &amp;",
    "\u2028\u2029\u202e\x00\x1b[2J\x85",
    "\ud800 half",
    "$title ${data} {0} %s",
    "x" * 5000,
)


@functools.cache
def record(strategy: str, *, full: bool = False, length: int = 12) -> Trace:
    """Record a decode of the toy model."""
    kind = "full" if full else True
    lm = wavefront.load("toy")
    trace = lm.generate("Hi", strategy=strategy, max_new_tokens=length, trace=kind).trace
    assert trace is not None
    return trace


def hostile(trace: Trace, words: str) -> Trace:
    """Return the trace with every text in its header replaced by a hostile one."""
    options = {**trace.about["options"], "strategy": words, words: words}
    texts = dict.fromkeys(trace.about["texts"], words)
    about = {**trace.about, "model": words, "options": options, "texts": texts, words: words}
    return replace(trace, about=about)
