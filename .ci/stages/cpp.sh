# The CMake build by itself: guard-page executable and the symbol check of every ISA object.
source "$ROOT/.ci/common.sh"

fresh_clone "$WORK/cpp"
cd "$WORK/cpp"
python3 -m venv .venv
.venv/bin/pip install 'pybind11>=3' numpy
export VIRTUAL_ENV=$PWD/.venv PATH=$PWD/.venv/bin:$PATH
pybind11_DIR=$(python -m pybind11 --cmakedir)
export pybind11_DIR
cmake -S . -B build -DHEADWAY_BUILD_TESTS=ON -DHEADWAY_WERROR=ON
cmake --build build --parallel 2
ctest --test-dir build --output-on-failure --no-tests=error
