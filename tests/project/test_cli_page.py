"""docs/cli.md is what runs/cli_page.py writes from the commands."""

from __future__ import annotations

from helpers.commands import all_commands
from helpers.pages import ROOT, load_script

PAGE = (ROOT / "docs" / "cli.md").read_text("utf-8")


def test_page_is_current() -> None:
    assert load_script("cli_page").text() == PAGE, "run: python runs/cli_page.py"


def test_page_names_every_command_and_every_visible_option() -> None:
    for names, command in all_commands():
        if not hasattr(command, "commands"):
            assert f"\n## {' '.join(('wavefront', *names))}\n" in PAGE
        for one in command.params:
            if not getattr(one, "hidden", False) and one.param_type_name == "option" and names:
                assert all(name in PAGE for name in one.opts), (names, one.opts)
