# README's second command; then the tests that it skipped for want of a package, with the package.
source "$ROOT/.ci/common.sh"

fresh_clone "$WORK/test"
export HEADWAY_SKIPPED_LIST=$WORK/skipped.txt
export PYTEST_ADDOPTS="-ra --durations=15 -o faulthandler_timeout=300 --junitxml=$OUT/tests-1.xml"
readme_command "$WORK/test" \
    "python3 -m venv .venv && .venv/bin/pip install '.[test]' && .venv/bin/pytest"
unset HEADWAY_SKIPPED_LIST PYTEST_ADDOPTS
[ -e "$WORK/skipped.txt" ] || {
    echo "tests/plugin_extras.py is not registered: nobody knows what was skipped"
    exit 1
}

test_clone
if [ -s "$WORK/skipped.txt" ]; then
    cd "$WORK/test"
    HEADWAY_REQUIRE_EXTRAS=1 .venv/bin/pytest -ra -o faulthandler_timeout=300 \
        --junitxml="$OUT/tests-2.xml" "@$WORK/skipped.txt"
fi
