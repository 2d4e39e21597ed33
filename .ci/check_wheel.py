"""Check a wheel and the sdist it came from: python .ci/check_wheel.py WHEEL SDIST.

A wheel that brings shared libraries along, a repaired one, has their licences beside headway's own.
"""

from __future__ import annotations

import re
import sys
import tarfile
import zipfile
from pathlib import Path

LIMIT = 3_000_000
PERMITTED = (
    r"headway/([a-z_]+/)*[a-z_]+\.pyi?",
    r"headway/py\.typed",
    r"headway/_core\.[\w.-]+\.(so|pyd)",
    r"headway/data/attention\.txt",
    r"headway-[^/]+\.dist-info/(METADATA|RECORD|WHEEL|entry_points\.txt|licenses/LICENSE)",
)
REPAIRED = (
    r"headway\.libs/(libgomp|libstdc\+\+|libgcc_s)-[\w.-]+",
    r"headway-[^/]+\.dist-info/sboms/auditwheel\.cdx\.json",
    r"headway-[^/]+\.dist-info/licenses/gcc-runtime/(NOTICE|GPL-3\.0|GCC-exception-3\.1)\.txt",
)
"""What auditwheel adds, and the licences of it."""

WANTED_REPAIRED = (
    r"headway\.libs/libgomp-.*",
    r".*/licenses/gcc-runtime/NOTICE\.txt",
    r".*/licenses/gcc-runtime/GPL-3\.0\.txt",
    r".*/licenses/gcc-runtime/GCC-exception-3\.1\.txt",
)
WANTED = (
    r"headway/__init__\.py",
    r"headway/_core\.pyi",
    r"headway/_core\.[\w.-]+\.(so|pyd)",
    r"headway/py\.typed",
    r"headway/data/attention\.txt",
    r"headway-[^/]+\.dist-info/licenses/LICENSE",
    r"headway-[^/]+\.dist-info/entry_points\.txt",
)
IN_SDIST = (
    r"pyproject\.toml",
    r"CMakeLists\.txt",
    r"README\.md",
    r"LICENSE",
    r"licenses/gcc-runtime/NOTICE\.txt",
    r"tests/data/onnx/LICENSE",
    r"tests/data/onnx/NOTICE",
    r"cpp/kernels/kernel_table\.hpp",
    r"python/headway/__init__\.py",
    r"tests/conftest\.py",
)


def missing(patterns: tuple[str, ...], names: list[str]) -> list[str]:
    return [p for p in patterns if not any(re.fullmatch(p, name) for name in names)]


def main(wheel: str, sdist: str) -> int:
    problems = []
    size = Path(wheel).stat().st_size
    tag = Path(wheel).stem.split("-", 2)[2]
    packed = Path(sdist).stat().st_size
    print(f"FIGURE wheel: {size / 1e6:.2f} MB, {tag}; sdist: {packed / 1e6:.2f} MB")
    if size >= LIMIT:
        problems.append(f"wheel: {size} bytes, wanted less than {LIMIT}")
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if not name.endswith("/")]
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        fields = archive.read(metadata).decode().partition("\n\n")[0].split("\n")
    repaired = re.search(r"(many|musl)linux", tag) is not None
    wanted = WANTED + (WANTED_REPAIRED if repaired else ())
    permitted = PERMITTED + (REPAIRED if repaired else ())
    licences = [name.partition("/licenses/")[2] for name in names if "/licenses/" in name]
    named = [field.removeprefix("License-File: ") for field in fields if "License-File: " in field]
    if sorted(named) != sorted(licences):
        problems.append(f"wheel: METADATA names the licence files {named}, there are {licences}")
    if repaired is not ("GPL-3.0" in "".join(f for f in fields if f.startswith("License-Exp"))):
        problems.append("wheel: License-Expression does not fit the libraries inside")
    problems += [f"wheel: nothing matches {p}" for p in missing(wanted, names)]
    for name in names:
        if name.endswith("_core.py") or not any(re.fullmatch(p, name) for p in permitted):
            problems.append(f"wheel: {name} has no place there")
    with tarfile.open(sdist) as source:
        inside = [m.name.partition("/")[2] for m in source.getmembers() if m.isfile()]
    problems += [f"sdist: nothing matches {p}" for p in missing(IN_SDIST, inside)]
    problems += [f"sdist: {name} is built" for name in inside if name.startswith("docs/site/")]
    print("\n".join(problems) or f"{len(names)} files in the wheel, {len(inside)} in the sdist")
    return 1 if problems else 0


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
