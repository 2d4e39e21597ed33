# The CMake build by itself: guard-page executable and the symbol check of every ISA object.
source "$ROOT/.ci/common.sh"

fresh_clone "$WORK/cpp"
cd "$WORK/cpp"
python3 -m venv .venv
.venv/bin/pip install 'pybind11>=3' numpy
export VIRTUAL_ENV=$PWD/.venv PATH=$PWD/.venv/bin:$PATH
pybind11_DIR=$(python -m pybind11 --cmakedir)
export pybind11_DIR
# Without HEADWAY_WERROR these are the objects of the other stages, which ccache keeps.
cmake -S . -B build -DHEADWAY_BUILD_TESTS=ON
cmake --build build --parallel 2 2>&1 | tee "$WORK/cpp.log"
if grep -F 'warning:' "$WORK/cpp.log"; then
    echo "the build has warnings"
    exit 1
fi
ctest --test-dir build --output-on-failure --no-tests=error
