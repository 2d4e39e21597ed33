"""Includes and imports go one way only, downwards: any edge outside the tables is a failure.

The layers, from the top: extras, face (python/headway), bindings, core, kernels.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
CPP = ROOT / "cpp"
PYTHON = ROOT / "python" / "headway"

#: The extras: what the base install does without. They may use the face and third parties.
EXTRAS = (
    "interop/",
    "distributed/",
    "benchmark/",
    "commands/",
    "cost_plot.py",
    "plotting.py",
    "cli.py",
    "__main__.py",
    "storage.py",
)

#: Packages that the modules of interop/ named after them import at once, to derive from a class.
AT_ONCE = ("threadpoolctl", "torch")

#: Headers of the C++ standard library have neither a folder nor an ending.
STANDARD = re.compile(r"[a-z0-9_]+")
INTRINSICS = {"immintrin.h", "arm_neon.h"}
KERNEL_HEADERS = {"cstddef", "cstdint"} | INTRINSICS

#: The only core files that may include headers of the operating system or of OpenMP.
SYSTEM_CORE = ("cpu_features", "scratch", "parallel")
OPENMP_CORE = ("parallel",)


def is_system_header(name: str) -> bool:
    """Is it a C header of the compiler or the system, such as <unistd.h> or <sys/mman.h>?"""
    return name.endswith(".h") and name != "omp.h" and not name.startswith("pybind11/")


def allowed_include(file: str, name: str) -> bool:
    """May the file (relative to cpp/) include this header? The table of C++ layers."""
    layer, _, rest = file.partition("/")
    stem = Path(rest).stem
    folder = name.partition("/")[0] if "/" in name else ""
    own = name.endswith((".hpp", ".inc")) and folder in ("", layer)
    if layer == "kernels":
        return own or name in KERNEL_HEADERS
    if layer == "core":
        return (
            own
            or name in ("kernels/kernel_table.hpp", "../kernels/kernel_table.hpp")
            or STANDARD.fullmatch(name) is not None
            or (name == "omp.h" and stem in OPENMP_CORE)
            or (is_system_header(name) and stem in SYSTEM_CORE)
        )
    if layer == "bindings":
        return (
            own
            or folder == "core"
            or folder == "pybind11"
            or STANDARD.fullmatch(name) is not None
            or name == "Python.h"
        )
    if layer == "tests":  # the guard-page executable: looks at every C++ layer but the bindings
        return folder != "pybind11" and name != "Python.h"
    return False


def resolved(file: Path, name: str) -> str:
    """The header as it is named from cpp/, where it is one of ours; else the name itself."""
    for start in (file.parent, CPP):
        target = (start / name).resolve()
        if target.is_file() and target.is_relative_to(CPP):
            return target.relative_to(CPP).as_posix()
    return name


def includes() -> list[tuple[str, str]]:
    """Every (file, header) edge under cpp/."""
    edges = []
    for file in sorted(CPP.rglob("*")):
        if file.suffix not in (".cpp", ".hpp", ".inc", ".h", ".cc"):
            continue
        relative = file.relative_to(CPP).as_posix()
        if "/probes/" in relative:
            continue
        for line in file.read_text(encoding="utf-8").splitlines():
            found = re.match(r"\s*#\s*include\s*[<\"]([^>\"]+)[>\"]", line)
            if found:
                edges.append((relative, resolved(file, found[1])))
    return edges


@pytest.mark.skipif(not CPP.is_dir(), reason="this machine: the C++ sources are not here")
def test_includes_go_downwards() -> None:
    wrong = [edge for edge in includes() if not allowed_include(*edge)]
    assert not wrong, "\n".join(f"{file} includes {header}" for file, header in wrong)


@pytest.mark.parametrize(
    ("file", "header", "allowed"),
    [
        ("kernels/prefill.hpp", "kernels/tile.hpp", True),
        ("kernels/vec_avx2.hpp", "immintrin.h", True),
        ("kernels/tile.hpp", "algorithm", False),
        ("kernels/tile.hpp", "core/plan.hpp", False),
        ("core/plan.cpp", "vector", True),
        ("core/plan.cpp", "kernels/kernel_table.hpp", True),
        ("core/plan.cpp", "kernels/tile.hpp", False),
        ("core/plan.cpp", "omp.h", False),
        ("core/parallel.cpp", "omp.h", True),
        ("core/plan.cpp", "unistd.h", False),
        ("core/cpu_features.cpp", "cpuid.h", True),
        ("core/scratch.hpp", "sys/mman.h", True),
        ("core/attention.cpp", "bindings/views.hpp", False),
        ("core/attention.cpp", "pybind11/pybind11.h", False),
        ("bindings/module.cpp", "pybind11/pybind11.h", True),
        ("bindings/module.cpp", "core/attention.hpp", True),
        ("bindings/module.cpp", "kernels/kernel_table.hpp", False),
    ],
)
def test_the_table_of_includes(file: str, header: str, allowed: bool) -> None:
    assert allowed_include(file, header) is allowed


def allowed_import(file: str, name: str, inside_function: bool) -> bool:
    """May the file (relative to python/headway/) import this module? The table of Python layers.

    `name` is absolute: "numpy", "headway.checks", "json".
    """
    top = name.partition(".")[0]
    extra = file.startswith(EXTRAS)
    if top == "headway":
        inner = name.partition(".")[2]
        target = inner.replace(".", "/")
        to_extra = any(f"{target}.py" == each or f"{target}/".startswith(each) for each in EXTRAS)
        return extra or not to_extra or inside_function
    if top in sys.stdlib_module_names or top == "numpy":
        return True
    # Who imports interop/torch.py or interop/_torch_*.py asks for torch; they import it at once.
    folder, _, own = file.removesuffix(".py").partition("/")
    asked = folder == "interop" and own.lstrip("_").partition("_")[0] == top in AT_ONCE
    return extra and (inside_function or asked)


def imports(file: Path) -> list[tuple[str, bool]]:
    """Every (module, is it inside a function?) edge of a file; what is for type checks is none."""
    package = ("headway", *file.relative_to(PYTHON).parts[:-1])
    edges: list[tuple[str, bool]] = []

    def walk(node: ast.AST, inside: bool) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                continue
            if isinstance(child, ast.Import):
                edges.extend((alias.name, inside) for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                start = package[: len(package) - child.level + 1] if child.level else ()
                module = ".".join((*start, *([child.module] if child.module else [])))
                if module in ("headway", ""):
                    edges.extend((f"{module}.{alias.name}", inside) for alias in child.names)
                else:
                    edges.append((module, inside))
            function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
            walk(child, inside or function)

    walk(ast.parse(file.read_text(encoding="utf-8")), False)
    return edges


@pytest.mark.skipif(not PYTHON.is_dir(), reason="this machine: the Python sources are not here")
def test_imports_go_downwards() -> None:
    wrong = []
    for file in sorted(PYTHON.rglob("*.py")):
        relative = file.relative_to(PYTHON).as_posix()
        for name, inside in imports(file):
            if not allowed_import(relative, name, inside):
                wrong.append(f"{relative} imports {name}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("file", "name", "inside", "allowed"),
    [
        ("functional.py", "numpy", False, True),
        ("functional.py", "headway._core", False, True),
        ("functional.py", "headway.checks", False, True),
        ("functional.py", "json", False, True),
        ("functional.py", "ml_dtypes", True, False),
        ("functional.py", "torch", False, False),
        ("modules.py", "headway.cli", False, False),
        ("cli.py", "headway", False, True),
        ("cli.py", "headway.commands.run_info", False, True),
        ("commands/run_info.py", "rich", True, True),
        ("commands/run_info.py", "rich", False, False),
        ("functional.py", "headway.commands", False, False),
        ("interop/torch.py", "torch", True, True),
        ("interop/torch.py", "torch", False, True),
        ("interop/_torch_ops.py", "torch", False, True),
        ("interop/_torch_ops.py", "jax", False, False),
        ("interop/threadpoolctl.py", "threadpoolctl", False, True),
        ("cli.py", "torch", False, False),
        ("interop/onnx.py", "onnx", True, True),
        ("interop/onnx.py", "onnx", False, False),
        ("interop/transformers.py", "transformers", False, False),
        ("interop/jax.py", "jax", False, False),
        ("interop/_jax_host.py", "jax", True, True),
        ("interop/onnx.py", "headway.functional", False, True),
        ("functional.py", "headway.interop.onnx", False, False),
    ],
)
def test_the_table_of_imports(file: str, name: str, inside: bool, allowed: bool) -> None:
    assert allowed_import(file, name, inside) is allowed
