# Sourced by every stage: ROOT is the checkout, WORK a temporary folder, OUT takes result files.
set -euo pipefail

# Warnings are errors. The sources are compiled once for all stages, each of which builds two folders below them.
export SKBUILD_CMAKE_DEFINE="HEADWAY_WERROR=ON"
if command -v ccache >/dev/null; then
    export CMAKE_CXX_COMPILER_LAUNCHER=ccache CCACHE_DIR=$WORK/ccache CCACHE_BASEDIR=${TMPDIR:-/tmp}
fi

# The time stamp of everything that is packed: the last commit's.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git -C "$ROOT" log -1 --format=%ct)}
export SOURCE_DATE_EPOCH

# The last commit in a folder of its own, so that the checkout stays clean.
fresh_clone() {
    git clone --quiet "$ROOT" "$1"
}

# Run a command of the README, or of another page, word for word in a folder; fail where it has none such.
readme_command() {
    grep -qxF "$2" "$1/${3:-README.md}" || {
        echo "${3:-README.md} has no line: $2"
        return 1
    }
    (cd "$1" && bash -c "$2")
}

# A clone in $WORK/test whose .venv has the package and everything its tests use.
test_clone() {
    [ -e "$WORK/test.ready" ] && return
    if [ ! -d "$WORK/test" ]; then
        fresh_clone "$WORK/test"
        python3 -m venv "$WORK/test/.venv"
        (cd "$WORK/test" && .venv/bin/pip install '.[test,bench,plot,cli]')
    fi
    "$WORK/test/.venv/bin/pip" install -r "$ROOT/.ci/requirements-torch.txt" threadpoolctl tqdm matplotlib \
        rich onnxruntime joblib
    touch "$WORK/test.ready"
}

# The packages that build: $WORK/tools/bin.
tools_venv() {
    [ -e "$WORK/tools.ready" ] && return
    python3 -m venv "$WORK/tools"
    "$WORK/tools/bin/pip" install -r "$ROOT/.ci/requirements-wheels.txt"
    touch "$WORK/tools.ready"
}

# The wheel of an unpacked sdist, built with the C++ tests in its folder build/shared, into a folder:
# wheel_of SOURCES FOLDER.
wheel_of() {
    PATH=$WORK/tools/bin:$PATH SKBUILD_CMAKE_DEFINE="HEADWAY_WERROR=ON;HEADWAY_BUILD_TESTS=ON" \
        "$WORK/tools/bin/pip" wheel --no-deps --no-build-isolation --no-cache-dir --wheel-dir "$2" \
        -C build-dir="$1/build/shared" "$1"
}

# The one build that most stages share. The sdist of the last commit goes to $WORK/dist and is unpacked in
# $WORK/sources; from there come the C++ tests and the wheel in $WORK/dist.
package_build() {
    [ -e "$WORK/package.ready" ] && return
    rm -rf "$WORK/package" "$WORK/dist" "$WORK/sources"
    tools_venv
    fresh_clone "$WORK/package"
    "$WORK/tools/bin/python" -m build --sdist --no-isolation --outdir "$WORK/dist" "$WORK/package"
    mkdir "$WORK/sources"
    tar -xf "$WORK"/dist/*.tar.gz -C "$WORK/sources" --strip-components 1
    wheel_of "$WORK/sources" "$WORK/dist"
    touch "$WORK/package.ready"
}

# The repaired wheel in $WORK/wheelhouse, the one to be published, and a virtual environment in $WORK/clean
# with nothing else.
wheel_venv() {
    [ -e "$WORK/wheel.ready" ] && return
    package_build
    rm -rf "$WORK/wheelhouse" "$WORK/clean"
    PATH=$WORK/tools/bin:$PATH python3 "$ROOT/.ci/repair_wheel.py" "$WORK"/dist/*.whl "$WORK/wheelhouse"
    python3 -m venv "$WORK/clean"
    "$WORK/clean/bin/pip" install --only-binary :all: "$WORK"/wheelhouse/*.whl
    touch "$WORK/wheel.ready"
}

# The repaired wheel and what its tests use, in $WORK/wheel-tests.
wheel_tests_venv() {
    [ -e "$WORK/wheel-tests.ready" ] && return
    wheel_venv
    python3 -m venv "$WORK/wheel-tests"
    "$WORK/wheel-tests/bin/pip" install --only-binary :all: "$(echo "$WORK"/wheelhouse/*.whl)[test]"
    touch "$WORK/wheel-tests.ready"
}

# Tests on the repaired wheel, from the sdist's own files, where no compiler is found: wheel_tests NAME [ARGUMENT...].
wheel_tests() {
    local name=$1
    shift
    wheel_tests_venv
    (
        cd "$WORK/sources"
        export PATH=$WORK/wheel-tests/bin CC=/bin/false CXX=/bin/false
        for compiler in cc c++ gcc g++ clang clang++; do
            ! command -v $compiler || exit 1
        done
        python -c 'import headway; assert "wheel-tests" in headway.__file__, headway.__file__'
        python -m pytest -ra --durations=10 -o faulthandler_timeout=300 \
            --junitxml="$OUT/tests-$name.xml" "$@"
    )
}
