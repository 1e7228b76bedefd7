"""The API against its own schema: valid and invalid data; no 5xx, no hang, nothing undocumented."""

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

# A library of its own style: it warns of what it will change.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
EXAMPLES = 25  # of every operation and mode
SPECS = (
    "wavefront(size=4, radius=1)",
    "block(size=4)",
    "standard",
    "rcr(size=16)",
    "tide(selector=threshold(tau=0.3))",
    "left_to_right",
    "dsb(size=8)",
    "tbd(size=8, drop=2)",
)
# Names of one thing, or of what does not go together: a body that has all of them is refused.
RIVALS = ("model", "strategy", "alg", "eps", "alg_temp", "block_length", "block_size", "radius")
RIVALS += ("max_wave_size", "remasking", "eos_policy", "logits_eos_inf", "stop_ids")
RIVALS += ("confidence_eos_eot_inf", "max_tokens", "gen_length", "max_completion_tokens")
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
    """No 5xx; but whoever asks for a short time may get it."""
    asked = case.body if isinstance(case.body, dict) else {}
    hasty = response.status_code == 504 and asked.get("timeout") is not None
    assert response.status_code < 500 or hasty, response.text
    if response.status_code >= 400:
        assert response.json()["error"]["message"]


def sensible(body: Any) -> Any:
    """The body, with what would keep most from being decoded put right."""
    made = {name: value for name, value in body.items() if name not in RIVALS}
    made["strategy"] = SPECS[len(str(body)) % len(SPECS)]
    for name in ("steps", "max_new_tokens"):
        if made.get(name):
            made[name] = made[name] % 24 + 1
    if made.get("messages"):
        made["messages"] = [*made["messages"], {"role": "user", "content": "Hi"}]
    elif "at" not in made:
        made["prompt"] = "a <mask:5>" if made.get("infill") else "Hi"
    if made.get("infill"):
        made.pop("max_new_tokens", None)
    if not made.get("stream"):
        made.pop("stream_options", None)
    if "at" in made:
        made |= {"at": made["at"] % 8, "put": {}}
    if made.get("stop") == "" or isinstance(made.get("stop"), list):
        del made["stop"]
    return made


def attempt(operation: Any, mode: GenerationMode, id: str) -> int:
    """Many requests of one kind; how many."""
    made = 0
    # The id of a decode that there is; others are tried as well, one time in a while.
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
    def one(case: Any) -> None:
        nonlocal made
        made += 1
        if mode is GenerationMode.POSITIVE and isinstance(case.body, dict) and made % 3:
            case.body = sensible(case.body)
        checks = [no_failure, status_code_conformance, content_type_conformance]
        case.call_and_validate(checks=checks, timeout=120)

    one()
    return made


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
def test_no_generated_request_causes_a_server_error(server: Running, mode: GenerationMode) -> None:
    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    id = server.post("/v1/wavefront/decodes", prompt="Hi", max_new_tokens=8).json()["id"]
    made = {}
    for found in schema.get_all_operations():
        operation = found.ok()  # pyright: ignore[reportAttributeAccessIssue]
        if operation.method.upper() == "DELETE" or operation.path == "/v1/models/{id}":
            id_there = "none"
        else:
            id_there = id
        if mode is GenerationMode.NEGATIVE and operation.path not in WITH_BODY:
            continue  # there is nothing to get wrong
        made[f"{operation.method} {operation.path}"] = attempt(operation, mode, id_there)
    assert all(count >= 1 for count in made.values())
    assert all(made[f"post {path}"] >= EXAMPLES // 2 for path in WITH_BODY)
    assert server.client.get("/health").status_code == 200
    assert server.metric("engine_restarts_total") == 0
    assert server.post("/v1/completions", prompt="Hi", max_tokens=4).status_code == 200
    if mode is GenerationMode.POSITIVE:
        assert server.metric("generation_tokens_total") > 100  # much of it was decoded
