"""What is packed: the metadata, and what .ci/repair_wheel.py makes of a Linux wheel."""

from __future__ import annotations

import ast
import base64
import hashlib
import importlib.util
import re
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

import headway

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "python" / "headway"
SCRIPT = ROOT / ".ci" / "repair_wheel.py"
INFO = "headway-0.dist-info"

pytestmark = pytest.mark.skipif(
    not (ROOT / "pyproject.toml").is_file(), reason="this machine: the sources are not here"
)
needs_script = pytest.mark.skipif(not SCRIPT.is_file(), reason="this machine: not a checkout")


#: Imported for type checkers alone.
TYPES_ONLY = {"typing_extensions"}


def extras() -> dict[str, str]:
    """The extras of pyproject.toml and their lists, as text: tomllib is newer than Python 3.10."""
    text = (ROOT / "pyproject.toml").read_text("utf-8")
    table = text.partition("[project.optional-dependencies]\n")[2].partition("\n[")[0]
    return dict(re.findall(r"^(\w+) = (\[[^\]]*\])$", table, re.MULTILINE))


def test_the_version_is_the_same_everywhere() -> None:
    text = (ROOT / "pyproject.toml").read_text("utf-8")
    assert f'\nversion = "{headway.__version__}"\n' in text


def test_every_extra_that_is_named_exists() -> None:
    """In README, pages, docstrings and error texts."""
    files = [ROOT / "README.md", *PACKAGE.rglob("*.py"), *(ROOT / "docs").rglob("*.md")]
    named = {
        (file.name, extra)
        for file in files
        for group in re.findall(r"headway\[([\w,]+)\]", file.read_text("utf-8"))
        for extra in group.split(",")
    }
    assert named
    assert not [pair for pair in named if pair[1] not in extras()]


def test_every_package_that_is_imported_is_in_an_extra() -> None:
    lists = " ".join(extras().values())
    missing = set()
    for file in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                names = [node.module]
            for top in {name.partition(".")[0] for name in names}:
                known = top in sys.stdlib_module_names or top in ("numpy", "headway")
                if not known and top not in TYPES_ONLY and f'"{top}' not in lists:
                    missing.add((file.name, top))
    assert not missing


# Repairing ----------------------------------------------------------------------------------------


@pytest.fixture
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("repair_wheel", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def wheel_with(folder: Path, *libraries: str) -> Path:
    """A wheel as auditwheel leaves it, but for what the libraries are."""
    path = folder / "headway-0-cp311-cp311-manylinux_2_28_x86_64.whl"
    metadata = "Metadata-Version: 2.4\nLicense-Expression: MIT\nLicense-File: LICENSE\n\nText\n"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("headway/__init__.py", "")
        for library in libraries:
            archive.writestr(f"headway.libs/{library}", library)
        archive.writestr(f"{INFO}/METADATA", metadata)
        archive.writestr(f"{INFO}/licenses/LICENSE", "MIT")
        archive.writestr(f"{INFO}/RECORD", "")
    return path


@needs_script
def test_a_repaired_wheel_has_the_licence_of_its_libraries(
    script: ModuleType, tmp_path: Path
) -> None:
    source = wheel_with(tmp_path, "libgomp-24e2ab19.so.1.0.0")
    target = tmp_path / "repaired.whl"
    script.rewrite(source, target)
    with zipfile.ZipFile(target) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    head, _, body = files[f"{INFO}/METADATA"].decode().partition("\n\n")
    assert body == "Text\n"
    assert head.split("\n")[1:] == [
        "License-Expression: MIT AND (GPL-3.0-or-later WITH GCC-exception-3.1)",
        "License-File: LICENSE",
        *(
            f"License-File: gcc-runtime/{name}"
            for name in ("GCC-exception-3.1.txt", "GPL-3.0.txt", "NOTICE.txt")
        ),
    ]
    for line in head.split("\n")[2:]:
        assert f"{INFO}/licenses/{line.removeprefix('License-File: ')}" in files
    record = files.pop(f"{INFO}/RECORD").decode().splitlines()
    assert record.pop() == f"{INFO}/RECORD,,"
    assert [line.partition(",")[0] for line in record] == list(files)
    assert f"{INFO}/licenses/LICENSE,{digest(b'MIT')},3" in record


def digest(content: bytes) -> str:
    raw = base64.urlsafe_b64encode(hashlib.sha256(content).digest())
    return "sha256=" + raw.rstrip(b"=").decode()


@needs_script
def test_the_same_wheel_gives_the_same_bytes(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whenever it is repaired; the stamp of every file is SOURCE_DATE_EPOCH."""
    made = []
    for turn, now in enumerate((1_000_000_000, 1_500_000_000)):
        monkeypatch.setattr("time.time", lambda now=now: now)
        monkeypatch.setenv("SOURCE_DATE_EPOCH", "1234567890")
        folder = tmp_path / str(turn)
        folder.mkdir()
        script.rewrite(wheel_with(folder, "libgomp-24e2ab19.so.1.0.0"), folder / "repaired.whl")
        made.append((folder / "repaired.whl").read_bytes())
    assert made[0] == made[1]
    with zipfile.ZipFile(tmp_path / "0" / "repaired.whl") as archive:
        assert {info.date_time for info in archive.infolist()} == {(2009, 2, 13, 23, 31, 30)}


@needs_script
def test_a_library_without_a_known_licence_is_refused(script: ModuleType, tmp_path: Path) -> None:
    source = wheel_with(tmp_path, "libgomp-24e2ab19.so.1.0.0", "libother-24e2ab19.so.1")
    with pytest.raises(SystemExit, match=r"no licence is known for headway\.libs/libother"):
        script.rewrite(source, tmp_path / "repaired.whl")


@needs_script
def test_a_wheel_without_libraries_keeps_its_licence(script: ModuleType, tmp_path: Path) -> None:
    script.rewrite(wheel_with(tmp_path), tmp_path / "repaired.whl")
    with zipfile.ZipFile(tmp_path / "repaired.whl") as archive:
        assert b"License-Expression: MIT\n" in archive.read(f"{INFO}/METADATA")
        assert not [name for name in archive.namelist() if "gcc" in name]
