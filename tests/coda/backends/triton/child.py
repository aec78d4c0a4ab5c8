"""A process that runs functions of test files: one JSON request per line, one JSON reply per line.

The interpreter and cross-compilation exclude each other in one process, and the variable that decides counts when Triton
is imported: so tests of either kind run in a child with the right environment, whatever the test process has imported.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import traceback


def load(path: str) -> object:
    """A file as a module, once."""
    name = "child_" + os.path.basename(path).removesuffix(".py")
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


def main() -> None:
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # prints of a test do not disturb the replies
    for line in sys.stdin:
        request = json.loads(line)
        try:
            result = getattr(load(request["file"]), request["name"])(*request["args"])
            reply = {"ok": True, "result": result}
        except BaseException:
            reply = {"ok": False, "error": traceback.format_exc()}
        print(json.dumps(reply), file=replies, flush=True)


if __name__ == "__main__":
    main()
