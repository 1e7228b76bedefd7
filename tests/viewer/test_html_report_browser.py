"""The report in a real browser: playback, keyboard, and no error in the console."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.recordings import hostile, record
from playwright.sync_api import Page, expect, sync_playwright

from wavefront.traces import trace_file
from wavefront.viewer import html_report

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), ""
)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not CHROMIUM, reason="no chromium on this machine"),
]
expect.set_options(timeout=5000)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_playwright() as made:
        # Containers often have no user for the sandbox, and the pages are our own.
        opened = made.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Build the reports that the tests open."""
    folder = tmp_path_factory.mktemp("pages")
    wave, block = (
        record("wavefront(size=4, radius=2)", full=True),
        record("block(size=4)", full=True),
    )
    # The same decode with half the forward passes.
    quick = replace(block, launched=(block.launched + 1) // 2)
    back = record("tbd(size=6, drop=2, gamma=0.9, min_kept=2)")
    start = int((wave.first.slot[0] >= 0).nonzero()[0])
    by_hand = replace(wave, overrides=torch.tensor([[2, 0, start + 11, 65]]))
    *_, last = wave.replay()
    stop = {**wave.about["options"], "stop_ids": [int(last.tokens[0, start + 7])]}
    ended = replace(wave, about={**wave.about, "options": stop})
    traces = {"wave": wave, "quick": quick, "back": back, "hand": by_hand, "ended": ended}
    traces["hostile"] = hostile(wave, "</script><img src=x onerror=alert(1)>")
    files = {name: trace_file.save(one, folder / f"{name}.npz") for name, one in traces.items()}
    wanted = {
        "two": ["wave", "quick"],
        "three": ["wave", "quick", "back"],
        "back": ["back"],
        "hand": ["hand"],
        "ended": ["ended"],
        "hostile": ["hostile"],
    }
    for name, of in wanted.items():
        page = html_report.make([files[one] for one in of]).html
        (folder / f"{name}.html").write_text(page, encoding="utf-8")
    for name in ("wave", "hostile"):  # as the output of a cell in a notebook
        cell = f"<!doctype html><style>* {{ color: red }}</style>{traces[name]._repr_html_()}"
        (folder / f"notebook-{name}.html").write_text(cell, encoding="utf-8")
    names = (*wanted, "notebook-wave", "notebook-hostile")
    return {name: folder / f"{name}.html" for name in names}


@pytest.fixture
def show(browser: Any, pages: dict[str, Path]) -> Iterator[Any]:
    """Open a report; fail if the page logs an error or requests anything."""
    problems: list[str] = []
    contexts = []

    def opened(name: str, **settings: Any) -> Page:
        context = browser.new_context(**{"viewport": {"width": 1200, "height": 900}} | settings)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: problems.append(message.text))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("dialog", lambda dialog: problems.append(dialog.message))
        address = pages[name].as_uri()
        own = (address, "about:srcdoc")  # the second is the frame in a notebook
        page.on("request", lambda one: one.url in own or problems.append(one.url))
        page.goto(address)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert problems == []


def moments(page: Page) -> list[int]:
    found = page.locator(".pane").evaluate_all("all => all.map((one) => one.dataset.moment)")
    return [int(one) for one in found]


def scrub(page: Page, to: int) -> None:
    page.locator("#scrub").fill(str(to))


def by_step(page: Page) -> None:
    page.get_by_text("by step", exact=True).click()


def known(page: Page, pane: int) -> int:
    return page.locator(".pane").nth(pane).locator("[data-position].k").count()


@pytest.mark.parametrize("name", ["notebook-wave", "notebook-hostile"])
def test_trace_plays_in_the_frame_of_a_notebook(show: Any, name: str) -> None:
    page = show(name)
    frame = page.frame_locator("iframe")
    expect(frame.locator(".pane")).to_have_count(1)
    frame.locator("#scrub").fill("0")
    expect(frame.locator(".pane")).to_have_attribute("data-moment", "0")
    frame.locator("#scrub").fill("12")
    expect(frame.locator(".pane [data-position].k")).to_have_count(12)
    frame.locator("#theme").click()
    red = frame.locator("#theme").evaluate("one => getComputedStyle(one).color")
    assert red != "rgb(255, 0, 0)"  # the notebook's style stays outside


def test_scrubber_moves_both_decodes(show: Any) -> None:
    page = show("two")
    assert moments(page) == [5, 10]  # the page opens at 40 % of the forward passes
    by_step(page)
    scrub(page, 0)
    assert [known(page, 0), known(page, 1)] == [0, 0]
    scrub(page, 7)
    assert moments(page) == [7, 7]
    assert [known(page, 0), known(page, 1)] == [7, 7]
    expect(page.locator("#moment")).to_have_text("step 7 / 12")
    expect(page.locator("[data-number=tokens]").first).to_have_text("7 of 12")
    expect(page.locator(".pane").first.locator(".now")).to_have_count(1)
    assert page.locator(".pane").first.locator(".front").count() > 0
    assert page.locator(".pane").last.locator(".front").count() == 0  # a block has none
    assert page.locator(".pane").last.locator(".scope").count() > 0


def test_text_is_the_decode_s_answer(show: Any) -> None:
    page = show("two")
    trace = record("wavefront(size=4, radius=2)", full=True)
    scrub(page, 12)
    *_, last = trace.replay()
    texts = [trace.about["texts"][str(one)] for one in last.tokens[0, 2:].tolist()]
    shown = page.locator(".pane").first.locator("[data-position]").all_text_contents()
    plain = [re.fullmatch(r"[!-~]+", one) is not None for one in texts]  # others become signs
    assert sum(plain) >= 3
    assert all(a == b for a, b, same in zip(shown, texts, plain, strict=True) if same)


def test_decode_with_fewer_forwards_is_ahead_by_forward(show: Any) -> None:
    page = show("two")
    scrub(page, 4)
    assert moments(page) == [4, 8]
    expect(page.locator("#moment")).to_have_text("pass 4 / 12")
    expect(page.locator("[data-number=change]").last).to_have_text("+2")
    expect(page.locator(".pane").last.locator(".now")).to_have_count(2)
    scrub(page, 12)
    assert moments(page) == [12, 12]
    scrub(page, 4)
    by_step(page)
    assert moments(page) == [4, 4]  # the page stays where the first decode is
    page.get_by_text("by forward pass", exact=True).click()
    assert moments(page) == [4, 8]


def test_play_runs_to_the_end_and_then_restarts(show: Any) -> None:
    page = show("two")
    page.locator("#speed").select_option("2")
    page.get_by_role("button", name="Play").click()
    expect(page.get_by_role("button", name="Pause")).to_be_visible()
    page.locator("#speed").select_option("40")
    expect(page.locator("#moment")).to_have_text("pass 12 / 12")
    expect(page.get_by_role("button", name="Play")).to_be_visible()  # playback has stopped
    page.locator("#speed").select_option("2")
    # Play and pause at once, because a busy machine may miss the first steps.
    page.get_by_role("button", name="Play").evaluate("(play) => { play.click(); play.click(); }")
    expect(page.locator("#moment")).to_have_text(re.compile("pass [01] /"))
    expect(page.get_by_role("button", name="Play")).to_be_visible()


def test_buttons_step(show: Any) -> None:
    page = show("two")
    by_step(page)
    for name, moment in [
        ("Go to the start", 0),
        ("One step forward", 1),
        ("One step forward", 2),
        ("One step back", 1),
    ]:
        page.get_by_role("button", name=name).click()
        assert moments(page) == [moment, moment]
    page.get_by_role("button", name="Go to the end").click()
    assert moments(page) == [12, 12]


def test_keyboard_steps_plays_and_moves_between_positions(show: Any) -> None:
    page = show("two")
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    page.keyboard.press(".")
    page.keyboard.press("ArrowLeft")
    assert moments(page) == [2, 4]  # the second decode needs half the forward passes
    page.keyboard.press("End")
    assert moments(page) == [12, 12]
    page.locator("#speed").select_option("2")
    page.locator("#scrub").focus()
    page.keyboard.press("Space")
    expect(page.get_by_role("button", name="Pause")).to_be_visible()
    page.keyboard.press("Space")
    page.keyboard.press("End")
    page.keyboard.press("ArrowLeft")  # the slider's own
    assert moments(page) == [11, 12]
    page.locator("[data-position='0']").first.focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator(".history .head").first).to_contain_text("Position 2")
    page.keyboard.press(",")
    assert moments(page) == [10, 12]
    page.keyboard.press("Enter")
    page.keyboard.press("Shift+Tab")
    expect(page.locator(".history .head").first).to_contain_text("Position 2")  # kept
    page.keyboard.press("Escape")
    expect(page.locator(".history .hint").first).to_be_visible()


def test_pointing_at_a_position_shows_its_history_in_both(show: Any) -> None:
    page = show("two")
    trace = record("wavefront(size=4, radius=2)", full=True)
    scrub(page, 12)
    page.locator("[data-position='3']").first.hover()
    heads = page.locator(".history .head")
    expect(heads.first).to_contain_text("Position 4")
    expect(heads.last).to_contain_text("Position 4")
    step = int(trace.commit[:, 0, 5].nonzero()[0])
    chance = float(trace.logp[step, 0, 5].exp())
    expect(page.locator(".history ol").first).to_contain_text(f"step {step + 1} committed")
    expect(page.locator(".history ol").first).to_contain_text(f"{chance:.2f}")
    expect(page.locator(".history").first.locator(".bars li")).to_have_count(5)
    scrub(page, 0)
    page.locator("[data-position='3']").first.hover()
    expect(heads.first).to_contain_text("masked")


def test_click_in_the_map_goes_to_that_moment(show: Any) -> None:
    page = show("two")
    box = page.locator(".frame").last.bounding_box()
    page.mouse.click(box["x"] + box["width"] * 8.5 / 12, box["y"] + 20)
    assert moments(page) == [9, 12]


def test_light_and_dark(show: Any) -> None:
    def paper(page: Page) -> str:
        return page.evaluate("getComputedStyle(document.body).backgroundColor")

    page = show("two", color_scheme="light")
    light = paper(page)
    painted = page.evaluate("document.querySelector('canvas').toDataURL()")
    page.get_by_role("button", name="Light or dark").click()
    dark = paper(page)
    assert dark != light
    assert page.evaluate("document.querySelector('canvas').toDataURL()") != painted
    page.get_by_role("button", name="Light or dark").click()
    assert paper(page) == light
    assert paper(show("two", color_scheme="dark")) == dark
    page.emulate_media(media="print")
    assert paper(page) == light


def test_remasked_positions_are_marked(show: Any) -> None:
    page = show("back")
    trace = record("tbd(size=6, drop=2, gamma=0.9, min_kept=2)")
    taken = trace.remask[:, 0].sum(-1).tolist()
    step = next(number for number, count in enumerate(taken) if count)
    scrub(page, step + 1)
    expect(page.locator("[data-position].back")).to_have_count(taken[step])
    expect(page.locator("[data-number=change]")).to_contain_text(f"−{taken[step]}")
    scrub(page, len(trace))
    assert known(page, 0) == 12


def test_tokens_written_by_hand_are_marked(show: Any) -> None:
    page = show("hand")
    scrub(page, 2)
    expect(page.locator("[data-position].hand")).to_have_count(0)
    scrub(page, 3)
    expect(page.locator("[data-position].hand")).to_have_count(1)
    expect(page.locator("[data-number=tokens]")).to_have_text("4 of 12")


def test_each_side_chooses_among_three_decodes(show: Any) -> None:
    page = show("three")
    expect(page.locator(".pane")).to_have_count(2)
    page.get_by_label("Decode 2").select_option("2")
    expect(page.locator(".pane").last).to_have_attribute("aria-label", re.compile("^tbd"))
    scrub(page, 3)
    assert moments(page) == [3, 3]


def test_hostile_trace_is_shown_as_text(show: Any) -> None:
    page = show("hostile")
    scrub(page, 12)
    expect(page.locator("main img")).to_have_count(0)
    expect(page.locator("[data-position]").first).to_have_text(re.compile("^</script><img"))


def test_page_fits_a_phone(show: Any) -> None:
    page = show("three", viewport={"width": 360, "height": 740})
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    tops = page.locator(".pane").evaluate_all("all => all.map((one) => one.offsetTop)")
    assert tops[1] > tops[0]  # one below the other


def test_tokens_after_the_end_can_be_hidden(show: Any) -> None:
    page = show("ended")
    fill = page.locator("[data-position].fill")
    *_, last = record("wavefront(size=4, radius=2)", full=True).replay()
    answer = last.tokens[0, 2:].tolist()
    count = 12 - answer.index(answer[7])
    expect(fill).to_have_count(count)
    expect(fill.first).to_be_visible()
    page.get_by_label("Hide tokens after the end").check()
    expect(fill.first).to_be_hidden()
    scrub(page, 12)
    expect(page.locator(".rest")).to_have_text(f"∎ {count} of {count} after the end")
    expect(show("two").get_by_label("Hide tokens after the end")).to_be_hidden()  # nothing to hide
