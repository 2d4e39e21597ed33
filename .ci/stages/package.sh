# sdist, wheel from the sdist, repaired; what is in them; the repaired wheel alone in a clean environment, and tested
# where there is no compiler. The whole suite on it: long/wheel.
source "$ROOT/.ci/common.sh"

wheel_venv
python3 "$ROOT/.ci/check_wheel.py" "$WORK"/dist/*.whl "$WORK"/dist/*.tar.gz
python3 "$ROOT/.ci/check_wheel.py" "$WORK"/wheelhouse/*.whl "$WORK"/dist/*.tar.gz
"$WORK/tools/bin/auditwheel" show "$WORK"/wheelhouse/*.whl
bash "$ROOT/.ci/reproduce.sh" short
cd "$WORK"
clean/bin/pip check
packages=$(clean/bin/pip list --format=freeze --exclude pip --exclude setuptools --exclude wheel)
extra=$(grep -vE '^(headway|numpy)(==| @)' <<<"$packages" || true)
[ -z "$extra" ] || {
    echo "the base install brings more than numpy: $extra"
    exit 1
}
clean/bin/python - <<'PY'
import sys

import numpy as np

import headway

assert "site-packages" in headway.__file__, headway.__file__
q = np.ones((1, 2, 5, 8), np.float32)
v = np.arange(5, dtype=np.float32).reshape(1, 1, 5, 1).repeat(2, axis=1)
out = headway.attention(q, q, v)
assert np.allclose(out[0, 1, :, 0], [0, 0.5, 1, 1.5, 2]), out
optional = {"torch", "ml_dtypes", "safetensors", "tqdm", "threadpoolctl", "matplotlib", "rich"}
assert not optional & set(sys.modules), optional & set(sys.modules)
print("headway", headway.__version__, headway.isa())
PY
clean/bin/headway demo >/dev/null
clean/bin/headway cost --stage all
clean/bin/headway check
clean/bin/headway bench --rows prefill-128 --rounds 1
wheel_tests package tests/test_bits.py tests/test_conformance.py tests/test_limits.py tests/test_processes.py
