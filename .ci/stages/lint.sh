# Style, types, the stub of the extension module against the built one, workflows and the wheels they build.
source "$ROOT/.ci/common.sh"

test_clone
tools_venv
cd "$WORK/test"
.venv/bin/pip install -r "$ROOT/.ci/requirements-lint.txt"
failures=0
check() {
    echo "-- $*"
    "$@" || failures=$((failures + 1))
}
check .venv/bin/ruff check .
check .venv/bin/ruff format --check .
# Nothing newer than the oldest Python that pyproject.toml names.
check .venv/bin/vermin -t=3.10- --no-tips --violations python bench docs examples tests .ci
check .venv/bin/mypy --strict python/headway
check env PATH="$WORK/tools/bin:$PATH" "$WORK/tools/bin/python" .ci/check_workflows.py .
cd bench
check ../.venv/bin/mypy --strict .
cd ../examples
check ../.venv/bin/mypy --strict .
cd ../docs
check ../.venv/bin/mypy --strict .
cd "$WORK"
check test/.venv/bin/python -m mypy.stubtest headway._core
[ "$failures" -eq 0 ]
