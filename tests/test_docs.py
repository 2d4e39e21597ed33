"""The code blocks of the documentation print what the pages say; its figures are measured."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

DOCS = Path(__file__).parent.parent / "docs"
PAGES = sorted((DOCS / "pages").rglob("*.md"))
NAMES = [page.relative_to(DOCS / "pages").as_posix() for page in PAGES]
WITH_CODE = [name for name in NAMES if "```python" in (DOCS / "pages" / name).read_text("utf-8")]

pytestmark = pytest.mark.skipif(not PAGES, reason="this machine: the documentation is not here")


def module_of(name: str) -> ModuleType:
    """A module of docs/, which is no package."""
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(DOCS / "run_blocks.py"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True)


def needs_shell(text: str) -> None:
    """Skip where a page has commands and there is no bash, as beside a wheel without compilers."""
    if "```sh\nheadway" in text and shutil.which("bash") is None:
        pytest.skip("this machine: no bash")


@pytest.mark.parametrize("name", WITH_CODE)
def test_blocks_print_what_the_page_says(name: str) -> None:
    page = DOCS / "pages" / name
    packages = re.match(r"---\npackages: (.*)\n---\n", page.read_text("utf-8"))
    for package in packages[1].split() if packages else []:
        pytest.importorskip(package, exc_type=ImportError)
    needs_shell(page.read_text("utf-8"))
    done = run(page)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", NAMES)
def test_other_blocks_are_of_known_kinds(name: str) -> None:
    runner = module_of("run_blocks")
    for block in runner.blocks_of((DOCS / "pages" / name).read_text("utf-8")):
        assert block.language in ("python", "sh", "text"), block.code
        if block.language == "sh" and not block.code.startswith("headway"):
            runner.check_install(block.code, name)


@pytest.mark.parametrize(
    ("page", "told"),
    [
        ("```python\nprint(1 + 1)\n```\n\n```text\n3\n```\n", "-3"),
        ("```python\nprint(2)\n```\n", "+2"),
        ("???\n    ```python\n    print(2)\n    ```\n\n    ```text\n    4\n    ```\n", "-4"),
        ("```python\nimport warnings\nwarnings.warn('old')\n```\n", "UserWarning: old"),
        ("```python\nassert 1 > 2\n```\n", "AssertionError"),
        ("```sh\nheadway trace --heads none\n```\n", "exit code 2"),
        ("```sh\nrm -r everything\n```\n", "expected headway or a command that installs"),
        ("```sh\npip install '.[nothing]'\n```\n", "no extra nothing"),
        ("```ruby\nputs 1\n```\n", "nothing runs blocks of ruby"),
    ],
    ids=[
        "another number",
        "output missing",
        "in an answer",
        "warning",
        "exception",
        "command fails",
        "unknown command",
        "unknown extra",
        "unknown language",
    ],
)
def test_a_wrong_page_is_found(page: str, told: str, tmp_path: Path) -> None:
    needs_shell(page)
    path = tmp_path / "page.md"
    path.write_text(page, encoding="utf-8")
    done = run(path)
    assert done.returncode != 0
    assert told in done.stdout + done.stderr


def test_output_is_written_where_asked(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    page = "* x\n\n    ```python\n    print('a')\n    ```\n\n    ```text\n    ```\n"
    path.write_text(page, encoding="utf-8")
    assert run("--write", path).returncode == 0
    assert "    ```text\n    a\n    ```" in path.read_text("utf-8")
    assert run(path).returncode == 0


def test_figures_come_from_the_results() -> None:
    hooks = module_of("site_hooks")
    page = (DOCS / "pages" / "performance.md").read_text("utf-8")
    assert not re.search(r"\d ?(ms|GFLOP|times|%)", page), "a figure that is written by hand"
    filled = hooks.fill(page)
    assert "<!-- results" not in filled
    results = hooks.RESULTS.read_text("utf-8")
    assert filled.count("<svg") == 3
    for row in hooks.rows("float32, BHTD"):
        assert row["headway ms (median)"] in results
        assert f"| {row['shape']} | {row['headway ms (median)']} | {row['GFLOP/s']} |" in filled
    for title in re.findall(r"<!-- results: table (.*) -->", page):
        for row in hooks.lines_of_table(title)[1]:
            assert f"| {' | '.join(row)} |" in results
            assert f"| {' | '.join(row)} |" in filled
    lost = [row for row in hooks.rows("float16, BHTD") if "is ahead" in row["ahead"]]
    assert filled.count("| **") >= len(lost)


@pytest.mark.parametrize("what", ["table Nothing", "table Claims", "kept Modules", "rates Options"])
def test_what_the_results_lack_is_an_error(what: str) -> None:
    hooks = module_of("site_hooks")
    with pytest.raises((ValueError, KeyError)):
        hooks.fill(f"<!-- results: {what} -->")
