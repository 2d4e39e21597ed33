"""Settings of the process: instruction set, threads, environment; and what an import costs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import attend, make_qkv, run_python

import headway

ISAS = ", ".join(f'"{name}"' for name in headway.available_isas())


def test_info_tells_everything_and_goes_into_json() -> None:
    info = headway.info()
    assert info == json.loads(json.dumps(info))
    assert info["version"] == headway.__version__
    assert info["isa"] == headway.isa()
    assert info["available_isas"] == headway.available_isas()
    assert set(info["available_isas"]) <= set(info["compiled_isas"])
    assert info["num_threads"] == headway.get_num_threads()
    assert info["threads_source"]
    assert info["numpy"] == np.__version__
    assert {"python", "machine"} <= set(info)
    assert all(isinstance(text, str) and text for text in info["build"].values())
    assert info["build"]


def test_version_is_that_of_the_project() -> None:
    project = Path(__file__).parent.parent / "pyproject.toml"
    found = re.search(r'^version = "(.*)"$', project.read_text(encoding="utf-8"), re.MULTILINE)
    assert found is not None
    assert headway.__version__ == found[1]


# Instruction sets ---------------------------------------------------------------------------------


def test_every_available_isa_can_be_chosen(isa: str) -> None:
    assert headway.isa() == isa
    q, k, v = make_qkv(0, "float64")
    np.testing.assert_allclose(
        headway.attention(q, k, v), headway.reference.attention(q, k, v), atol=1e-12
    )


def test_scalar_is_always_there_and_the_last() -> None:
    assert headway.available_isas()[-1] == "scalar"


@pytest.mark.parametrize(
    ("name", "error", "got"),
    [
        ("sse9", ValueError, "'sse9'"),
        ("AVX2", ValueError, "'AVX2'"),
        ("", ValueError, "''"),
        (2, TypeError, "int"),
        (None, TypeError, "NoneType"),
    ],
)
def test_set_isa_refuses(name: Any, error: type[Exception], got: str) -> None:
    before = headway.isa()
    with pytest.raises(error) as caught:
        headway.set_isa(name)
    text = str(caught.value)
    assert text.startswith("name: expected one of ")
    assert f"{ISAS}" in text
    assert f", got {got}; pass one of these names" in text
    assert headway.isa() == before


@pytest.mark.parametrize("name", headway.available_isas())
def test_isa_of_the_environment(name: str) -> None:
    code = "import headway, json; print(json.dumps(headway.isa()))"
    assert run_python(code, env={"HEADWAY_ISA": name}) == name


@pytest.mark.parametrize("name", ["sse9", "AVX2", "avx2,scalar"])
@pytest.mark.parametrize(
    "call",
    [
        "headway.attention(x, x, x, out=out)",
        "headway.attention_weights(x, x)",
        "headway.attention_scores(x, x)",
        "headway.isa()",
        "headway.info()",
    ],
)
def test_bad_isa_of_the_environment_raises_at_the_first_call(name: str, call: str) -> None:
    code = f"""
import json
import numpy as np
import headway
x, out = np.ones((2, 2)), np.full((2, 2), 7.0)
texts = []
for _ in range(2):
    try:
        {call}
    except ValueError as error:
        texts.append(str(error))
headway.set_isa("scalar")
untouched = bool((out == 7.0).all())
{call}
print(json.dumps([texts, untouched, headway.isa()]))
"""
    texts, untouched, after = run_python(code, env={"HEADWAY_ISA": name})
    assert len(texts) == 2
    for text in texts:
        assert "HEADWAY_ISA" in text
        assert repr(name) in text or f'"{name}"' in text
        assert all(good in text for good in headway.available_isas())
    assert untouched
    assert after == "scalar"


# Threads ------------------------------------------------------------------------------------------

THREADS = """
import headway, json
print(json.dumps([headway.get_num_threads(), headway.info()["threads_source"]]))
"""


@pytest.mark.usefixtures("any_threads")
@pytest.mark.parametrize("count", [1, 2, 3, 1024, np.int64(2)])
def test_set_num_threads(count: int) -> None:
    headway.set_num_threads(count)
    assert headway.get_num_threads() == count
    assert headway.info()["threads_source"] == "set_num_threads"
    if count <= 3:
        q, k, v = make_qkv(0, "float32")
        assert np.isfinite(attend(q, k, v)[0]).all()


@pytest.mark.parametrize(
    ("count", "error", "got"),
    [
        (0, ValueError, "0"),
        (-1, ValueError, "-1"),
        (1025, ValueError, "1025"),
        (10**6, ValueError, "1000000"),
        (10**30, ValueError, str(10**30)),
        (True, TypeError, "True (bool)"),
        (2.0, TypeError, "2.0 (float)"),
        ("2", TypeError, "'2' (str)"),
        (None, TypeError, "None (NoneType)"),
    ],
)
def test_set_num_threads_refuses(count: Any, error: type[Exception], got: str) -> None:
    before = headway.get_num_threads()
    with pytest.raises(error) as caught:
        headway.set_num_threads(count)
    text = str(caught.value)
    assert text.startswith("n: expected an integer from 1 to 1024, got ")
    assert f"got {got}; " in text
    assert headway.get_num_threads() == before


@pytest.mark.parametrize(
    ("env", "count", "source"),
    [
        ({"HEADWAY_NUM_THREADS": "3"}, 3, "HEADWAY_NUM_THREADS"),
        ({"OMP_NUM_THREADS": "2"}, 2, "OMP_NUM_THREADS"),
        ({"HEADWAY_NUM_THREADS": "1", "OMP_NUM_THREADS": "2"}, 1, "HEADWAY_NUM_THREADS"),
    ],
)
def test_threads_of_the_environment(env: dict[str, str | None], count: int, source: str) -> None:
    assert run_python(THREADS, env=env) == [count, source]


def test_default_is_the_usable_cpus() -> None:
    count, source = run_python(THREADS)
    assert source.startswith("usable CPUs")
    code = "import json, os; print(json.dumps(len(os.sched_getaffinity(0))))"
    assert 1 <= count <= run_python(code)


def test_affinity_limits_the_default() -> None:
    code = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})" + THREADS
    assert run_python(code)[0] == 1


def test_release_memory_leaves_results_as_they_are() -> None:
    q, k, v = make_qkv(0, "float32", tokens=(70, 70))
    before = headway.attention(q, k, v)
    headway.release_memory()
    headway.release_memory()
    np.testing.assert_array_equal(headway.attention(q, k, v), before)


# Import -------------------------------------------------------------------------------------------


def test_import_costs_less_than_30_ms_or_a_third_of_numpy() -> None:
    # CPU time, which grows where others work beside us, for NumPy as for headway: so the second
    # limit. Wall time: bench/import_time.py, on a machine that is idle.
    code = """
import json, time
start = time.process_time()
import numpy
middle = time.process_time()
import headway
print(json.dumps([middle - start, time.process_time() - middle]))
"""
    costs = [run_python(code) for _ in range(7)]
    assert any(ours < max(0.030, numpys / 3) for numpys, ours in costs), costs


def test_import_loads_numpy_and_nothing_else() -> None:
    code = """
import json, sys
import numpy
before = set(sys.modules)
import headway
tops = {name.partition(".")[0] for name in set(sys.modules) - before}
print(json.dumps(sorted(tops - set(sys.stdlib_module_names) - {"numpy", "headway"})))
"""
    assert run_python(code) == []


def test_a_call_loads_nothing_of_masked_arrays() -> None:
    code = """
import json, sys
import numpy as np
import headway
x = np.zeros((4, 8), np.float32)
headway.attention(x, x, x, out=np.empty_like(x), align=np.int64(0), window=np.array([3, 0]))
print(json.dumps("numpy.ma" in sys.modules))
"""
    assert run_python(code) is False


def test_import_changes_no_rounding_and_starts_no_thread() -> None:
    code = """
import json, os
import numpy
def threads():
    return len(os.listdir("/proc/self/task")) if os.path.isdir("/proc/self/task") else 0
before, tiny = threads(), numpy.float32(1e-40)
import headway
same = (tiny * numpy.float32(0.5) > 0) and 1.0 + 2.0**-53 == 1.0 and threads() == before
print(json.dumps(bool(same)))
"""
    assert run_python(code) is True
