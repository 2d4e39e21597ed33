# CPython without the interpreter lock, built from the sources of Debian's next release, for want of a package of it: the
# module does not switch the lock on, and what is called from many threads gives right results.
source "$ROOT/.ci/common.sh"

# The Debian archive that the system has, its next release's sources; nothing of the system's own lists is changed.
mkdir -p "$WORK/apt/parts" "$WORK/apt/lists/partial" "$WORK/python"
list=$(grep -lE '^Suites: bookworm( |$)' /etc/apt/sources.list.d/*.sources | head -n 1)
[ -n "$list" ] || { echo "expected Debian 12 with its archive in /etc/apt/sources.list.d/*.sources" && exit 1; }
awk -v RS= '/Suites: bookworm( |\n)/ { print; exit }' "$list" |
    sed -e 's/^Types:.*/Types: deb-src/' -e 's/^Suites:.*/Suites: trixie/' >"$WORK/apt/parts/next.sources"
apt=(-o Dir::Etc::SourceList=/dev/null -o "Dir::Etc::SourceParts=$WORK/apt/parts" -o "Dir::State::Lists=$WORK/apt/lists")
apt-get "${apt[@]}" update
cd "$WORK/python"
apt-get "${apt[@]}" source --download-only python3.13
tar -xf python3.13_*.orig.tar.* --strip-components=1
./configure --disable-gil --prefix="$WORK/free"
make -j2
make install

fresh_clone "$WORK/freethreaded"
cd "$WORK/freethreaded"
"$WORK/free/bin/python3" -m venv .venv
# Later versions of NumPy and of hypothesis have no wheels for this Python.
.venv/bin/pip install --only-binary numpy,ml_dtypes . pytest 'hypothesis<6.150' 'numpy<2.4' ml_dtypes
.venv/bin/python -c '
import sys, headway
assert not sys._is_gil_enabled(), "importing headway switched the lock on"
print("FIGURE Python", sys.version.split()[0], "without the lock:", headway.isa())'
# Not the folder python/ of the clone: the tests import what was installed.
.venv/bin/python -X gil=0 -m pytest -q -p no:cacheprovider --junitxml="$OUT/tests-freethreaded.xml" \
    tests/test_concurrency.py tests/test_long_run.py tests/test_processes.py tests/test_interrupts.py tests/test_bits.py \
    tests/test_decode_bits.py tests/test_module_bits.py tests/test_projection.py tests/test_cache_properties.py \
    tests/test_paged_allocator.py tests/test_backward_bits.py tests/test_module_gradients.py tests/test_fuzz_calls.py
.venv/bin/python -X gil=0 tests/long_run.py --calls 10000 --threads 4 | sed 's/^/FIGURE /'
