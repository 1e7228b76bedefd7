"""The server page in a real browser: decode, watch, scrub, compare, fork and share."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.commands import save_talker
from helpers.servers import PATIENCE, Running, serving
from playwright.sync_api import Page, expect, sync_playwright

from wavefront.core.bounds import DEFAULT_STRATEGY
from wavefront.strategies.block import Block
from wavefront.strategies.tide import Tide

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), ""
)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not CHROMIUM, reason="no chromium on this machine"),
]
KEY = "a-secret"
WAIT = 1000 * PATIENCE


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    expect.set_options(timeout=WAIT)
    with sync_playwright() as made:
        # Containers often have no user for the sandbox, and the pages are our own.
        opened = made.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()
    expect.set_options(timeout=5000)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = save_talker(tmp_path_factory.mktemp("talker"))
    with serving("-m", folder, "--name", "talker") as running:
        yield running


@pytest.fixture
def show(browser: Any, server: Running) -> Iterator[Any]:
    """Open the page; fail if it logs an error or requests anything from elsewhere."""
    problems: list[str] = []
    contexts = []

    def opened(url: str = server.url, *, quiet: bool = True, **settings: Any) -> Page:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}} | settings)
        context.set_default_timeout(WAIT)
        contexts.append(context)
        page = context.new_page()
        if quiet:
            page.on("console", lambda message: problems.append(message.text))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("dialog", lambda dialog: problems.append(dialog.message))
        ours = (url, "blob:", "data:")
        page.on("request", lambda one: one.url.startswith(ours) or problems.append(one.url))
        page.goto(url)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert problems == []


def decode(page: Page, *, length: int = 24, more: int = 0) -> None:
    """Start a decode and wait for its end."""
    expect(page.locator("#model")).to_have_text("talker")
    page.get_by_label("Length").fill(str(length))
    for _ in range(more):
        page.get_by_role("button", name="Compare with another").click()
    page.get_by_role("button", name="Decode").click()
    done(page)


def done(page: Page) -> None:
    expect(page.get_by_role("button", name="Share as a file")).to_be_enabled()


def known(page: Page, pane: int = 0) -> int:
    return page.locator(".pane").nth(pane).locator("[data-position].k").count()


def numbers(page: Page, name: str) -> list[str]:
    return page.locator(f"[data-number='{name}']").all_text_contents()


def test_decode_can_be_watched_and_scrubbed(show: Any, server: Running) -> None:
    page = show()
    expect(page.locator("#model")).to_have_text("talker")
    page.get_by_label("Your prompt").fill("Hi")
    page.get_by_label("Strategy", exact=True).select_option("wavefront")  # it has a front
    decode(page)
    expect(page.locator("[data-position]")).to_have_count(24)
    steps = int(page.locator("#scrub").get_attribute("max") or 0)
    assert 1 < steps <= 24
    expect(page.locator("#moment")).to_have_text(f"pass {steps} / {steps}")
    assert numbers(page, "forwards") == [f"{steps} of {steps}"]
    assert re.fullmatch(r"[\d.]+ % · [\d.]+ % by extent", numbers(page, "MHCO")[0])
    page.get_by_text("What the numbers mean").click()
    expect(page.locator("#terms dt")).to_contain_text(["MHCO"])
    expect(page.locator("#terms")).to_contain_text("a nearby position was more confident")
    answer = server.post(
        "/v1/chat/completions",
        messages=[{"role": "user", "content": "Hi"}],
        max_tokens=24,
        strategy=page.locator(".spec-input").input_value(),
    )
    text = answer.json()["choices"][0]["message"]["content"]
    assert page.locator(".answer").text_content() == text
    page.locator("#scrub").fill("5")
    assert known(page) == 5
    expect(page.locator("[data-position].now")).to_have_count(1)
    assert page.locator("[data-position].front").count() > 0
    page.locator("#scrub").fill("0")
    assert known(page) == 0


def test_canvas_fills_during_the_decode(show: Any) -> None:
    page = show()
    expect(page.locator("#model")).to_have_text("talker")
    page.get_by_label("Your prompt").fill("Hi")
    page.get_by_label("Length").fill("200")
    page.get_by_role("button", name="Decode").click()
    expect(page.locator("[data-position].k").nth(3)).to_be_attached()
    assert known(page) < 200  # the decode is not finished
    expect(page.locator(".status")).to_contain_text("decoding")
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_role("button", name="Decode")).to_be_enabled()
    expect(page.locator(".answer")).to_have_text(re.compile("Stopped|cancelled"))


def test_keyboard_steps_and_plays(show: Any) -> None:
    page = show()
    decode(page, length=12)
    page.locator("body").click(position={"x": 5, "y": 300})
    page.keyboard.press("Home")
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowLeft")
    expect(page.locator("#moment")).to_have_text(re.compile("^pass 2 /"))
    page.get_by_label("Speed").select_option("40")
    page.locator("body").click(position={"x": 5, "y": 300})
    page.keyboard.press("Space")
    expect(page.locator("#moment")).to_have_text(re.compile(r"^pass (\d+) / \1$"))
    expect(page.get_by_role("button", name="Play")).to_be_visible()
    page.locator("[data-position='0']").focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator("[data-position='1']")).to_be_focused()
    expect(page.locator("[data-position='1']")).to_have_attribute(
        "aria-label", re.compile("Position 2")
    )
    page.keyboard.press("Enter")
    expect(page.locator(".tools .head")).to_have_text("Fork at position 2")


def test_three_decodes_side_by_side(show: Any) -> None:
    page = show()
    decode(page, length=16, more=2)
    expect(page.locator(".pane")).to_have_count(3)
    expect(page.get_by_role("button", name="Compare with another")).to_be_hidden()
    titles = page.locator(".pane .spec").all_text_contents()
    assert titles == [DEFAULT_STRATEGY, "wavefront(size=8, radius=2)", "block(size=8)"]
    assert len(numbers(page, "forwards")) == len(numbers(page, "MHCO")) == 3
    page.locator("#scrub").fill("4")
    assert [known(page, pane) for pane in (1, 2)] == [4, 4]
    tops = page.locator(".pane").evaluate_all("all => all.map((one) => one.offsetTop)")
    assert len(set(tops)) == 1


def test_charts_of_two_strategies_share_one_axis_of_forward_passes(show: Any) -> None:
    page = show()
    expect(page.locator("#model")).to_have_text("talker")
    page.get_by_role("button", name="Compare with another").click()
    quick = "block(size=8, selector=threshold(tau=0.0))"
    page.get_by_label("Strategy as a spec string").last.fill(quick)
    page.get_by_label("Length").fill("24")
    page.get_by_role("button", name="Decode").click()
    done(page)
    slow, fast = (int(text.split()[-1]) for text in numbers(page, "forwards"))
    assert fast < slow
    expect(page.locator("#moment")).to_have_text(f"pass {slow} / {slow}")
    axes = [pane.locator(".across").first for pane in page.locator(".pane").all()]
    first, second = ([*axis.locator("span").all_text_contents()] for axis in axes)
    assert first == second
    assert first[0] == "0"
    assert slow / 2 < int(first[-1]) <= slow
    positions = page.locator(".down").first.locator("span").all_text_contents()
    assert positions[0] == "1"
    assert 12 < int(positions[-1]) <= 24
    assert set(page.locator("figure > .axis-name").all_text_contents()) == {
        "position",
        "forward passes",
    }
    page.get_by_text("by step", exact=True).click()
    expect(page.locator("figure > .axis-name").last).to_have_text("steps")


def test_canvas_is_above_the_fold_of_a_laptop(show: Any) -> None:
    page = show(viewport={"width": 1366, "height": 768})
    decode(page, length=64, more=1)
    assert page.evaluate("scrollY") == 0
    for board in page.locator(".pane .text").all():
        box = board.bounding_box()
        assert box is not None
        assert box["y"] + box["height"] < 768


def test_numbers_of_a_single_decode_are_on_one_line(show: Any) -> None:
    page = show(viewport={"width": 1366, "height": 768})
    decode(page, length=64)
    expect(page.locator(".numbers")).to_contain_text("MHCO")
    boxes = [name.bounding_box() for name in page.locator(".numbers dt:visible").all()]
    assert len(boxes) > 4
    assert len({box["y"] for box in boxes if box is not None}) == 1


def test_decode_on_a_phone_scrolls_to_the_canvas(show: Any) -> None:
    page = show(viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    decode(page, length=24)
    expect(page.locator(".pane .text")).to_be_in_viewport(ratio=1)
    expect(page.locator("#bar")).to_be_in_viewport(ratio=1)


def test_controls_write_the_spec(show: Any) -> None:
    page = show()
    expect(page.locator("#model")).to_have_text("talker")
    spec = page.get_by_label("Strategy as a spec string")
    expect(spec).to_have_value(DEFAULT_STRATEGY)
    page.get_by_label("Strategy", exact=True).select_option("wavefront")
    page.get_by_label("Wave size F positions").fill("4")
    page.get_by_label("Radius R positions").fill("1")
    page.get_by_label(re.compile("Threshold")).fill("0.5")
    expect(spec).to_have_value(
        "wavefront(size=4, radius=1, grow='rebuild', selector=threshold(tau=0.5))"
    )
    page.get_by_label("Strategy", exact=True).select_option("block")
    expect(spec).to_have_value(Block.recommended_spec())
    page.get_by_label("Block size B positions").fill("8")
    page.get_by_label(re.compile("Threshold")).fill("0.5")
    expect(spec).to_have_value("block(size=8, selector=threshold(tau=0.5, floor=None))")
    page.get_by_label("Steps at most").fill("9")
    page.get_by_label("Temperature").fill("0.7")
    page.get_by_label("Seed").fill("3")
    decode(page, length=16)
    assert int(numbers(page, "forwards")[0].split()[0]) <= 16


def test_fork_from_a_step_with_a_changed_token(show: Any) -> None:
    page = show()
    decode(page, length=16)
    page.locator("#scrub").fill("6")
    before = {
        position: page.locator(f"[data-position='{position}']").text_content()
        for position in range(16)
        if "k"
        in (page.locator(f"[data-position='{position}']").get_attribute("class") or "").split()
    }
    masked = next(position for position in range(16) if position not in before)
    page.locator(f"[data-position='{masked}']").click()
    page.get_by_label(f"Text to write at position {masked + 1}").fill("Q")
    page.get_by_role("button", name="Fork from here").click()
    expect(page.locator(".pane")).to_have_count(2)
    done(page)
    fork = page.locator(".pane").last
    assert fork.locator(f"[data-position='{masked}']").text_content() == "Q"
    for position, text in before.items():
        assert fork.locator(f"[data-position='{position}']").text_content() == text
    expect(fork.locator("[data-position].hand")).to_have_count(7)
    expect(fork.locator("h2")).to_contain_text("fork of block(size=32")


def test_shared_file_plays_without_a_server(show: Any, tmp_path: Path) -> None:
    page = show()
    page.get_by_label("Your prompt").fill("Hi </script><img src=x onerror=alert(1)>")
    decode(page, length=16, more=1)
    with page.expect_download() as download:
        page.get_by_role("button", name="Share as a file").click()
    file = tmp_path / "shared.html"
    download.value.save_as(file)
    shared = show(file.as_uri())
    expect(shared.locator(".pane")).to_have_count(2)
    expect(shared.locator("#lead")).to_have_text("Hi </script><img src=x onerror=alert(1)>")
    expect(shared.locator("img")).to_have_count(0)
    shared.locator("#scrub").fill("3")
    assert [known(shared, 0), known(shared, 1)] == [3, 3]
    shared.locator("body").press("ArrowRight")
    expect(shared.locator("#moment")).to_have_text(re.compile("^pass 4 /"))
    theirs = page.locator(".answer").all_text_contents()
    shared.locator("body").press("End")
    assert shared.locator(".answer").all_text_contents() == theirs


def test_errors_are_shown(show: Any) -> None:
    page = show(quiet=False)  # a browser logs every 400 itself
    expect(page.locator("#model")).to_have_text("talker")
    page.get_by_label("Strategy as a spec string").fill("blok(size=8)")
    page.get_by_role("button", name="Decode").click()
    expect(page.get_by_role("alert")).to_contain_text("did you mean 'block'?")
    expect(page.get_by_role("button", name="Decode")).to_be_enabled()


def test_holes_are_filled(show: Any) -> None:
    page = show()
    page.get_by_label("Your prompt").fill("One <mask:5> two <mask:4>.")
    expect(page.get_by_label("Length")).to_be_disabled()
    page.get_by_role("button", name="Decode").click()
    done(page)
    expect(page.locator("[data-position]")).to_have_count(9)
    expect(page.locator(".given")).to_have_text(["One ", " two ", "."])


def test_constraint_is_shown_and_its_structure_looks_different(show: Any) -> None:
    page = show()
    page.get_by_label("Length").fill("24")
    page.get_by_label("Constraint").select_option("regex")
    page.get_by_label("Pattern").fill("fruit: (fig|pear)!")
    page.get_by_role("button", name="Decode").click()
    answer = page.locator(".answer")
    expect(answer).to_have_text(re.compile("^fruit: (fig|pear)!$"))
    expect(page.locator(".constraint-line")).to_have_text("regex: fruit: (fig|pear)!")
    expect(page.locator(".legend [data-when=pinned]")).to_be_visible()
    pinned = page.locator(".text .t.pinned")
    assert pinned.count() >= 8
    looks = [
        page.locator(place).first.evaluate("one => getComputedStyle(one).backgroundColor")
        for place in (".text .t.k.pinned", ".text .t.k:not(.pinned):not(.end)")
    ]
    assert looks[0] != looks[1]
    page.get_by_label("Constraint").select_option("schema")
    page.get_by_label("Schema", exact=True).fill("{")
    page.get_by_role("button", name="Decode").click()
    expect(page.locator("#error")).to_contain_text("The schema is not JSON")


def test_reload_during_a_decode_resumes(show: Any) -> None:
    page = show()
    page.get_by_label("Your prompt").fill("Reload me")
    expect(page.locator("#model")).to_have_text("talker")
    page.get_by_label("Length").fill("200")
    page.get_by_role("button", name="Decode").click()
    expect(page.locator("[data-position].k").nth(3)).to_be_attached()
    page.reload()
    expect(page.locator("[data-position].k").nth(3)).to_be_attached()
    expect(page.get_by_label("Your prompt")).to_have_value("Reload me")
    done(page)
    expect(page.locator(".answer")).not_to_be_empty()


def test_light_dark_and_narrow(show: Any) -> None:
    def paper(page: Page) -> str:
        return page.evaluate("getComputedStyle(document.body).backgroundColor")

    page = show(color_scheme="light")
    decode(page, length=12, more=2)
    light = paper(page)
    painted = page.evaluate("document.querySelector('canvas').toDataURL()")
    page.get_by_role("button", name="Light or dark").click()
    assert paper(page) != light
    assert page.evaluate("document.querySelector('canvas').toDataURL()") != painted
    page.set_viewport_size({"width": 360, "height": 740})
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    tops = page.locator(".pane").evaluate_all("all => all.map((one) => one.offsetTop)")
    assert tops == sorted(set(tops))  # one below the other


def test_every_control_has_an_accessible_name(show: Any) -> None:
    page = show()
    decode(page, length=12, more=1)
    nameless = page.evaluate(
        """() => [...document.querySelectorAll('button, input, select, textarea, canvas')].filter(
          (one) => !(one.getAttribute('aria-label') || one.textContent.trim() || one.labels?.length)
        ).map((one) => one.outerHTML)"""
    )
    assert nameless == []


def test_api_key_is_required_and_kept_in_memory_only(
    show: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = save_talker(tmp_path_factory.mktemp("keyed"))
    with serving("-m", folder, "--name", "talker", key=KEY) as keyed:
        page = show(keyed.url, quiet=False)
        expect(page.get_by_role("alert")).to_contain_text("requires an API key")
        page.get_by_label("Key, kept in this page only").fill(KEY)
        page.get_by_label("Key, kept in this page only").press("Enter")
        expect(page.locator("#model")).to_have_text("talker")
        page.get_by_text("API key", exact=True).click()
        decode(page, length=8)
        assert known(page) == 8
        stored = page.evaluate("JSON.stringify([{...sessionStorage}, {...localStorage}])")
        assert KEY not in stored
        page.close()


def choose_strategies(page: Any) -> None:
    """A chosen strategy starts with its recommended spec, and the fields edit that spec."""
    spec, tau = page.locator(".spec-input"), page.get_by_label("Threshold")
    page.locator(".card select").select_option("tide")
    expect(spec).to_have_value(Tide.recommended_spec())
    expect(page.locator(".card .fields input")).to_have_count(2)
    expect(tau).to_have_value("0.98")
    page.get_by_label("Wave size").fill("16")
    tau.fill("0.9")
    expect(spec).to_have_value(
        "tide(size=16, radius=2, cascade_rounds=8, horizon=64, selector=threshold(tau=0.9))"
    )
    tau.fill("")
    expect(spec).to_have_value(
        "tide(size=16, radius=2, cascade_rounds=0, horizon=64, selector=quota())"
    )
    page.locator(".card select").select_option("block")
    expect(spec).to_have_value(Block.recommended_spec())
    tau.fill("0.5")
    expect(spec).to_have_value("block(size=32, selector=threshold(tau=0.5, floor=None))")
    page.locator(".card select").select_option("left_to_right")
    tau.fill("0.7")
    expect(spec).to_have_value("left_to_right(selector=threshold(tau=0.7))")


def test_page_starts_with_the_defaults_of_the_server(
    browser: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = save_talker(tmp_path_factory.mktemp("talker"))
    options = ("--strategy", "block(size=5)", "--steps", "99", "--eos", "keep")
    with serving("-m", folder, "--name", "talker", *options) as server:
        page = browser.new_page()
        page.goto(server.url)
        expect(page.locator("#model")).to_have_text("talker")
        expect(page.locator(".spec-input")).to_have_value("block(size=5)")
        expect(page.locator(".card select")).to_have_value("block")
        expect(page.locator(".card .fields input")).to_have_value("5")
        expect(page.locator("#eos")).to_have_value("keep")
        assert page.locator("#steps").get_attribute("placeholder") == "99"
        choose_strategies(page)
        page.close()
