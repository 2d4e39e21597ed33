# The property tests on many more problems than in the short run, new ones every time.
source "$ROOT/.ci/common.sh"

test_clone
cd "$WORK/test"
PYTHONPATH=$ROOT/.ci HEADWAY_REQUIRE_EXTRAS=1 .venv/bin/pytest -p many_examples \
    -ra --durations=10 --junitxml="$OUT/tests-properties.xml" \
    tests/test_properties.py tests/test_option_properties.py tests/test_backward_properties.py
