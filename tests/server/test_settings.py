"""Settings, the API key and the optional dependencies."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

from wavefront.cli.serve import find_key
from wavefront.core.errors import MissingExtraError, OptionError, install_command
from wavefront.server.settings import Limits, ModelSource, Settings


def test_invalid_settings_are_rejected() -> None:
    source = ModelSource(model="toy")
    for wrong in ({"port": 99999}, {"batch_shape": "two"}, {"api_key": " "}, {"api_key": "é"}):
        with pytest.raises(OptionError):
            Settings(source=source, **wrong)
    for wrong in (
        {"rows": 0},
        {"queue": -1},
        {"request_timeout": 0},
        {"body": 1.5},
        {"header_timeout": 0},
        {"body_timeout": float("inf")},
        {"connections": 0},
        {"connections_per_address": 0},
        {"body": 2 << 20, "pending_bytes": 2 << 20},  # one body would not fit
    ):
        with pytest.raises(OptionError):
            Limits(**wrong)
    assert "secret" not in repr(Settings(source=source, api_key="secret"))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "127.0.0.2", "192.0.2.1", "box.local", ""])
def test_other_addresses_need_a_key_or_host_names(host: str) -> None:
    source = ModelSource(model="toy")
    with pytest.raises(OptionError, match=r"--api-key .* --allow-host") as caught:
        Settings(source=source, host=host)
    assert caught.value.option == "host"
    assert Settings(source=source, host=host, api_key="secret").known_hosts is None
    named = Settings(source=source, host=host, hosts=("Box.Example",)).known_hosts
    assert named is not None
    assert {"box.example", "localhost", "127.0.0.1", "::1"} <= named
    for local in ("localhost", "127.0.0.1", "::1"):
        assert Settings(source=source, host=local).known_hosts == {"localhost", "127.0.0.1", "::1"}


def test_blanks_around_an_api_key_do_not_count() -> None:
    plain, padded = (Settings(source=ModelSource(model="toy"), api_key=k) for k in ("a", " a\n"))
    assert plain.key_hash == padded.key_hash


def test_api_key_comes_from_option_variable_or_file(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.delenv("WAVEFRONT_API_KEY", raising=False)
    monkeypatch.delenv("WAVEFRONT_API_KEY_FILE", raising=False)
    assert find_key(None) is None
    file = tmp_path / "key"
    monkeypatch.setenv("WAVEFRONT_API_KEY_FILE", str(file))
    with pytest.raises(OptionError, match="no such file or directory"):
        find_key(None)
    file.write_bytes(b"\xff")
    with pytest.raises(OptionError, match="not utf-8"):
        find_key(None)
    file.write_text("\ufefffrom the file\n", encoding="utf-8")
    assert find_key(None) == "from the file"
    monkeypatch.setenv("WAVEFRONT_API_KEY", "from the variable")
    assert find_key(None) == "from the variable"
    assert find_key("from the command line") == "from the command line"
    monkeypatch.delenv("WAVEFRONT_API_KEY")
    monkeypatch.setenv("WAVEFRONT_API_KEY_FILE", "")
    assert find_key(None) is None


def test_missing_extra_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    monkeypatch.delitem(sys.modules, "wavefront.server")
    known = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == "uvicorn" else known(name, *a)
    )
    with pytest.raises(MissingExtraError, match=re.escape(install_command("serve"))):
        importlib.import_module("wavefront.server")
