"""The documentation site builds in strict mode, works offline, and can be searched."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import threading
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOADED = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}
CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), ""
)


class Quiet(SimpleHTTPRequestHandler):
    """Serve a folder without logging."""

    def log_message(self, format: str, *args: object) -> None:
        pass


class Loaded(HTMLParser):
    """Collect the resources that a browser loads for a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        value = dict(attrs).get(LOADED.get(tag, ""))
        if value and not value.startswith("data:"):
            self.found.append(value)


def build(folder: Path, *, settings: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Build as `make docs` does. In quiet mode mkdocs would not count warnings."""
    chosen = [] if settings is None else ["-f", str(settings)]
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(folder), *chosen],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT)},
        timeout=200,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = build(folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
def test_site_contains_every_page(site: Path) -> None:
    pages = {path.stem for path in (ROOT / "docs").glob("*.md")}
    assert pages <= {path.stem for path in site.glob("*.html")}


@pytest.mark.slow
def test_pages_load_only_local_files(site: Path) -> None:
    pages = sorted(site.glob("*.html"))
    for page in pages:
        reader = Loaded()
        reader.feed(page.read_text("utf-8"))
        assert len(reader.found) > 3
        for target in reader.found:
            if page.name == "404.html":
                assert not re.match(r"(https?:)?//", target), target
            else:
                assert (page.parent / target.partition("?")[0]).exists(), (page.name, target)


@pytest.mark.slow
def test_styles_load_nothing_remote(site: Path) -> None:
    for style in site.rglob("*.css"):
        text = style.read_text("utf-8")
        assert not re.search(r"(@import|url\()\s*['\"]?(https?:)?//", text), style.name


@pytest.mark.slow
def test_search_works_offline(site: Path) -> None:
    index = json.loads((site / "search" / "search_index.json").read_text("utf-8"))
    locations = {entry["location"].partition("#")[0] for entry in index["docs"]}
    assert {"api.html", "strategies.html", "experiments.html"} <= locations


@pytest.mark.slow
def test_reference_has_signatures_and_nothing_private(site: Path) -> None:
    text = (site / "api.html").read_text("utf-8")
    identifiers = re.findall(r'id="(wavefront\.[\w.]+)"', text)
    assert "wavefront.lm.LM.generate" in identifiers
    assert "wavefront.core.strategy.Decision.commit" in identifiers
    assert "the answer up to its first stop token; after infilling, the whole text" in text
    private = [one for one in identifiers if re.search(r"\._", one)]
    assert private == []


@pytest.mark.slow
@pytest.mark.skipif(not CHROMIUM, reason="no chromium on this machine")
def test_browser_search_makes_no_remote_request(site: Path) -> None:
    """Search a served copy of the site, and check that no request leaves it."""
    from playwright.sync_api import sync_playwright

    handler = partial(Quiet, directory=str(site))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server, sync_playwright() as made:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        home = f"http://127.0.0.1:{server.server_port}/"
        browser = made.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page, asked = browser.new_page(), []
        page.on("request", lambda request: asked.append(request.url))
        page.goto(f"{home}index.html")
        page.fill("input[name=query]", "teacher forcing")
        page.wait_for_selector(".md-search-result__list a[href*='experiments']")
        assert "experiments" in page.locator(".md-search-result__list").inner_html()
        browser.close()
        server.shutdown()
    assert len(asked) > 5
    assert [url for url in asked if not url.startswith((home, "blob:", "data:"))] == []


@pytest.mark.slow
@pytest.mark.skipif(not CHROMIUM, reason="no chromium on this machine")
def test_no_page_is_much_longer_than_6000_pixels(site: Path) -> None:
    """A longer page needs to be split, or folded by `extra.fold` of mkdocs.yml."""
    from playwright.sync_api import sync_playwright

    pages = [file for file in sorted(site.rglob("*.html")) if file.name != "404.html"]
    heights = {}
    with sync_playwright() as made:
        browser = made.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        for file in pages:
            page.goto(file.as_uri())
            found = page.evaluate("document.documentElement.scrollHeight")
            heights[file.relative_to(site).as_posix()] = found
        browser.close()
    assert len(heights) > 30
    assert {name: height for name, height in heights.items() if height > 6200} == {}


@pytest.mark.slow
@pytest.mark.parametrize("link", ["nowhere.md", "paper.md#no-such-heading"])
def test_dead_link_fails_the_build(link: str, tmp_path: Path) -> None:
    """Build a site of two pages with the settings of mkdocs.yml."""
    kept = (ROOT / "mkdocs.yml").read_text("utf-8")
    kept = re.sub(r"^nav:.*", "", kept, flags=re.DOTALL | re.MULTILINE)
    kept = re.sub(r"^  - mkdocstrings:\n(?: {6,}.*\n)+", "", kept, flags=re.MULTILINE)
    settings = tmp_path / "mkdocs.yml"
    settings.write_text(kept, "utf-8")
    docs = tmp_path / "docs"
    docs.mkdir()
    shutil.copytree(ROOT / "docs" / ".site", docs / ".site")  # the hooks
    (docs / "paper.md").write_text("# Paper\n", "utf-8")
    (docs / "index.md").write_text("# A page\n\n[here](paper.md)\n", "utf-8")
    assert build(tmp_path / "site", settings=settings).returncode == 0
    (docs / "index.md").write_text(f"# A page\n\n[there]({link})\n", "utf-8")
    done = build(tmp_path / "site", settings=settings)
    assert done.returncode == 1
    assert link.rpartition("#")[2] in done.stderr
