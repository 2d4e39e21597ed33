# Quick benchmark: figures, and the two promises about prefill-1024.
source "$ROOT/.ci/common.sh"

test_clone
cd "$WORK/test"
.venv/bin/python bench/bench.py --quick --rounds 7 --quiet --json "$OUT/bench.json" | sed 's/^/FIGURE /'
.venv/bin/python bench/compare.py "$OUT/bench.json" --cases prefill-1024 \
    --ahead-of torch:1 numpy:8 | sed 's/^/FIGURE /'
.venv/bin/python bench/memory.py --tokens 1024 16384 65536 | sed 's/^/FIGURE /'
.venv/bin/python bench/import_time.py --processes 31 | sed 's/^/FIGURE /'
