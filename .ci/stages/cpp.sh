# Guard-page executable and the symbol check of every ISA object, on the build that the wheel is made of.
source "$ROOT/.ci/common.sh"

package_build
ctest --test-dir "$WORK/sources/build/shared" --output-on-failure --no-tests=error
