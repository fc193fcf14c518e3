# SPDX-License-Identifier: Apache-2.0
"""The site as it is built (build/site, or EPIGRAD_SITE), and served to a headless browser (EPIGRAD_CHROMIUM)."""

import functools
import http.server
import os
import pathlib
import threading

import pytest
from playwright.sync_api import sync_playwright

ROOT = pathlib.Path(__file__).resolve().parents[2]
SITE = pathlib.Path(os.environ.get("EPIGRAD_SITE", ROOT / "build" / "site")).resolve()
CHROMIUM = os.environ.get("EPIGRAD_CHROMIUM", "/usr/bin/chromium")
FLAGS = ["--headless=new", "--no-sandbox", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync"]


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture(scope="session")
def address():
    assert (SITE / "docs" / "index.html").exists(), f"{SITE} has no site: `make site` builds it"
    handler = functools.partial(QuietHandler, directory=str(SITE))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="session")
def browser():
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser, address):
    """open_page(path, **context options): a page of the site. Whatever it complains of, or asks of another host, fails
    the test."""
    contexts, complaints = [], []

    def asked(request):
        if not request.url.startswith((address, "data:")):
            complaints.append(f"asked for {request.url}")

    def launch(path, **options):
        context = browser.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(30_000)
        page.on("console", lambda message: message.type in ("error", "warning") and complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", asked)
        page.goto(f"{address}/{path}")
        return page

    yield launch
    for context in contexts:
        context.close()
    assert complaints == []
