# The guard-page executable with the address and undefined-behaviour sanitizers.
source "$ROOT/.ci/common.sh"

fresh_clone "$WORK/sanitize"
cd "$WORK/sanitize"
cmake -S . -B build -DHEADWAY_BUILD_TESTS=ON -DHEADWAY_BUILD_PYTHON=OFF \
    -DCMAKE_CXX_FLAGS='-fsanitize=address,undefined -fno-sanitize-recover=all -g1'
cmake --build build --parallel 2
# Instrumented kernels call the sanitizer, so the symbol checks have no say here.
ctest --test-dir build --tests-regex '^guard_pages$' --output-on-failure --no-tests=error
