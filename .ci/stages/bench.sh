# Quick grid against NumPy and PyTorch: figures, and that headway is ahead of both.
source "$ROOT/.ci/common.sh"

test_clone
cd "$WORK/test"
.venv/bin/python bench/grid.py --quick --quiet --json "$OUT/grid.json" \
    --only headway headway@1 headway@2 headway-products headway-attention stage-1 stage-2 \
    read torch torch-module torch-mha torch-linear numpy numpy-products
.venv/bin/python bench/compare.py "$OUT/grid.json" | sed 's/^/FIGURE /'
# Low factors: a busy machine should not fail the run, a rival that is ahead should.
.venv/bin/python bench/compare.py "$OUT/grid.json" --rows 'prefill-*/float32/*' \
    --ahead-of torch:1.1 numpy:4 | sed -n 's/^FAIL/FIGURE FAIL/p'
.venv/bin/python bench/compare.py "$OUT/grid.json" --rows 'stages-*' 'share-*' --claims \
    --set share-float32=0.5 share-bfloat16=0.4 share-float64=0.4 two-threads=1.2 stages=0.9 |
    sed 's/^/FIGURE /'
.venv/bin/python bench/results.py "$OUT/grid.json" --no-picture --out "$OUT/RESULTS.md"
.venv/bin/python bench/memory.py --tokens 1024 16384 65536 | sed 's/^/FIGURE /'
.venv/bin/python bench/import_time.py --processes 31 | sed 's/^/FIGURE /'
.venv/bin/pip install -r "$ROOT/.ci/requirements-mpi.txt"
.venv/bin/python bench/ring_balance.py --limit 1.15 | # 1.05 on an idle machine
    sed 's/^/FIGURE /'
