# SPDX-License-Identifier: Apache-2.0
"""The finished page (build/web, or EPIGRAD_PAGE) in a headless browser (EPIGRAD_CHROMIUM)."""

import functools
import http.server
import os
import pathlib
import threading

import pytest
from playwright.sync_api import sync_playwright

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = pathlib.Path(os.environ.get("EPIGRAD_PAGE", ROOT / "build" / "web"))
CHROMIUM = os.environ.get("EPIGRAD_CHROMIUM", "/usr/bin/chromium")
FLAGS = [
    "--headless=new",
    "--no-sandbox",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture(scope="session")
def address():
    assert (PAGE / "epigrad.wasm").exists(), f"{PAGE} has no page: `make web` builds it"
    handler = functools.partial(QuietHandler, directory=str(PAGE))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/index.html"
        server.shutdown()


@pytest.fixture(scope="session")
def playwright():
    with sync_playwright() as driver:
        yield driver


@pytest.fixture
def open_page(playwright, address):
    """open_page(webgpu=True, **context options): a page that is ready. Whatever it complains of fails the test."""
    opened, complaints = [], []

    def launch(webgpu=True, **options):
        flags = FLAGS + (["--enable-unsafe-webgpu"] if webgpu else ["--disable-features=WebGPU"])
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=flags)
        opened.append(browser)
        page = browser.new_page(**options)
        page.set_default_timeout(120_000)
        page.on("console", lambda message: message.type in ("error", "warning") and complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(address)
        page.wait_for_function("document.querySelector('#status').textContent === 'Ready.'")
        return page

    yield launch
    for browser in opened:
        browser.close()
    assert complaints == []
