# Clang, warnings as errors. In the short run it reads everything; in the long one it builds, and the C++ tests and some
# of the package's run on its build.
source "$ROOT/.ci/common.sh"

# The environment of the suite is for the long run alone: in the short one the suite is at work in it.
if [ -z "${LONG:-}" ]; then
    tools_venv
    VIRTUAL_ENV=$WORK/tools
else
    test_clone
    VIRTUAL_ENV=$WORK/test/.venv
    "$VIRTUAL_ENV/bin/pip" install 'pybind11>=3'
fi
export VIRTUAL_ENV PATH=$VIRTUAL_ENV/bin:$PATH
fresh_clone "$WORK/clang"
cd "$WORK/clang"
pybind11_DIR=$(python -m pybind11 --cmakedir)
export pybind11_DIR
cmake --preset clang -DHEADWAY_WERROR=ON -DCMAKE_EXPORT_COMPILE_COMMANDS=ON
if [ -z "${LONG:-}" ]; then
    python "$ROOT/.ci/read_sources.py" build/clang/compile_commands.json | sed 's/^/FIGURE clang: /'
    exit
fi
cmake --build --preset clang --parallel 2
ctest --preset clang

# The clone's package, with this extension, goes before the one that is installed.
cp build/clang/_core*.so python/headway/
export PYTHONPATH=$PWD/python
python - <<'PY'
import os

import headway

assert headway.__file__.startswith(os.environ["PYTHONPATH"]), headway.__file__
build = headway.info()["build"]
assert "Clang" in build["compiler"], build
assert "libomp" in build["parallel"], build
PY
pytest -q -p no:cacheprovider -o faulthandler_timeout=300 --junitxml="$OUT/tests-clang.xml" \
    tests/test_grid.py tests/test_decode_bits.py tests/test_processes.py tests/test_concurrency.py
