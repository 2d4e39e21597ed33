"""A trace's page in headless Chromium: nothing is cut off or too small, on a phone and a desktop.

A page around it shows it in a frame of the wanted width, without scripts, and measures it.
"""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from helpers import make_qkv
from test_trace_html import Trace, a_call, a_module

import headway

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="this machine: no Chromium")

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-dev-shm-usage", "--hide-scrollbars", "--window-size=1400,1000", "--dump-dom"),
)

#: For each frame: how wide its content is, what stands out of it, the sizes of letters, the colors.
MEASURE = """
function measure(frame) {
  const page = frame.contentDocument, root = page.documentElement, width = root.clientWidth;
  const style = frame.contentWindow.getComputedStyle(page.querySelector(".headway"));
  const every = [...page.querySelectorAll(".headway *")];
  const scrolled = (e) => e.closest(".scroll") && !e.classList.contains("scroll");
  const out = every.filter((e) => !scrolled(e) && !e.closest("svg") &&
    e.getBoundingClientRect().right > width + 0.5).map((e) => e.outerHTML.slice(0, 80));
  const drawn = [...page.querySelectorAll("svg.large")];
  const scale = (svg) => svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;
  const letters = drawn.map((svg) => 11 * scale(svg));
  const cut = [...page.querySelectorAll("svg.large text")].filter((text) => {
    const box = text.getBoundingClientRect(), whole = text.ownerSVGElement.getBoundingClientRect();
    return box.left < whole.left - 1 || box.right > whole.right + 1 || box.top < whole.top - 1;
  }).map((text) => text.textContent);
  return {width, content: root.scrollWidth, out, cut, least: Math.min(99, ...letters),
    fills: page.querySelectorAll("svg rect").length, ground: style.backgroundColor};
}
window.onload = () => {
  const found = [...document.querySelectorAll("iframe")].map(measure);
  document.querySelector("pre").textContent = JSON.stringify(found);
};
"""


def measured(page: str, folder: Path, *flags: str) -> list[dict[str, Any]]:
    """What the browser measures, at 390 and at 1280 pixels."""
    frames = [
        f'<iframe sandbox="allow-same-origin" style="width: {width}px; height: 900px; border: 0" '
        f'srcdoc="{html.escape(page)}"></iframe>'
        for width in (390, 1280)
    ]
    around = folder / "around.html"
    text = f'<!DOCTYPE html><meta charset="utf-8"><pre></pre>{"".join(frames)}'
    around.write_text(f"{text}<script>{MEASURE}</script>", encoding="utf-8")
    command = [str(CHROMIUM), *FLAGS, *flags, f"--user-data-dir={folder / 'profile'}"]
    done = subprocess.run(
        [*command, around.as_uri()], capture_output=True, text=True, timeout=120, check=True
    )
    told = re.search(r"<pre>(.*?)</pre>", done.stdout, re.DOTALL)
    assert told, done.stderr
    found: list[dict[str, Any]] = json.loads(html.unescape(told[1]))
    return found


def a_wide_call() -> Trace:
    """One that a phone has to scroll."""
    return headway.trace(*make_qkv(1, "float32", heads=(1, 1), tokens=(40, 40)))


def a_call_with_long_names() -> Trace:
    """Words whose letters are wide or many, on both axes."""
    words = ["注意力机制的权重是什么呢", "W" * 12, "어텐션" * 5, "😀" * 7, "mm" * 9, "a"]
    return headway.trace(*make_qkv(1, "float32", heads=(1, 1), tokens=(6, 6)), tokens=words)


@pytest.mark.parametrize("make", [a_module, a_call, a_wide_call, a_call_with_long_names])
def test_the_page_fits_the_screen(make: Any, tmp_path: Path) -> None:
    trace: Trace = make()
    for width, found in zip((390, 1280), measured(trace.to_html(), tmp_path), strict=True):
        assert found["width"] == width
        assert found["content"] == width
        assert found["out"] == []
        assert found["cut"] == []
        assert found["least"] >= 8
        assert found["fills"] > 20


def test_light_and_dark(tmp_path: Path) -> None:
    page = a_module().to_html()
    light, dark = (
        measured(page, tmp_path, f"--blink-settings=preferredColorScheme={scheme}")[0]["ground"]
        for scheme in (1, 0)
    )
    assert light == "rgb(244, 246, 249)"
    assert dark == "rgb(16, 21, 28)"
