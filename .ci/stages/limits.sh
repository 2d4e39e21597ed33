# Memory of a long call and the cost of the import, with the wheel alone.
source "$ROOT/.ci/common.sh"

wheel_venv
cd "$WORK"
clean/bin/python "$WORK/package/bench/memory.py" --limit 64 | sed 's/^/FIGURE /'
clean/bin/python "$WORK/package/bench/import_time.py" --limit 30 | sed 's/^/FIGURE /'
