"""Check .github/workflows and the wheels that they build: python .ci/check_workflows.py CHECKOUT.

With check-jsonschema (GitHub's schema of workflows) and cibuildwheel on the PATH. The identifiers
of all wheels stand in build-identifiers.txt, so that a new version of cibuildwheel or another
pattern does not add or drop one unseen; and every one is built by exactly one job of wheels.yml.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

PLATFORMS = {"manylinux": "linux", "musllinux": "linux", "macosx": "macos", "win": "windows"}


def identifiers(root: Path, platform: str, **variables: str) -> list[str]:
    command = ["cibuildwheel", "--platform", platform, "--print-build-identifiers", str(root)]
    done = subprocess.run(
        command, check=True, capture_output=True, text=True, env={**os.environ, **variables}
    )
    return done.stdout.split()


def built_by(job: dict[str, Any], root: Path) -> list[str]:
    """The identifiers that the jobs of the matrix build, with the variables of their step."""
    found = []
    (step,) = (step for step in job["steps"] if "CIBW_BUILD" in step.get("env", {}))
    for entry in job["strategy"]["matrix"]["include"]:
        variables = {}
        for name, value in step["env"].items():
            for key, text in entry.items():
                value = value.replace(f"${{{{ matrix.{key} }}}}", text)
            if "${{" in value:
                raise SystemExit(f"wheels.yml: {name}: what is {value}?")
            variables[name] = value
        found += identifiers(root, PLATFORMS[entry["build"]], **variables)
    return found


def main(checkout: str) -> int:
    root = Path(checkout)
    workflows = sorted((root / ".github" / "workflows").glob("*.yml"))
    schema = ["check-jsonschema", "--builtin-schema", "vendor.github-workflows"]
    failed = subprocess.run([*schema, *map(str, workflows)]).returncode != 0
    wanted = (root / ".ci" / "build-identifiers.txt").read_text("utf-8").split()
    named = [
        one for platform in ("linux", "macos", "windows") for one in identifiers(root, platform)
    ]
    content = YAML(typ="safe").load(root / ".github" / "workflows" / "wheels.yml")
    for what, found in (
        ("pyproject.toml", named),
        ("wheels.yml", built_by(content["jobs"]["wheels"], root)),
    ):
        difference = Counter(found)
        difference.subtract(wanted)
        for identifier, count in sorted(difference.items()):
            if count:
                failed = True
                print(f"{what}: {identifier}: {count:+d} beside build-identifiers.txt")
    print(f"{len(workflows)} workflows, {len(wanted)} wheels: {'wrong' if failed else 'in order'}")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
