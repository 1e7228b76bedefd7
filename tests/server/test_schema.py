"""Requests generated from the API's schema: no 5xx, no hang, no undocumented response."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest
import schemathesis
from helpers.commands import save_talker
from helpers.servers import Running, serving
from hypothesis import HealthCheck
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import content_type_conformance, status_code_conformance

# schemathesis warns of its own future changes.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
EXAMPLES = 25  # per operation and mode
SPECS = (
    "wavefront(size=4, radius=1)",
    "block(size=4)",
    "standard",
    "rcr(size=16)",
    "tide(cascade_rounds=0, horizon=0, selector=threshold(tau=0.3))",
    "left_to_right",
    "dsb(size=8)",
    "tbd(size=8, drop=2)",
)
# Aliases and options that exclude each other: a body with all of them is rejected.
CONFLICTING = (
    "model",
    "strategy",
    "alg",
    "eps",
    "alg_temp",
    "block_length",
    "block_size",
    "radius",
)
CONFLICTING += ("max_wave_size", "remasking", "eos_policy", "logits_eos_inf", "stop_ids")
CONFLICTING += ("regex", "choices", "response_format", "tools", "tool_choice", "top_logprobs")
CONFLICTING += ("confidence_eos_eot_inf", "max_tokens", "gen_length", "max_completion_tokens")
WITH_BODY = {
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/wavefront/decodes",
    "/v1/wavefront/decodes/{id}/fork",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = save_talker(tmp_path_factory.mktemp("talker"))
    limits = ("--max-steps", "24", "--max-new-tokens", "48", "--max-length", "200")
    with serving("-m", folder, "--name", "talker", "--rows", "8", *limits) as running:
        yield running


@schemathesis.check
def no_failure(ctx: Any, response: Any, case: Any) -> None:
    """Fail on 5xx, except for a timeout that the request asked for."""
    body = case.body if isinstance(case.body, dict) else {}
    timed_out = response.status_code == 504 and body.get("timeout") is not None
    assert response.status_code < 500 or timed_out, response.text
    if response.status_code >= 400:
        assert response.json()["error"]["message"]


def repair(body: Any) -> Any:
    """Return the body with values that can be decoded."""
    fixed = {name: value for name, value in body.items() if name not in CONFLICTING}
    fixed["strategy"] = SPECS[len(str(body)) % len(SPECS)]
    for name in ("steps", "max_new_tokens"):
        if fixed.get(name):
            fixed[name] = fixed[name] % 24 + 1
    if fixed.get("n"):
        fixed |= {"n": fixed["n"] % 3 + 1, "events": False}
    if fixed.get("logit_bias"):
        fixed["logit_bias"] = {"7": 2.5}
    if fixed.get("messages"):
        fixed["messages"] = [*fixed["messages"], {"role": "user", "content": "Hi"}]
    elif "at" not in fixed:
        fixed["prompt"] = "a <mask:5>" if fixed.get("infill") else "Hi"
    if fixed.get("infill"):
        fixed.pop("max_new_tokens", None)
    if not fixed.get("stream"):
        fixed.pop("stream_options", None)
    if "at" in fixed:
        fixed |= {"at": fixed["at"] % 8, "put": {}}
    if fixed.get("stop") == "" or isinstance(fixed.get("stop"), list):
        del fixed["stop"]
    return fixed


def attempt(operation: Any, mode: GenerationMode, id: str) -> int:
    """Send many requests to one operation and return their number."""
    sent = 0
    # Use the id of an existing decode; schemathesis also tries others.
    known = {"path_parameters": {"id": id}} if "{id}" in operation.path else {}
    strategy = operation.as_strategy(generation_mode=mode, **known)

    @hypothesis.settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @hypothesis.given(case=strategy)
    def send(case: Any) -> None:
        nonlocal sent
        sent += 1
        if mode is GenerationMode.POSITIVE and isinstance(case.body, dict) and sent % 3:
            case.body = repair(case.body)
        checks = [no_failure, status_code_conformance, content_type_conformance]
        case.call_and_validate(checks=checks, timeout=120)

    send()
    return sent


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
def test_no_generated_request_causes_a_server_error(server: Running, mode: GenerationMode) -> None:
    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    id = server.post("/v1/wavefront/decodes", prompt="Hi", max_new_tokens=8).json()["id"]
    counts = {}
    for found in schema.get_all_operations():
        operation = found.ok()  # pyright: ignore[reportAttributeAccessIssue]
        if operation.method.upper() == "DELETE" or operation.path == "/v1/models/{id}":
            known_id = "none"
        else:
            known_id = id
        if mode is GenerationMode.NEGATIVE and operation.path not in WITH_BODY:
            continue  # nothing can be invalid
        counts[f"{operation.method} {operation.path}"] = attempt(operation, mode, known_id)
    assert all(count >= 1 for count in counts.values())
    assert all(counts[f"post {path}"] >= EXAMPLES // 2 for path in WITH_BODY)
    assert server.client.get("/health").status_code == 200
    assert server.metric("engine_restarts_total") == 0
    assert server.post("/v1/completions", prompt="Hi", max_tokens=4).status_code == 200
    if mode is GenerationMode.POSITIVE:
        assert server.metric("generation_tokens_total") > 100  # many requests were decoded
