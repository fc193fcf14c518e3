# SPDX-License-Identifier: Apache-2.0
"""The page learns to read on both paths, reads what is drawn, and says so where there is no WebGPU."""

import math
import os
import pathlib

import pytest
from conftest import PAGE

PICTURES = pathlib.Path(os.environ.get("EPIGRAD_PICTURES", PAGE.with_name("web-pictures")))  # screenshots are kept there


def arc(cx, cy, rx, ry, begin, end, count=24):
    """Points of an ellipse from one angle to another, in turns; 0 is to the right, 0.25 below."""
    turns = [begin + (end - begin) * i / count for i in range(count + 1)]
    return [(cx + rx * math.cos(math.tau * t), cy + ry * math.sin(math.tau * t)) for t in turns]


# As one writes them: strokes of points in a square of side 1.
DRAWINGS = {
    0: [arc(0.5, 0.5, 0.2, 0.32, -0.25, 0.77)],
    1: [[(0.4, 0.3), (0.53, 0.16), (0.53, 0.84)]],
    2: [arc(0.5, 0.34, 0.2, 0.17, 0.55, 1.1) + [(0.32, 0.82), (0.74, 0.82)]],
    3: [arc(0.48, 0.33, 0.18, 0.16, 0.6, 1.2) + arc(0.48, 0.66, 0.2, 0.18, -0.22, 0.42)],
    4: [[(0.55, 0.15), (0.28, 0.58), (0.75, 0.58)], [(0.6, 0.4), (0.56, 0.85)]],
    5: [[(0.7, 0.16), (0.36, 0.16), (0.33, 0.45)] + arc(0.48, 0.63, 0.2, 0.2, -0.3, 0.42)],
    7: [[(0.28, 0.18), (0.7, 0.18), (0.45, 0.85)], [(0.38, 0.5), (0.68, 0.5)]],  # crossed, as in the data
    9: [arc(0.5, 0.35, 0.17, 0.18, 0, 1) + [(0.66, 0.5), (0.6, 0.85)]],
}


TRAINED = "document.querySelector('#status').textContent.startsWith('Trained, and')"


def value(page, lane, name):
    return page.inner_text(f"#lane-{lane} [data-value={name}]")


def accuracy(page, lane):
    return float(value(page, lane, "accuracy").rstrip(" %"))


def train(page, lanes, at_least=95):
    """Trains until every lane has reached the accuracy (or all steps are done), and pauses."""
    page.click("#train")
    page.wait_for_function(
        """([lanes, least]) => lanes.every((lane) =>
             parseFloat(document.querySelector(`#lane-${lane} [data-value=accuracy]`).textContent) >= least)""",
        arg=[lanes, at_least],
        timeout=500_000,
    )
    if page.inner_text("#train") == "Pause":
        page.click("#train")
    page.wait_for_function("!document.querySelector('#reset').disabled", timeout=60_000)


def draw(page, digit):
    if page.is_visible("#clear"):
        page.click("#clear")
    page.locator("#said").scroll_into_view_if_needed()
    box = page.locator("#pad").bounding_box()
    side = min(box["width"], box["height"])
    for stroke in DRAWINGS[digit]:
        places = [(box["x"] + (box["width"] - side) / 2 + side * x, box["y"] + side * y) for x, y in stroke]
        page.mouse.move(*places[0])
        page.mouse.down()
        for place in places[1:]:
            page.mouse.move(*place, steps=2)
        page.mouse.up()
    page.wait_for_function("said.ariaBusy === 'false' && said.textContent !== '?'")
    return int(page.inner_text("#said"))


def keep(page, name):
    PICTURES.mkdir(parents=True, exist_ok=True)
    page.evaluate("scrollTo(0, 0)")
    page.screenshot(path=PICTURES / f"{name}.png", full_page=True)


def test_trains_on_webgpu_and_on_the_cpu(open_page):
    page = open_page(viewport={"width": 1180, "height": 1000})
    assert "swiftshader" in page.inner_text("#lane-webgpu .device").lower()
    train(page, ["webgpu", "cpu"])
    read = {digit: draw(page, digit) for digit in DRAWINGS}
    assert read == {digit: digit for digit in DRAWINGS}
    assert "on WebGPU" in page.inner_text("#reader")
    assert "gemm" in page.text_content("#plan-webgpu")
    assert "portable" in page.text_content("#plan-cpu")
    page.click("#train")  # to the end, where the gradients are checked
    page.wait_for_function(TRAINED, timeout=500_000)
    for lane in ("webgpu", "cpu"):
        assert accuracy(page, lane) >= 95
        assert float(value(page, lane, "speed").replace(",", "")) > 0
        assert value(page, lane, "check").startswith("✓")
    keep(page, "browser-both")


def test_the_cpu_alone_where_there_is_no_webgpu(open_page):
    page = open_page(webgpu=False, viewport={"width": 1180, "height": 1000})
    assert "WebGPU" in page.inner_text("#lane-webgpu .problem")
    page.click("#train")
    page.wait_for_function(TRAINED, timeout=300_000)
    assert accuracy(page, "cpu") >= 97  # what the example promises for its defaults
    assert value(page, "cpu", "check").startswith("✓")
    assert draw(page, 3) == 3
    assert "on the CPU" in page.inner_text("#reader")
    assert page.locator("#wrong figure").count() > 0
    keep(page, "browser-cpu")


def test_fits_a_phone(open_page):
    page = open_page(webgpu=False, viewport={"width": 390, "height": 844}, has_touch=True, device_scale_factor=2)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    train(page, ["cpu"])
    read = draw(page, 7)
    keep(page, "browser-phone")
    assert read == 7


def test_starts_anew_with_another_activation(open_page):
    page = open_page(webgpu=False)
    train(page, ["cpu"], at_least=90)
    page.select_option("#activation", label="relu")
    page.wait_for_function("document.querySelector('#lane-cpu [data-value=accuracy]').textContent === '–'")
    assert "relu" in page.text_content("#plan-cpu")
    train(page, ["cpu"], at_least=90)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out(open_page, scheme):
    """The contrast of text and paper is at least 4.5 (WCAG AA) in both schemes."""
    page = open_page(webgpu=False, color_scheme=scheme)
    colors = page.evaluate(
        """() => ['.note', '.lead p', '.device', 'dt'].map((selector) => {
             const place = document.querySelector(selector), card = place.closest('.lane, .curve, .draw') ?? document.body;
             return [getComputedStyle(place).color, getComputedStyle(card).backgroundColor]; })"""
    )

    def luminance(color):
        channels = [float(c) / 255 for c in color[color.index("(") + 1 : -1].split(",")[:3]]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    for text, paper in colors:
        low, high = sorted([luminance(text), luminance(paper)])
        assert (high + 0.05) / (low + 0.05) >= 4.5, (text, paper)
