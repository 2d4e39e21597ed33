# CPUs that are not this one, emulated: the wheel on x86-64 without AVX and without AVX-512; the C++ tests on 64-bit ARM.
source "$ROOT/.ci/common.sh"

wheel_venv
python3 -m venv "$WORK/smoke"
"$WORK/smoke/bin/pip" install "$WORK"/dist/*.whl ml_dtypes
cd "$WORK"
export OPENBLAS_NUM_THREADS=1
qemu-x86_64 -cpu Nehalem smoke/bin/python "$ROOT/.ci/smoke.py" scalar | sed 's/^/FIGURE Nehalem, emulated: /'
qemu-x86_64 -cpu Haswell smoke/bin/python "$ROOT/.ci/smoke.py" avx2 | sed 's/^/FIGURE Haswell, emulated: /'

# The long run has every guard-page case, of a build as it is released; the short one a few, of a build that compiles
# sooner. Link-time optimization is wanted for all but the kernels, which must stay out of it.
every=120 optimization=-O1
[ -z "${LONG:-}" ] || every=1 optimization=-O3
fresh_clone "$WORK/aarch64"
cd "$WORK/aarch64"
cmake --preset aarch64 -DHEADWAY_WERROR=ON -DCMAKE_INTERPROCEDURAL_OPTIMIZATION=ON \
    -DHEADWAY_KERNEL_OPTIMIZATION=$optimization -DCMAKE_CXX_FLAGS_RELEASE="$optimization -DNDEBUG"
cmake --build --preset aarch64 --parallel 2
ctest --preset aarch64 --exclude-regex '^guard_pages$'
qemu-aarch64 -L /usr/aarch64-linux-gnu build/aarch64/cpp/tests/guard_pages --every $every |
    sed 's/^/FIGURE aarch64, emulated, guard pages: /'
