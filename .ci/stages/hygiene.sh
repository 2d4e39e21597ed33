# What is tracked: sizes, lengths, paths; and the README's examples.
source "$ROOT/.ci/common.sh"

wheel_venv
failures=0
python3 "$ROOT/.ci/hygiene.py" "$WORK/package" || failures=1
cd "$WORK"
clean/bin/python "$WORK/package/docs/run_blocks.py" "$WORK/package/README.md" || failures=1
[ "$failures" -eq 0 ]
