# Sanitizers: addresses and undefined behaviour in the guard-page executable and in the Python module,
# data races in the executable that computes in many threads. Instrumented kernels are compiled with
# -O1: at -O3 the compiler takes hours over them.
source "$ROOT/.ci/common.sh"

fresh_clone "$WORK/sanitize"
cd "$WORK/sanitize"
python3 -m venv .venv
.venv/bin/pip install 'pybind11>=3' numpy ml_dtypes pytest hypothesis
export VIRTUAL_ENV=$PWD/.venv PATH=$PWD/.venv/bin:$PATH
pybind11_DIR=$(python -m pybind11 --cmakedir)
export pybind11_DIR

sanitized() {
    cmake -S . -B "build/$1" -DHEADWAY_BUILD_TESTS=ON -DHEADWAY_KERNEL_OPTIMIZATION=-O1 \
        -DCMAKE_CXX_FLAGS="-fsanitize=$1 -fno-sanitize-recover=all -g1" "${@:2}"
    cmake --build "build/$1" --parallel 2
}

# Instrumented kernels call the sanitizer, so the symbol checks have no say here.
sanitized address,undefined
ctest --test-dir build/address,undefined --tests-regex '^(guard_pages|thread_calls)$' \
    --output-on-failure --no-tests=error

# The interpreter is not instrumented: the sanitizer comes first, then the C++ library whose
# exceptions it has to see. Python's own memory is not freed at the end. Memory that cannot be had is a null pointer, as
# elsewhere, and what is freed is used again soon, for the tests watch how much there is. Nothing is captured: a sanitizer
# ends the process, and what it said would be lost.
cp build/address,undefined/_core*.so python/headway/
PYTHONPATH=python PYTHONMALLOC=malloc \
    ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1:quarantine_size_mb=4:thread_local_quarantine_size_kb=64 \
    LD_PRELOAD="$(gcc -print-file-name=libasan.so):$(gcc -print-file-name=libstdc++.so.6)" \
    python -m pytest -q --capture=no -p no:cacheprovider tests/test_views.py tests/test_decode.py tests/test_mask_views.py \
    tests/test_backward_shapes.py tests/test_cache_properties.py tests/test_paged_allocator.py \
    tests/test_projection_calls.py tests/test_concurrency.py tests/test_fuzz_calls.py tests/test_pairs.py \
    tests/test_few_values.py tests/test_shared_masks.py \
    -k 'not microseconds and not interpreter_is_free'

# Two instruction sets are enough: kernels know nothing of threads.
sanitized thread -DHEADWAY_BUILD_PYTHON=OFF -DHEADWAY_OPENMP=OFF -DHEADWAY_HAS_avx512=OFF
ctest --test-dir build/thread --tests-regex '^thread_calls$' --output-on-failure --no-tests=error
