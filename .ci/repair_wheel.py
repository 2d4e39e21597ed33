"""Make a Linux wheel whole: python .ci/repair_wheel.py WHEEL FOLDER, with auditwheel on the PATH.

`auditwheel repair` copies the shared libraries that the extension needs, libgomp above all, into
the wheel and gives it its manylinux or musllinux tag. Then their licence goes in beside headway's
own. The same wheel gives the same bytes, stamped with SOURCE_DATE_EPOCH.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

LICENCES = Path(__file__).parent.parent / "licenses" / "gcc-runtime"
KNOWN = re.compile(r"headway\.libs/(libgomp|libstdc\+\+|libgcc_s)-[\w.-]+")
"""The libraries that these licences are for: another one has another licence."""

EXPRESSION = "MIT AND (GPL-3.0-or-later WITH GCC-exception-3.1)"


def with_licences(files: dict[str, bytes]) -> dict[str, bytes]:
    """The files of a wheel, and the licences of the libraries in it, named in its METADATA."""
    libraries = [name for name in files if ".libs/" in name]
    unknown = [name for name in libraries if not KNOWN.fullmatch(name)]
    if unknown:
        raise SystemExit(f"no licence is known for {', '.join(unknown)}; see licenses/")
    if not libraries:
        return files
    (metadata,) = (name for name in files if name.endswith(".dist-info/METADATA"))
    info = metadata.removesuffix("/METADATA")
    texts = {f"gcc-runtime/{text.name}": text.read_bytes() for text in sorted(LICENCES.iterdir())}
    head, empty, body = files[metadata].decode().partition("\n\n")
    licence, file = "License-Expression: MIT", "License-File: LICENSE"
    fields = head.split("\n")
    if licence not in fields or file not in fields:
        raise SystemExit(f"{metadata}: expected {licence} and {file}")
    fields[fields.index(licence)] = f"License-Expression: {EXPRESSION}"
    after = fields.index(file) + 1
    fields[after:after] = [f"License-File: {name}" for name in texts]
    return {
        **files,
        **{f"{info}/licenses/{name}": text for name, text in texts.items()},
        metadata: ("\n".join(fields) + empty + body).encode(),
    }


def record_of(files: dict[str, bytes], name: str) -> bytes:
    """The RECORD of these files, whose own name is `name`."""
    lines = []
    for file, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        lines.append(f"{file},sha256={digest},{len(content)}\n")
    return "".join([*lines, f"{name},,\n"]).encode()


def rewrite(source: Path, target: Path) -> None:
    """Copy a wheel, with the licences, in a fixed order and with one time stamp."""
    with zipfile.ZipFile(source) as archive:
        infos = [info for info in archive.infolist() if not info.is_dir()]
        modes = {info.filename: info.external_attr for info in infos}
        files = {info.filename: archive.read(info) for info in infos}
    (record,) = (name for name in files if name.endswith(".dist-info/RECORD"))
    del files[record]
    files = dict(sorted(with_licences(files).items()))
    files[record] = record_of(files, record)
    stamp = time.gmtime(int(os.environ.get("SOURCE_DATE_EPOCH", "315532800")))[:6]
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            info = zipfile.ZipInfo(name, stamp)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = modes.get(name, 0o100644 << 16)
            archive.writestr(info, content)


def main(wheel: str, folder: str) -> int:
    with tempfile.TemporaryDirectory() as repaired:
        subprocess.run(["auditwheel", "repair", "--wheel-dir", repaired, wheel], check=True)
        (made,) = Path(repaired).glob("*.whl")
        Path(folder).mkdir(parents=True, exist_ok=True)
        rewrite(made, Path(folder) / made.name)
        print(Path(folder) / made.name)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
