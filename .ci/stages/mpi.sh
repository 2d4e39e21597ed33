# Attention over several ranks under mpiexec, with mpi4py and an MPI from packages.
source "$ROOT/.ci/common.sh"

test_clone
cd "$WORK/test"
.venv/bin/pip install -r "$ROOT/.ci/requirements-mpi.txt"
.venv/bin/python -c 'import mpi4py.MPI' # else the tests would be skipped
HEADWAY_REQUIRE_EXTRAS=1 .venv/bin/pytest -ra --durations=10 -o faulthandler_timeout=300 \
    --junitxml="$OUT/tests-3.xml" tests/test_distributed_*.py
