# What is tracked: sizes, lengths, paths; the README's examples; and how `.ci/run` ends.
source "$ROOT/.ci/common.sh"

wheel_venv
failures=0
python3 "$ROOT/.ci/hygiene.py" "$WORK/package" || failures=1
cd "$WORK"
bash "$WORK/package/.ci/check_verdicts.sh" || failures=1
clean/bin/python "$WORK/package/docs/run_blocks.py" "$WORK/package/README.md" || failures=1
[ "$failures" -eq 0 ]
