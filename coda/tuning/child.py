"""A child of the tuner: `python -m coda.tuning.child DESCRIPTOR NICE`. Requests come on stdin, answers go to the descriptor.

One JSON object a line each way. A request names a step of `coda.tuning.steps`; an answer is its value, or what it raised and
whether the GPU is of any use to this process afterwards. What libraries print goes to the log that the crew keeps.

The child ends with whoever started it: when stdin ends, which happens however the tuner ends, it kills its whole process
group, compilers included.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import sys
import threading
from typing import Any

PR_SET_PDEATHSIG = 1


def main(descriptor: int, nice: int) -> None:
    """Answer until stdin ends."""
    _end_with_parent()
    os.nice(nice)
    requests: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    stream = os.fdopen(os.dup(0), "rb")
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)  # nothing but answers leaves by the descriptor, nothing but the log by the others
    os.set_inheritable(descriptor, False)
    threading.Thread(target=_listen, args=(stream, requests), daemon=True).start()
    while True:
        answer = json.dumps(_answer(requests.get())).encode() + b"\n"
        while answer:
            answer = answer[os.write(descriptor, answer) :]


def _listen(stream: Any, requests: queue.SimpleQueue[dict[str, Any]]) -> None:
    """A thread, so that the end of stdin is noticed while the other one hangs."""
    for line in stream:
        requests.put(json.loads(line))
    os.killpg(os.getpgid(0), signal.SIGKILL)


def _end_with_parent() -> None:
    """Where the other thread cannot run, because a call into a library never returns, the kernel ends this process."""
    if sys.platform == "linux":
        with contextlib.suppress(Exception):
            import ctypes

            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    from coda.tuning import steps

    try:
        return {"value": steps.STEPS[request["step"]](request)}
    except Exception as error:
        what = str(getattr(error, "what", "") or "")
        shown = str(error) if what else f"{type(error).__name__}: {error}"
        return {
            "code": getattr(error, "code", type(error).__name__),
            "reason": " ".join(shown.split())[:2000],
            "sticky": steps.gpu_is_lost(),
        }


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
