"""`wavefront serve`."""

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


def serve(
    *,
    host: Annotated[
        str, option("Server", "NAME", "Where to listen; by default this machine only.")
    ] = "127.0.0.1",
    port: Annotated[int, option("Server", "N", "By default 8000; 0 takes a free one.")] = 8000,
    api_key: Annotated[
        str | None,
        option(
            "Server",
            "KEY",
            f"Wanted of every request but the probes; by default ${KEY}, or the text in the file "
            f"${KEY_FILE}. "
            "A command line can be read by other users of the machine: the variable cannot.",
        ),
    ] = None,
    open_metrics: Annotated[
        bool, option("Server", "", "Give /metrics without the key.", "--open-metrics")
    ] = False,
    allow_host: Annotated[
        list[str] | None,
        option("Server", "NAME", "A name that requests may call us by; may be given again."),
    ] = None,
    name: Annotated[
        str | None, option("Server", "NAME", "Of the model, in the API; by default its own.")
    ] = None,
    page: Annotated[
        bool, option("Server", "", "Serve the page at /; by default yes.", "--page/--no-page")
    ] = True,
    engine: Annotated[
        str, option("Replicas", "WORD", "local (the default), or ray: replicas on Ray Serve.")
    ] = "local",
    replicas: Annotated[
        int | None,
        option("Replicas", "N", "Each with the model and rows of its own; by default 1."),
    ] = None,
    address: Annotated[
        str | None,
        option(
            "Replicas",
            "ADDR",
            "Of a running Ray cluster, or auto; by default one is started here.",
        ),
    ] = None,
    cpus_per_replica: Annotated[
        float | None, option("Replicas", "X", "CPUs of each; by default 1.")
    ] = None,
    gpus_per_replica: Annotated[
        float | None,
        option("Replicas", "X", "GPUs of each; by default 0. 0.5 lets two share one."),
    ] = None,
    rows: Annotated[int, option("Batching", "N", "Requests to decode at once; by default 8.")] = 8,
    queue: Annotated[
        int, option("Batching", "N", "Requests that may wait beyond those; by default 64.")
    ] = 64,
    lanes: Annotated[
        str,
        option(
            "Batching",
            "WORD",
            "one: one board for all, for GPUs; fit: boards as small as the requests, for CPUs; "
            "auto, the default, chooses.",
        ),
    ] = "auto",
    cache: Annotated[
        str | None, option("Batching", "SPEC", 'Such as "wave(refresh=32)"; by default none.')
    ] = None,
    threads: Annotated[
        int, option("Batching", "N", "Of torch on the CPU; by default its own choice.")
    ] = 0,
    max_length: Annotated[
        int,
        option(
            "Limits", "N", "Places of a prompt and its answer; by default 4096, or the model's."
        ),
    ] = 0,
    max_new_tokens: Annotated[
        int, option("Limits", "N", "Places of an answer; by default 2048.", "--max-new-tokens")
    ] = 2048,
    max_steps: Annotated[int, option("Limits", "N", "By default 2048.")] = 2048,
    max_messages: Annotated[int, option("Limits", "N", "By default 256.")] = 256,
    max_body: Annotated[int, option("Limits", "N", "Bytes of a request; by default 1048576.")] = (
        1 << 20
    ),
    timeout: Annotated[
        float, option("Limits", "X", "Until a request is given up; by default 600.")
    ] = 600.0,
    stuck_seconds: Annotated[
        float,
        option("Limits", "X", "Until a silent decode process is restarted; by default 120."),
    ] = 120.0,
    drain_seconds: Annotated[
        float,
        option("Limits", "X", "At SIGTERM, for what is under way; by default 30."),
    ] = 30.0,
    keep_seconds: Annotated[
        float, option("Limits", "X", "For which events can be read; by default 300.")
    ] = 300.0,
    model: ModelOptions,
) -> None:
    """Serve a model with OpenAI's API and a page that shows each decode live.

    Requests of any length and strategy share every forward. The API is that of
    /v1/chat/completions and /v1/completions; docs/serve.md has the rest.
    """
    from wavefront import server
    from wavefront.storage.hub import shipped

    check_choice("engine", engine, ENGINES)
    asked = {
        "replicas": replicas,
        "address": address,
        "cpus": cpus_per_replica,
        "gpus": gpus_per_replica,
    }
    asked = {name: value for name, value in asked.items() if value is not None}
    if asked and engine == "local":
        raise OptionError("Replicas and their options belong to Ray: give --engine ray as well.")
    scale = server.Scale(**asked) if engine == "ray" else None  # pyright: ignore[reportArgumentType]

    limits = server.Limits(
        rows=rows,
        queue=queue,
        length=max_length,
        new_tokens=max_new_tokens,
        steps=max_steps,
        messages=max_messages,
        body=max_body,
        seconds=timeout,
        stuck=stuck_seconds,
        drain=drain_seconds,
        keep=keep_seconds,
    )
    source = server.Source(
        # What `builtin.DEFAULT` says, without loading torch.
        model=next(iter(shipped()), "toy") if model.model is None else model.model,
        device=model.device,
        dtype=model.dtype,
        revision=model.revision,
        offline=model.offline,
        capture=model.cuda_graphs,
        compile=model.compile,
    )
    key = find_key(api_key)
    os.environ.pop(KEY, None)  # what we start has no need of it
    if key is None and host not in ("127.0.0.1", "::1", "localhost"):
        complain("warning", f"Whoever reaches {host}:{port} can use this server: set {KEY}.")
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
            lanes=lanes,
            cache=cache,
            threads=threads,
            limits=limits,
            scale=scale,
        )
    )


def find_key(given: str | None) -> str | None:
    """The key of the command line, of the environment, or of the file that it names."""
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
            f"The API key's file {path!r} cannot be read ({reason}): put it there, set "
            f"{KEY}, or leave {KEY_FILE} empty to serve whoever comes."
        ) from error


app = typer.Typer(add_completion=False)
app.command(cls=Command, epilog=EXAMPLES)(flatten_options(serve))
