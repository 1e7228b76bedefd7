"""Serve: a model behind OpenAI's API, and a page where the wave moves.

Two processes. The HTTP process (`app`, `guard`, `bodies`, `replies`, `streams`) checks, counts and
answers; it never touches torch's tensors. The decode process (`decoder`, `lanes`, `telling`) owns
the model and its slots. They exchange the plain messages of `jobs` through a pipe; `engine` starts
the decode process, watches over it and starts another when it dies or is stuck. Instead of it,
`fleet` has Ray Serve keep several, each in a `replica`, on this machine or on many.

Needs FastAPI, uvicorn and prometheus-client: `pip install 'wavefront[serve]'`.
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
