# Does the C++ core compile for the systems that are not here? Zig's Clang, with the headers of macOS, Windows (MinGW's)
# and musl that it brings along, reads every file of the core and the scalar kernels. Nothing is linked or run.
source "$ROOT/.ci/common.sh"

python3 -m venv "$WORK/zig"
"$WORK/zig/bin/pip" install ziglang==0.17.1
fresh_clone "$WORK/systems"
cd "$WORK/systems"
failures=0
for target in aarch64-macos x86_64-macos x86_64-windows-gnu x86_64-linux-musl aarch64-linux-musl; do
    for file in cpp/core/*.cpp cpp/kernels/isa_scalar.cpp; do
        "$WORK/zig/bin/python" -m ziglang c++ -target "$target" -std=c++20 -Wall -Wextra -Wshadow -Werror \
            -c "$file" -o "$WORK/object.o" || {
            failures=$((failures + 1))
            echo "FIGURE $target: $file does not compile"
        }
    done
done
echo "FIGURE other systems: $failures failures"
[ "$failures" -eq 0 ]
