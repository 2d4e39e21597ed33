# Built without OpenMP: std::thread in its place. The same build with the option off, where one file is compiled anew.
source "$ROOT/.ci/common.sh"

wheel_tests_venv
cd "$WORK/sources"
export PATH=$WORK/tools/bin:$PATH
rm -rf "$WORK/serial"
# As on a machine whose compiler has no OpenMP: it is looked for and not found.
cmake build/shared -DCMAKE_DISABLE_FIND_PACKAGE_OpenMP=ON | tee "$WORK/configured.txt"
grep -F 'No OpenMP found: the threads are std::thread' "$WORK/configured.txt"
cmake --build build/shared --parallel 2
cmake --install build/shared --prefix "$WORK/serial"
# As it was, for the stages after this one.
cmake build/shared -DCMAKE_DISABLE_FIND_PACKAGE_OpenMP=OFF
cmake --build build/shared --parallel 2
cp -r python/headway "$WORK/serial"
"$WORK/tools/bin/python" -m compileall -q "$WORK/serial"  # as pip does
export PYTHONPATH=$WORK/serial
cd "$WORK"
wheel-tests/bin/python -m headway info | tee info-serial.txt
grep -F 'std::thread (built without OpenMP)' info-serial.txt
wheel-tests/bin/python -c 'import headway; print(headway.__file__)' | grep -F "$WORK/serial"
cd sources
"$WORK/wheel-tests/bin/python" -m pytest -ra -o faulthandler_timeout=300 --junitxml="$OUT/tests-threads.xml" \
    tests/test_runtime.py tests/test_concurrency.py tests/test_processes.py
