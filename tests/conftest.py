"""What test files of several folders share, importable by name: `authoring_support` and `kept_support`.

Tests are no packages (`--import-mode=importlib`), so the folders of these two modules are put on the path here, once.
"""

from __future__ import annotations

import sys
from pathlib import Path

SHARED = ("agent/authoring", "agent/keeping")

sys.path[:0] = [str(Path(__file__).parent / folder) for folder in SHARED]
