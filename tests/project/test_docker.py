"""The Dockerfile, tested without Docker."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from helpers.servers import serving

import wavefront
from wavefront.cli.app import app

ROOT = Path(wavefront.__file__).parents[1]
TEXT = (ROOT / "Dockerfile").read_text("utf-8")


def instructions(name: str) -> list[str]:
    """Return the arguments of every use of an instruction, with continued lines joined."""
    joined = re.sub(r"\\\n\s*", "", re.sub(r"^#.*\n", "", TEXT, flags=re.MULTILINE))
    return re.findall(rf"^{name} (.+)$", joined, re.MULTILINE)


def test_linter_reports_nothing() -> None:
    linter = shutil.which("hadolint", path=str(Path(sys.executable).parent))
    if linter is None:
        pytest.skip("hadolint is not installed")
    done = subprocess.run(
        [linter, "--failure-threshold", "style", str(ROOT / "Dockerfile")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    wrong = "FROM python:latest\nRUN cd /tmp && pip install torch\n"
    seen = subprocess.run([linter, "-"], input=wrong, capture_output=True, text=True, check=False)
    assert seen.returncode != 0  # the linter does report errors


def copied() -> list[str]:
    """Return the paths that the Dockerfile copies."""
    found: list[str] = []
    for line in instructions("COPY"):
        *sources, _ = line.split()
        found += sources
    return found


def test_copied_paths_exist_and_reach_the_builder() -> None:
    ignored = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    sent = {line.removeprefix("!") for line in ignored if line.startswith("!")}
    assert {*copied()} == sent
    assert all((ROOT / name).exists() for name in sent)


def test_image_installs_checked_files_on_a_fixed_base() -> None:
    bases = [one.partition(" ")[0] for one in instructions("FROM")]
    assert bases == ["${BASE}", "${BASE}"]
    (base,) = (one for one in instructions("ARG") if one.startswith("BASE="))
    assert re.fullmatch(r"BASE=python:3\.\d+-slim@sha256:[0-9a-f]{64}", base)
    installs = [line for line in instructions("RUN") if "pip install" in line]
    assert len(installs) == 4
    for line in installs:
        checked = "--no-deps --require-hashes --requirement" in line
        own = "--no-deps /dist/*.whl" in line
        torch = line.endswith("constraints.txt torch")  # each index has its own files
        assert checked or own or torch, line


@pytest.mark.slow
def test_copied_paths_build_the_wheel(tmp_path: Path) -> None:
    pytest.importorskip("hatchling", reason="hatchling is not installed")
    for name in copied():
        here = ROOT / name
        leave_out = shutil.ignore_patterns("__pycache__")
        if here.is_dir():
            shutil.copytree(here, tmp_path / name, ignore=leave_out)
        else:
            shutil.copy(here, tmp_path)
    (command,) = (line for line in instructions("RUN") if "hatchling build" in line)
    words = command.replace("/dist", str(tmp_path / "dist")).split()
    subprocess.run([sys.executable, *words[1:]], cwd=tmp_path, check=True)
    assert len([*(tmp_path / "dist").glob("wavefront-*.whl")]) == 1


def test_entry_point_starts_the_server_without_root() -> None:
    (user,) = instructions("USER")
    assert user.isdigit()
    assert int(user) > 0
    (start,) = instructions("ENTRYPOINT")
    program, *words = json.loads(start)
    assert program == "wavefront"
    group = typer.main.get_command(app)
    context = group.make_context(program, [*words])
    _, command, rest = group.resolve_command(context, words)  # pyright: ignore[reportAttributeAccessIssue]
    given = command.make_context("serve", rest, parent=context).params
    assert (given["host"], given["port"]) == ("0.0.0.0", 8000)
    assert instructions("EXPOSE") == ["8000"]
    # The container is reachable from outside, so it requires a key.
    assert "WAVEFRONT_API_KEY_FILE=/run/secrets/wavefront_api_key" in instructions("ENV")[0]


def test_documented_docker_options_exist() -> None:
    page = (ROOT / "docs" / "serve.md").read_text("utf-8").replace("\\\n", " ")
    runs = re.findall(r"^docker run .* wavefront(?: (.+))?$", page, re.MULTILINE)
    assert len(runs) == 2
    group = typer.main.get_command(app)
    for words in (["serve", *shlex.split(run)] for run in runs):
        context = group.make_context("wavefront", [*words])
        _, command, rest = group.resolve_command(context, words)  # pyright: ignore[reportAttributeAccessIssue]
        assert command.make_context("serve", rest, parent=context).params["rows"] in (8, 32)
    arguments = {*re.findall(r"--build-arg (\w+)=", page)}
    assert arguments <= {one.partition("=")[0] for one in instructions("ARG")}


@pytest.mark.slow
def test_health_check_detects_a_dead_server(tmp_path: Path) -> None:
    (check,) = instructions("HEALTHCHECK")
    program, *words = json.loads(check.partition(" CMD ")[2])
    assert program == "python"
    key = tmp_path / "key"
    key.write_text("secret\n")
    # The health check uses a loopback name, which works with --allow-host too.
    arguments = ("-m", "toy", "--host", "0.0.0.0", "--allow-host", "0.0.0.0")
    with serving(*arguments, WAVEFRONT_API_KEY_FILE=str(key)) as server:
        port = server.url.rpartition(":")[2]
        probe = [sys.executable, *(word.replace(":8000", f":{port}") for word in words)]
        assert subprocess.run(probe, capture_output=True, check=False).returncode == 0, probe
        assert server.client.get("/v1/models").status_code == 401
    assert subprocess.run(probe, capture_output=True, check=False).returncode != 0


@pytest.mark.slow
def test_container_exits_without_a_key(tmp_path: Path) -> None:
    start = json.loads(instructions("ENTRYPOINT")[0])
    (variables,) = instructions("ENV")
    env = dict(one.split("=", 1) for one in shlex.split(variables))
    done = subprocess.run(
        [sys.executable, "-m", *start],
        env={**env, "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: The API key file '/run/secrets/wavefront_api_key' cannot be")
