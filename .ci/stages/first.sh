# README's first command, and the demo once more against its limit of 20 seconds.
source "$ROOT/.ci/common.sh"

fresh_clone "$WORK/first"
readme_command "$WORK/first" \
    'python3 -m venv .venv && .venv/bin/pip install . && .venv/bin/headway demo'
cd "$WORK"
timeout 20 first/.venv/bin/headway demo >demo.txt
first/.venv/bin/headway info
first/.venv/bin/python -m headway info --json | python3 -m json.tool >info.json
