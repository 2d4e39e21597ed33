"""Check the built documentation: python .ci/check_site.py CHECKOUT SITE. One line per fault.

No page may load anything from elsewhere, every link inside of the site must lead somewhere, every
public name of the package must have its place in the reference, and nothing may be left there of
what docs/docstring_text.py is to turn into Markdown.
"""

from __future__ import annotations

import ast
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

ELSEWHERE = re.compile(r"(?:[a-z]+:)?//")
RAW = re.compile(r':(?:func|class|meth|mod|attr|data):|class="n">_[A-Z]\w*')
CSS_URL = re.compile(r"url\(\s*['\"]?(?:https?:)?//[^)]*\)|@import[^;]*//[^;]*;")


class Page(HTMLParser):
    """What a page loads, where it links to, and which places it has."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []
        self.places: set[str] = set()
        self.raw = RAW.findall(text)
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.places |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a":
            self.links += [given["href"]] if "href" in given else []
        elif tag == "link" and given.get("rel") not in ("canonical", "prev", "next"):
            self.loads.append(given.get("href", ""))
        else:
            self.loads += [given[name] for name in ("src", "srcset", "data") if name in given]


def public_names(root: Path) -> list[str]:
    """Dotted names in the ``__all__`` of the package, of reference, distributed and interop."""
    package = root / "python" / "headway"
    sources = [package / "__init__.py", package / "reference.py"]
    sources.append(package / "distributed" / "__init__.py")
    sources += [p for p in sorted((package / "interop").glob("*.py")) if p.name[0] != "_"]
    found = []
    for source in sources:
        parts = ["headway", *source.relative_to(package).with_suffix("").parts]
        prefix = ".".join(part for part in parts if part != "__init__")
        for node in ast.parse(source.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                names = ast.literal_eval(node.value)
                found += [f"{prefix}.{name}" for name in names if not name.startswith("__")]
    return found


def faults_of(site: Path, pages: dict[Path, Page]) -> list[str]:
    faults = []
    for path, page in pages.items():
        name = path.relative_to(site)
        faults += [f"{name}: loads {url}" for url in page.loads if ELSEWHERE.match(url)]
        faults += [f"{name}: left as it was: {text}" for text in page.raw]
        for link in page.links:
            file, place = urldefrag(unquote(link))
            if ELSEWHERE.match(file) or path.name == "404.html":
                continue
            target = (path.parent / file).resolve() if file else path
            target = target / "index.html" if target.is_dir() else target
            if not target.is_file():
                faults.append(f"{name}: no such page: {link}")
            elif place and target in pages and place not in pages[target].places:
                faults.append(f"{name}: no such place: {link}")
    for path in site.rglob("*.css"):
        found = CSS_URL.search(path.read_text(encoding="utf-8"))
        faults += [f"{path.relative_to(site)}: loads {found[0]}"] if found else []
    return faults


def main(root: str, folder: str) -> int:
    site = Path(folder).resolve()
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    faults = faults_of(site, pages)
    places = set().union(*(page.places for page in pages.values()))
    names = public_names(Path(root))
    faults += [f"reference: {name} has no place" for name in names if name not in places]
    print("\n".join(faults) or f"{len(pages)} pages and {len(names)} public names are in order")
    return 1 if faults or not names else 0


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
