"""Where the golden cases of algorithms are: the repository's own, or other files of their schema."""

import os
from pathlib import Path

OWN_CASES = Path(__file__).parents[1] / "unit" / "asyncrl" / "algorithms" / "cases"

CASES_DIR = Path(os.environ.get("ASYNCRL_GOLDEN_DIR") or OWN_CASES)
