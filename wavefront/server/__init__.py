"""The HTTP server: OpenAI's API for one model, and a page that shows each decode live.

One process answers HTTP without torch. Others tokenise prompts and compile constraints. One owns
the model and decodes, here or in replicas on Ray. The package imports core, storage, strategies,
text, models, engine, lm and player. Start reading at `service.py` for HTTP and at
`decode_worker.py` for decoding.

The text of an error is written where it is raised: `request_models` for fields and JSON,
`request_builder` for prompts and options, `service` for admission and unknown ids, `middleware` for
host, API key and size, `frontend` for timeouts and shutdown. `openai_format` only formats errors.

Install the dependencies with `pip install 'wavefront[serve]'`.
"""

from importlib.util import find_spec

from wavefront.core.errors import MissingExtraError, install_command

if any(find_spec(name) is None for name in ("fastapi", "uvicorn", "prometheus_client")):
    raise MissingExtraError(
        f"The server needs FastAPI, uvicorn and prometheus-client: {install_command('serve')}."
    )

from wavefront.server.server import run
from wavefront.server.settings import Limits, ModelSource, ReplicaScale, Settings

__all__ = ["Limits", "ModelSource", "ReplicaScale", "Settings", "run"]
