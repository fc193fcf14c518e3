# SPDX-License-Identifier: Apache-2.0
"""Runs the WebGPU benchmark in a headless browser: python tests/web/bench.py [--kernel ROW] MxKxN ...

Build it first: cmake --build build/wasm --target bench
"""

import sys
import urllib.parse

from conftest import CHROMIUM, FLAGS, PAGE, served
from playwright.sync_api import sync_playwright

arguments = sys.argv[1:] or ["256x256x256"]
query = urllib.parse.urlencode([("arg", argument) for argument in arguments])
with served(PAGE) as address, sync_playwright() as driver:
    browser = driver.chromium.launch(executable_path=CHROMIUM, args=[*FLAGS, "--enable-unsafe-webgpu"])
    page = browser.new_page()
    page.goto(f"{address}/bench.html?{query}")
    page.wait_for_function("document.querySelector('#end')?.textContent", timeout=570_000)
    print(page.inner_text("#out"), page.inner_text("#end"), sep="\n")
    browser.close()
