"""What a broken kernel or compiler does to the process that it runs in: fixtures of the self-test. Imports nothing heavy."""

from __future__ import annotations

import os
import time
from typing import Any


def misbehave(payload: dict[str, Any]) -> dict[str, Any]:
    """A worker's function: {"how"} is crash, hang, raise, exit or behave."""
    match payload["how"]:
        case "crash":
            os.abort()
        case "hang":
            time.sleep(3600)
        case "raise":
            raise RuntimeError("the benchmark failed")
        case "exit":
            os._exit(0)
    return {"status": "PASS", "reason": "", "evidence": {"ran": True}}
