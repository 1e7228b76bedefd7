"""The HTTP server: OpenAI's API for one model, and a page that shows each decode live.

An HTTP process validates, queues and answers requests without torch; a decode process owns the
model, and the two exchange the messages of `worker_messages` (with Ray, there are many decode
processes). It imports core, storage, text, strategies, models, engine, lm and player; FastAPI,
uvicorn and prometheus-client come with `pip install 'wavefront[serve]'`. Start reading at
`service.py` for the HTTP side and at `decode_worker.py` for the decode side.
"""

from importlib.util import find_spec

from wavefront.core.errors import MissingExtraError

if any(find_spec(name) is None for name in ("fastapi", "uvicorn", "prometheus_client")):
    raise MissingExtraError(
        "The server needs FastAPI, uvicorn and prometheus-client: pip install 'wavefront[serve]'."
    )

from wavefront.server.server import run
from wavefront.server.settings import Limits, Scale, Settings, Source

__all__ = ["Limits", "Scale", "Settings", "Source", "run"]
