# Errors against float64 beside PyTorch and ONNX Runtime; those of 2^x and tanh over all float32 numbers.
source "$ROOT/.ci/common.sh"

test_clone
cd "$WORK/test"
.venv/bin/pip install onnx
failures=0
.venv/bin/python bench/accuracy.py --claims --json "$OUT/accuracy.json" | sed 's/^/FIGURE /' || failures=1
cmake -S . -B build-functions -DHEADWAY_BUILD_TESTS=ON -DHEADWAY_BUILD_PYTHON=OFF
cmake --build build-functions --target function_errors
build-functions/cpp/tests/function_errors 1 10000000 | sed 's/^/FIGURE /' || failures=1
[ "$failures" -eq 0 ]
