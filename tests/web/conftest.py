# SPDX-License-Identifier: Apache-2.0
"""The finished page (build/web, or EPIGRAD_PAGE) in a headless browser (EPIGRAD_CHROMIUM)."""

import os
import pathlib
import sys

import pytest
from playwright.sync_api import sync_playwright

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
from browser import CHROMIUM, FLAGS, note_complaints, served  # noqa: E402

PAGE = pathlib.Path(os.environ.get("EPIGRAD_PAGE", ROOT / "build" / "web"))


@pytest.fixture(scope="session")
def address():
    assert (PAGE / "epigrad.wasm").exists(), f"{PAGE} has no page: `make web` builds it"
    with served(PAGE) as at:
        yield f"{at}/index.html"


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
        note_complaints(page, complaints)
        page.goto(address)
        page.wait_for_function("document.querySelector('#status').textContent === 'Ready.'")
        return page

    yield launch
    for browser in opened:
        browser.close()
    assert complaints == []
