"""The command `wavefront serve`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from wavefront.cli.command import Command
from wavefront.cli.options import ModelOptions, flatten_options, option
from wavefront.cli.output import complain
from wavefront.core.errors import OptionError, check_choice

EXAMPLES = """\
Examples
wavefront serve
wavefront serve -m GSAI-ML/LLaDA-8B-Instruct --rows 32 --port 8080
WAVEFRONT_API_KEY=secret wavefront serve --host 0.0.0.0
wavefront serve -m GSAI-ML/LLaDA-8B-Instruct --engine ray --replicas 4 \\
  --gpus-per-replica 1

Then
open http://127.0.0.1:8000 in a browser, or
curl localhost:8000/v1/chat/completions -H 'Content-Type: application/json' \\
  -d '{"messages": [{"role": "user", "content": "What is 2 + 3?"}]}'
"""
KEY = "WAVEFRONT_API_KEY"
KEY_FILE = f"{KEY}_FILE"
ENGINES = ("local", "ray")


app = typer.Typer(add_completion=False)


@app.command(cls=Command, epilog=EXAMPLES)
@flatten_options
def serve(
    *,
    host: Annotated[
        str, option("Server", "NAME", "Address to listen on; by default this machine only.")
    ] = "127.0.0.1",
    port: Annotated[
        int, option("Server", "N", "Port to listen on; by default 8000. 0 picks a free port.")
    ] = 8000,
    api_key: Annotated[
        str | None,
        option(
            "Server",
            "KEY",
            f"Key that every request must send, except probes; by default ${KEY}, or the content "
            f"of the file ${KEY_FILE}. "
            "Other users of this machine can read a command line, but not these variables.",
        ),
    ] = None,
    open_metrics: Annotated[
        bool, option("Server", "", "Serve /metrics without the API key.", "--open-metrics")
    ] = False,
    allow_host: Annotated[
        list[str] | None,
        option("Server", "NAME", "Host name to accept in requests; can be repeated."),
    ] = None,
    name: Annotated[
        str | None,
        option("Server", "NAME", "Name of the model in the API; by default its own name."),
    ] = None,
    page: Annotated[
        bool, option("Server", "", "Serve the web page at /; by default yes.", "--page/--no-page")
    ] = True,
    engine: Annotated[
        str,
        option(
            "Replicas",
            "WORD",
            "local: one decode process; ray: replicas on Ray Serve. By default local.",
        ),
    ] = "local",
    replicas: Annotated[
        int | None,
        option(
            "Replicas", "N", "Number of replicas, each with its own model and rows; by default 1."
        ),
    ] = None,
    address: Annotated[
        str | None,
        option(
            "Replicas",
            "ADDR",
            "Address of a running Ray cluster, or auto; by default Ray is started here.",
        ),
    ] = None,
    cpus_per_replica: Annotated[
        float | None, option("Replicas", "X", "CPUs per replica; by default 1.")
    ] = None,
    gpus_per_replica: Annotated[
        float | None,
        option(
            "Replicas",
            "X",
            "GPUs per replica; by default 0. With 0.5, two replicas share a GPU.",
        ),
    ] = None,
    rows: Annotated[
        int, option("Batching", "N", "Requests to decode at the same time; by default 8.")
    ] = 8,
    queue: Annotated[
        int, option("Batching", "N", "Requests that may wait in the queue; by default 64.")
    ] = 64,
    batch_shape: Annotated[
        str,
        option(
            "Batching",
            "WORD",
            "fixed: one batch of --rows by --max-length, for GPUs; fit: batches sized to the "
            "requests, for CPUs; auto chooses by device. By default auto.",
        ),
    ] = "auto",
    cache: Annotated[
        str | None,
        option("Batching", "SPEC", 'Cache policy such as "wave(refresh=32)"; by default none.'),
    ] = None,
    threads: Annotated[
        int, option("Batching", "N", "Number of torch CPU threads; by default torch decides.")
    ] = 0,
    max_length: Annotated[
        int,
        option(
            "Limits",
            "N",
            "Maximum tokens in a prompt and its answer; by default 4096, or the model's limit if "
            "lower.",
        ),
    ] = 0,
    max_new_tokens: Annotated[
        int,
        option("Limits", "N", "Maximum tokens per answer; by default 2048.", "--max-new-tokens"),
    ] = 2048,
    max_steps: Annotated[
        int, option("Limits", "N", "Maximum steps per request; by default 2048.")
    ] = 2048,
    max_messages: Annotated[
        int, option("Limits", "N", "Maximum messages per chat request; by default 256.")
    ] = 256,
    max_body: Annotated[
        int, option("Limits", "N", "Maximum size of a request body in bytes; by default 1048576.")
    ] = (1 << 20),
    request_timeout: Annotated[
        float,
        option("Limits", "X", "Seconds after which a request is cancelled; by default 600."),
    ] = 600.0,
    stall_timeout: Annotated[
        float,
        option(
            "Limits",
            "X",
            "Seconds of silence after which the decode process is restarted; by default 120.",
        ),
    ] = 120.0,
    drain_timeout: Annotated[
        float,
        option("Limits", "X", "Seconds to finish running requests at SIGTERM; by default 30."),
    ] = 30.0,
    event_ttl: Annotated[
        float,
        option("Limits", "X", "Seconds to keep the events of finished decodes; by default 300."),
    ] = 300.0,
    model: ModelOptions,
) -> None:
    """Serve a model with OpenAI's API and a page that shows each decode live.

    Requests of any length and strategy share forward passes. The routes are
    /v1/chat/completions, /v1/completions and more; see docs/serve.md.
    """
    from wavefront import server
    from wavefront.storage.hub import builtin_checkpoints

    check_choice("engine", engine, ENGINES)
    given = {
        "replicas": replicas,
        "address": address,
        "cpus": cpus_per_replica,
        "gpus": gpus_per_replica,
    }
    given = {name: value for name, value in given.items() if value is not None}
    if given and engine == "local":
        raise OptionError("Options for replicas need Ray: give --engine ray as well.")
    scale = server.Scale(**given) if engine == "ray" else None  # pyright: ignore[reportArgumentType]

    limits = server.Limits(
        rows=rows,
        queue=queue,
        length=max_length,
        new_tokens=max_new_tokens,
        steps=max_steps,
        messages=max_messages,
        body=max_body,
        request_timeout=request_timeout,
        stall_timeout=stall_timeout,
        drain_timeout=drain_timeout,
        event_ttl=event_ttl,
    )
    source = server.Source(
        # The same as `builtin.DEFAULT`, without importing torch.
        model=next(iter(builtin_checkpoints()), "toy") if model.model is None else model.model,
        device=model.device,
        dtype=model.dtype,
        revision=model.revision,
        offline=model.offline,
        cuda_graphs=model.cuda_graphs,
        compile=model.compile,
    )
    key = find_key(api_key)
    os.environ.pop(KEY, None)  # child processes do not need the key
    if key is None and host not in ("127.0.0.1", "::1", "localhost"):
        complain("warning", f"Anyone who can reach {host}:{port} can use this server: set {KEY}.")
    server.run(
        server.Settings(
            source=source,
            host=host,
            port=port,
            api_key=key,
            open_metrics=open_metrics,
            hosts=tuple(allow_host or ()),
            name=name,
            page=page,
            batch_shape=batch_shape,
            cache=cache,
            threads=threads,
            limits=limits,
            scale=scale,
        )
    )


def find_key(given: str | None) -> str | None:
    """Return the API key from the command line, the environment, or a file.

    Raises:
        OptionError: The file that the environment names cannot be read.
    """
    if given is not None or KEY in os.environ:
        return os.environ[KEY] if given is None else given
    path = os.environ.get(KEY_FILE)
    if not path:
        return None
    try:
        return Path(path).read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = (getattr(error, "strerror", None) or "not UTF-8").lower()
        raise OptionError(
            f"The API key file {path!r} cannot be read ({reason}): create it or set {KEY}. "
            f"If {KEY_FILE} is empty, no key is required.",
            option="api_key",
        ) from error
