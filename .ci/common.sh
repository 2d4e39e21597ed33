# Sourced by every stage: ROOT is the checkout, WORK a temporary folder, OUT takes result files.
set -euo pipefail

# The sources are compiled once for all stages; warnings are kept with the objects and shown again.
if command -v ccache >/dev/null; then
    export CMAKE_CXX_COMPILER_LAUNCHER=ccache CCACHE_DIR=$WORK/ccache CCACHE_BASEDIR=${TMPDIR:-/tmp}
fi

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
        rich onnxruntime
    touch "$WORK/test.ready"
}

# A virtual environment in $WORK/clean with nothing but the wheel, built from the sdist in $WORK/dist.
wheel_venv() {
    [ -e "$WORK/wheel.ready" ] && return
    rm -rf "$WORK/package" "$WORK/dist" "$WORK/clean"
    fresh_clone "$WORK/package"
    python3 -m venv "$WORK/build-venv"
    "$WORK/build-venv/bin/pip" install build
    "$WORK/build-venv/bin/python" -m build --outdir "$WORK/dist" "$WORK/package"
    python3 -m venv "$WORK/clean"
    "$WORK/clean/bin/pip" install "$WORK"/dist/*.whl
    touch "$WORK/wheel.ready"
}
