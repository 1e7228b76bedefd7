"""The command `wavefront serve`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from wavefront.cli import completion
from wavefront.cli.command import Command
from wavefront.cli.option_names import OPTION_NAMES
from wavefront.cli.options import EOS_HELP, ModelOptions, flatten_options, option
from wavefront.cli.output import complain
from wavefront.core.bounds import DEFAULT_STRATEGY
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
SPEEDS = ("exact", "balanced", "fast")  # the keys of `engine.options.SPEEDS`, without torch
# The limits of the server whose option has another name.
LIMITS = {
    "length": "--max-length",
    "new_tokens": "--max-new-tokens",
    "messages": "--max-messages",
    "choices": "--max-choices",
    "body": "--max-body",
    "prompt_bytes": "--max-prompt-bytes",
    "prefix_bytes": "--prefix-memory",
    "pending_bytes": "--max-pending-bytes",
    "connections": "--max-connections",
    "connections_per_address": "--max-connections-per-address",
}
app = typer.Typer(add_completion=False)


@app.command(cls=Command, epilog=EXAMPLES)
@flatten_options
def serve(
    context: typer.Context,
    *,
    host: Annotated[
        str,
        option(
            "Server",
            "NAME",
            "Address to listen on. Any address other than loopback requires an API key or "
            "--allow-host. Default: 127.0.0.1, this machine only.",
        ),
    ] = "127.0.0.1",
    port: Annotated[
        int, option("Server", "N", "Port to listen on. 0 picks a free port. Default: 8000.")
    ] = 8000,
    api_key: Annotated[
        str | None,
        option(
            "Server",
            "KEY",
            f"API key that clients must send, except to /health and /ready. Default: ${KEY}, or "
            f"the content of the file ${KEY_FILE}. "
            "Prefer the variables: other users of this machine can see command lines.",
        ),
    ] = None,
    open_metrics: Annotated[
        bool, option("Server", "", "Serve /metrics without the API key.", "--open-metrics")
    ] = False,
    allow_host: Annotated[
        list[str] | None,
        option("Server", "NAME", "Host name to accept in requests; repeat for several."),
    ] = None,
    trust_proxy: Annotated[
        list[str] | None,
        option(
            "Server",
            "ADDRESS",
            "Address or network of a reverse proxy, whose X-Forwarded-For header names the "
            "client; repeat for several. Default: none; the header is ignored.",
        ),
    ] = None,
    name: Annotated[
        str | None,
        option(
            "Server",
            "NAME",
            "Name of the model in the API. Default: the name under which it was loaded.",
        ),
    ] = None,
    page: Annotated[
        bool, option("Server", "", "Serve the web page at /. Default: yes.", "--page/--no-page")
    ] = True,
    engine: Annotated[
        str,
        option(
            "Replicas",
            "WORD",
            "local: one decode process; ray: replicas on Ray Serve. Default: local.",
        ),
    ] = "local",
    replicas: Annotated[
        int | None,
        option(
            "Replicas", "N", "Number of replicas, each with its own model and rows. Default: 1."
        ),
    ] = None,
    address: Annotated[
        str | None,
        option(
            "Replicas",
            "ADDR",
            "Address of a running Ray cluster, or auto. Default: start Ray on this machine.",
        ),
    ] = None,
    cpus_per_replica: Annotated[
        float | None, option("Replicas", "X", "CPUs per replica. Default: 1.")
    ] = None,
    gpus_per_replica: Annotated[
        float | None,
        option(
            "Replicas",
            "X",
            "GPUs per replica. With 0.5, two replicas share a GPU. Default: 0.",
        ),
    ] = None,
    rows: Annotated[
        int, option("Batching", "N", "Requests to decode at the same time. Default: 8.")
    ] = 8,
    queue: Annotated[
        int, option("Batching", "N", "Requests that may wait in the queue. Default: 64.")
    ] = 64,
    batch_shape: Annotated[
        str,
        option(
            "Batching",
            "WORD",
            "fixed: one batch of --rows by --max-length, for GPUs; fit: batches sized to the "
            "requests, for CPUs; auto chooses by device. Default: auto.",
        ),
    ] = "auto",
    speed: Annotated[
        str,
        option(
            "Request defaults",
            "WORD",
            "Speed for requests that do not set one. exact: no approximation. balanced, fast: "
            "reuse keys and values between steps; docs/speed.md says what each sets. "
            "Default: exact.",
            complete=completion.words(*SPEEDS),
        ),
    ] = "exact",
    strategy: Annotated[
        str | None,
        option(
            "Request defaults",
            "SPEC",
            "Decoding strategy for requests that do not name one. See `wavefront list strategies`. "
            f"Default: {DEFAULT_STRATEGY}.",
            "--strategy",
            "-s",
            complete=completion.strategies,
        ),
    ] = None,
    steps: Annotated[
        int | None,
        option(
            "Request defaults",
            "T",
            "At most this many steps, for requests that do not set a number. Default: one per "
            "token.",
            "--steps",
            "-t",
        ),
    ] = None,
    eos: Annotated[
        str | None,
        option(
            "Request defaults",
            "WORD",
            EOS_HELP,
            complete=completion.eos_policies,
        ),
    ] = None,
    cache: Annotated[
        str | None,
        option(
            "Request defaults",
            "SPEC",
            'Cache policy for requests that do not name one, such as "wave(refresh=32)". '
            "Default: set by --speed.",
        ),
    ] = None,
    threads: Annotated[
        int, option("Batching", "N", "Number of torch CPU threads. Default: chosen by torch.")
    ] = 0,
    max_length: Annotated[
        int,
        option(
            "Limits",
            "N",
            "Maximum tokens in a prompt and its answer. Default: 4096, or the model's limit if "
            "lower.",
        ),
    ] = 0,
    max_new_tokens: Annotated[
        int,
        option("Limits", "N", "Maximum tokens per answer. Default: 2048.", "--max-new-tokens"),
    ] = 2048,
    max_steps: Annotated[
        int, option("Limits", "N", "Maximum steps per request. Default: 2048.")
    ] = 2048,
    max_messages: Annotated[
        int, option("Limits", "N", "Maximum messages per chat request. Default: 256.")
    ] = 256,
    max_choices: Annotated[
        int, option("Limits", "N", "Maximum choices per request (n). Default: 16.")
    ] = 16,
    max_body: Annotated[
        int, option("Limits", "N", "Maximum size of a request body in bytes. Default: 1048576.")
    ] = (1 << 20),
    max_prompt_bytes: Annotated[
        int,
        option(
            "Limits",
            "N",
            "Maximum size of a prompt's text in bytes. Default: 32 for each token of --max-length.",
        ),
    ] = 0,
    prefix_memory: Annotated[
        int | None,
        option(
            "Batching",
            "MIB",
            "Memory for the keys and values of shared prompts (block-causal models only). 0 "
            "disables sharing. Default: 5 % of the GPU's memory, or 256 without a GPU.",
        ),
    ] = None,
    client_rows: Annotated[
        int,
        option(
            "Limits",
            "N",
            "Maximum requests from one address to decode at the same time. Default: all rows "
            "but one.",
        ),
    ] = 0,
    client_queue: Annotated[
        int,
        option(
            "Limits",
            "N",
            "Maximum requests from one address that may wait. Default: half of the queue.",
        ),
    ] = 0,
    request_timeout: Annotated[
        float,
        option("Limits", "X", "Seconds after which a request is cancelled. Default: 600."),
    ] = 600.0,
    stall_timeout: Annotated[
        float,
        option(
            "Limits",
            "X",
            "Seconds of silence after which the decode process is restarted. Default: 120.",
        ),
    ] = 120.0,
    drain_timeout: Annotated[
        float,
        option("Limits", "X", "Seconds to finish running requests after SIGTERM. Default: 30."),
    ] = 30.0,
    event_ttl: Annotated[
        float,
        option("Limits", "X", "Seconds to keep the events of finished decodes. Default: 300."),
    ] = 300.0,
    header_timeout: Annotated[
        float,
        option("Connections", "X", "Seconds in which headers must arrive. Default: 10."),
    ] = 10.0,
    body_timeout: Annotated[
        float,
        option("Connections", "X", "Seconds in which a body must arrive. Default: 30."),
    ] = 30.0,
    write_timeout: Annotated[
        float,
        option(
            "Connections",
            "X",
            "Seconds after which a client that accepts no data is disconnected. Default: 60.",
        ),
    ] = 60.0,
    max_pending_bytes: Annotated[
        int,
        option(
            "Connections",
            "N",
            "Maximum bytes held for requests that are still arriving. Default: 67108864.",
        ),
    ] = (64 << 20),
    max_connections: Annotated[
        int, option("Connections", "N", "Maximum open connections. Default: 1024.")
    ] = 1024,
    max_connections_per_address: Annotated[
        int,
        option(
            "Connections",
            "N",
            "Maximum open connections from one client address. Behind a proxy, set it to "
            "the value of --max-connections. Default: 512.",
        ),
    ] = 512,
    model: ModelOptions,
) -> None:
    """Serve OpenAI's API, and a web page that shows decodes live.

    Requests of any length and strategy share forward passes. The routes are
    /v1/chat/completions, /v1/completions and more; see docs/serve.md.
    """
    from wavefront import server
    from wavefront.storage.hub import builtin_checkpoints

    # A wrong number of steps is reported by the limits first.
    steps_option = "--steps" if max_steps >= 1 else "--max-steps"
    context.meta[OPTION_NAMES] = {**LIMITS, "steps": steps_option}
    check_choice("engine", engine, ENGINES)
    check_choice("speed", speed, SPEEDS)
    given = {
        "replicas": replicas,
        "address": address,
        "cpus": cpus_per_replica,
        "gpus": gpus_per_replica,
    }
    given = {name: value for name, value in given.items() if value is not None}
    if given and engine == "local":
        raise OptionError("Options for replicas need Ray: give --engine ray as well.")
    scale = server.ReplicaScale(**given) if engine == "ray" else None  # pyright: ignore[reportArgumentType]

    limits = server.Limits(
        rows=rows,
        queue=queue,
        length=max_length,
        new_tokens=max_new_tokens,
        steps=max_steps,
        messages=max_messages,
        choices=max_choices,
        body=max_body,
        prompt_bytes=max_prompt_bytes,
        prefix_bytes=None if prefix_memory is None else prefix_memory << 20,
        client_rows=client_rows,
        client_queue=client_queue,
        request_timeout=request_timeout,
        stall_timeout=stall_timeout,
        drain_timeout=drain_timeout,
        event_ttl=event_ttl,
        header_timeout=header_timeout,
        body_timeout=body_timeout,
        write_timeout=write_timeout,
        pending_bytes=max_pending_bytes,
        connections=max_connections,
        connections_per_address=max_connections_per_address,
    )
    source = server.ModelSource(
        # The same as `builtin.DEFAULT`, without importing torch.
        model=next(iter(builtin_checkpoints()), "toy") if model.model is None else model.model,
        device=model.device,
        dtype=model.dtype,
        quantize=model.quantize,
        revision=model.revision,
        offline=model.offline,
        **model.load_options(),
        cuda_graphs=model.cuda_graphs,
        compile=model.compile,
        speed=speed,
    )
    key = find_key(api_key)
    os.environ.pop(KEY, None)  # child processes do not need the key
    settings = server.Settings(
        source=source,
        host=host,
        port=port,
        api_key=key,
        open_metrics=open_metrics,
        hosts=tuple(allow_host or ()),
        trusted_proxies=tuple(trust_proxy or ()),
        name=name,
        page=page,
        batch_shape=batch_shape,
        strategy=strategy,
        steps=steps,
        eos=eos,
        cache=cache,
        threads=threads,
        limits=limits,
        scale=scale,
    )
    if key is None and host not in ("127.0.0.1", "::1", "localhost"):
        complain("warning", f"Anyone who can reach {host}:{port} can use this server: set {KEY}.")
    server.run(settings)


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
        return Path(path).read_text("utf-8-sig").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = (getattr(error, "strerror", None) or "not UTF-8").lower()
        raise OptionError(
            f"The API key file {path!r} cannot be read ({reason}): create it or set {KEY}. "
            f"If {KEY_FILE} is empty, no key is required.",
            option="api_key",
        ) from error
