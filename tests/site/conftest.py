# SPDX-License-Identifier: Apache-2.0
"""The site as it is built (build/site, or EPIGRAD_SITE), and served to a headless browser (EPIGRAD_CHROMIUM)."""

import os
import pathlib
import sys

import pytest
from playwright.sync_api import sync_playwright

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
from browser import CHROMIUM, FLAGS, note_complaints, served  # noqa: E402

SITE = pathlib.Path(os.environ.get("EPIGRAD_SITE", ROOT / "build" / "site")).resolve()


@pytest.fixture(scope="session")
def address():
    assert (SITE / "docs" / "index.html").exists(), f"{SITE} has no site: `make site` builds it"
    with served(SITE) as at:
        yield at


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
        note_complaints(page, complaints)
        page.on("request", asked)
        page.goto(f"{address}/{path}")
        return page

    yield launch
    for context in contexts:
        context.close()
    assert complaints == []
