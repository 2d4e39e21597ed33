# Do two builds give the same bytes? Called by stages, with their variables: reproduce.sh short|long.
#
# short: the sdist made again from another folder, the wheel packed and repaired again, and the extension modules of
#        the stages `first` and `test`, built by themselves in other folders, where these stages ran before.
#        With ccache these share their objects: then it is links and archives that are compared.
# long:  the wheel built anew, without ccache, in a folder of another name and depth.
# All of it with one compiler, one set of packages and one SOURCE_DATE_EPOCH, which is the only stamp.
source "$ROOT/.ci/common.sh"

wheel_venv
failures=0
same() {
    if cmp "$1" "$2"; then
        echo "FIGURE same bytes: $3"
    else
        failures=$((failures + 1))
        echo "other bytes: $3: $1 $2"
    fi
}
extension() {
    echo "$1"/lib/python3*/site-packages/headway/_core.*.so
}
repair() {
    PATH=$WORK/tools/bin:$PATH python3 "$ROOT/.ci/repair_wheel.py" "$1" "$2"
}

again=$WORK/again/a/deeper/folder
rm -rf "$WORK/again"
mkdir -p "$again"
sdist=$(basename "$WORK"/dist/*.tar.gz) wheel=$(basename "$WORK"/dist/*.whl)
repaired=$(basename "$WORK"/wheelhouse/*.whl)

if [ "${1:-short}" = short ]; then
    fresh_clone "$again/package"
    "$WORK/tools/bin/python" -m build --sdist --no-isolation --outdir "$again" "$again/package"
    same "$WORK/dist/$sdist" "$again/$sdist" "sdist from two folders"
    wheel_of "$WORK/sources" "$again"
    same "$WORK/dist/$wheel" "$again/$wheel" "wheel packed twice"
    for stage in first test; do
        if [ -d "$WORK/$stage/.venv" ]; then
            unpacked=$again/unpacked
            rm -rf "$unpacked"
            "$WORK/tools/bin/python" -m zipfile -e "$WORK/dist/$wheel" "$unpacked"
            same "$unpacked"/headway/_core.*.so "$(extension "$WORK/$stage/.venv")" "extension, stage $stage"
        fi
    done
else
    export CCACHE_DISABLE=1
    tar -xf "$WORK/dist/$sdist" -C "$again" --strip-components 1
    wheel_of "$again" "$again/dist"
    same "$WORK/dist/$wheel" "$again/dist/$wheel" "wheel built in two folders"
fi
repair "$(find "$again" -maxdepth 2 -name "$wheel")" "$again/wheelhouse"
same "$WORK/wheelhouse/$repaired" "$again/wheelhouse/$repaired" "repaired wheel"
[ "$failures" -eq 0 ]
