"""Run one function of ours in a process of its own, so that a crash, a hang or a broken GPU stays that candidate's.

    outcome = run_worker("agent.verify.compile:work", {"program": …}, timeout_s=120)
    with WorkerSession("agent.verify.numerics:work", timeout_s=120) as session:     # one process, several payloads:
        for payload in payloads:                                                    # the import of torch is paid once
            outcome = session.call(payload)
    gpu_health(60)                                                                  # after a failure on a GPU

A worker function takes one JSON-able dict and returns one. Payloads travel on stdin, answers on a private pipe with the
request's nonce; what libraries print is kept as head and tail. Nothing is pickled. After any outcome but `PASS` a
session throws its process away and the next call starts a fresh one: a sticky CUDA error never reaches the next one.

`python -m agent.verify.worker DESCRIPTOR FUNCTION` is the process itself (`_serve`, at the end of this file);
`process.py` starts it, limits it, and kills it with everything that it started (compilers included).
"""

from __future__ import annotations

import concurrent.futures
import importlib
import importlib.util
import json
import os
import pathlib
import secrets
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Self

from pydantic import Field, ValidationError

from . import wire
from .blame import blame
from .process import Child, Ending, Frozen, Limits, bad_end, tool_environment

WorkerStatus = Literal["PASS", "RUNTIME_ERROR", "TIMEOUT", "CRASH", "TAMPERED", "INVALID_SPEC", "INFRA_ERROR"]
"""`INVALID_SPEC` and `INFRA_ERROR` are the words of exceptions that say so (`blame.py`); any other is `RUNTIME_ERROR`."""

ANSWER_BYTES = 64 << 20
"""Results are numbers and texts (a generated source, a cubin in base64), never tensors."""
_REQUEST_BYTES = 256 << 20
_PACKAGE = __package__ or "agent.verify"


class WorkerError(Frozen):
    """What went wrong inside, in parts."""

    code: str
    """`code` of our own exceptions; else the class name, a signal name or the limit that was hit."""
    message: str
    hint: str | None = None
    traceback: str = ""
    """Its last frames, for the log; never shown to an author."""


class WorkerOutcome(Frozen):
    """What one call gave. `result` is set exactly when the status is PASS."""

    status: WorkerStatus
    result: dict[str, Any] | None = None
    error: WorkerError | None = None
    seconds: float
    """Of this call, with the start of the process where it was started for it."""
    fresh: bool = True
    """Whether a process was started for this call."""
    stderr_tail: str = ""
    stdout_tail: str = ""
    ending: Ending | None = None
    """How the process ended; None where it lives on for the next call."""

    @property
    def ok(self) -> bool:
        """Whether there is a result."""
        return self.status == "PASS"


class _Answer(Frozen):
    nonce: str
    result: dict[str, Any] | None = None
    error: WorkerError | None = None
    status: Literal["RUNTIME_ERROR", "INVALID_SPEC", "INFRA_ERROR"] = "RUNTIME_ERROR"
    """Of an error."""


def run_worker(
    function: str,
    payload: Mapping[str, Any],
    *,
    timeout_s: float,
    env: Mapping[str, str | None] | None = None,
    memory_mb: int | None = None,
) -> WorkerOutcome:
    """Call `module:function` with `payload` in a fresh process. Never raises for what happens inside.

    `env` is laid over the caller's toolchain variables; None removes one. Nothing that may hold a key is inherited.
    """
    with WorkerSession(function, timeout_s=timeout_s, env=env, memory_mb=memory_mb) as session:
        return session.call(payload, last=True)


def call_all(
    call: Callable[..., WorkerOutcome],
    function: str,
    payloads: Sequence[Mapping[str, Any]],
    *,
    timeout_s: float,
    env: Mapping[str, str | None] | None = None,
    memory_mb: int | None = None,
) -> list[WorkerOutcome]:
    """`call` for each payload, the outcomes in their order. Where it is `run_worker`, all processes run at the same time, each
    with its own limit, and an interrupt ends them; anything else may have one process only, and is called in turn."""
    if call is not run_worker or len(payloads) < 2:
        return [call(function, p, timeout_s=timeout_s, env=env, memory_mb=memory_mb) for p in payloads]
    sessions = [WorkerSession(function, timeout_s=timeout_s, env=env, memory_mb=memory_mb) for _ in payloads]
    pool = concurrent.futures.ThreadPoolExecutor(len(sessions))
    try:
        return list(pool.map(lambda session, payload: session.call(payload, last=True), sessions, payloads))
    finally:
        for session in sessions:
            session.stop()
        pool.shutdown(cancel_futures=True)
        for session in sessions:
            session.close()


class WorkerSession:
    """One function, one process, several payloads of one candidate; restarted after any failure."""

    def __init__(
        self,
        function: str,
        *,
        timeout_s: float,
        env: Mapping[str, str | None] | None = None,
        memory_mb: int | None = None,
    ) -> None:
        self.function, self.timeout_s = function, timeout_s
        self._env = {**tool_environment(), "PYTHONPATH": _package_path(), "PYTHONUNBUFFERED": "1"}
        for name, value in (env or {}).items():
            if value is None:
                self._env.pop(name, None)
            else:
                self._env[name] = value
        self._limits = Limits(wall_s=timeout_s, memory_mb=memory_mb, answer_bytes=ANSWER_BYTES)
        self._child: Child | None = None
        self._stopped = False
        self.starts = 0
        """How many processes this session has started."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> Ending | None:
        """End the process, if there is one."""
        child, self._child = self._child, None
        return child.end() if child is not None else None

    def stop(self) -> None:
        """From another thread: a call under way ends as soon as its process is killed, and none starts another one. `close`
        is for the thread that calls."""
        self._stopped = True
        child = self._child
        if child is not None:
            child.kill("closed")

    def call(self, payload: Mapping[str, Any], *, timeout_s: float | None = None, last: bool = False) -> WorkerOutcome:
        """One payload. `last` lets the process end afterwards: its ending and peak memory are in the outcome."""
        started = time.monotonic()
        nonce = secrets.token_hex(16)
        request = wire.dump({"nonce": nonce, "payload": dict(payload)})
        if len(request) > _REQUEST_BYTES:
            return _failure("INFRA_ERROR", "request-too-large", f"{len(request)} bytes of payload", started)
        if self._child is not None and not self._child.is_alive():
            self.close()  # it died between two calls: not this payload's doing
        if self._stopped:
            return _failure("INFRA_ERROR", "closed", "the session was stopped", started)
        fresh = self._child is None
        child = self._child or self._start()
        try:
            if self._stopped:  # while it started
                child.kill("closed")
            child.answer.clear()
            child.send(request, close=last)
            child.pump(until=lambda: not last and b"\n" in child.answer, seconds=timeout_s or self.timeout_s)
            outcome = self._outcome(child, nonce, started, last=last)
        except BaseException:
            self.close()
            raise
        if not outcome.ok or last:
            self.close()
        return outcome.model_copy(update={"fresh": fresh})

    def _start(self) -> Child:
        self.starts += 1
        self._child = Child(
            lambda descriptor: [sys.executable, "-P", "-m", f"{_PACKAGE}.worker", str(descriptor), self.function],
            env=self._env,
            limits=self._limits,
        )
        return self._child

    def _outcome(self, child: Child, nonce: str, started: float, *, last: bool) -> WorkerOutcome:
        complete = child.answer.endswith(b"\n")
        ending = None if complete and not last else child.end()
        if ending is not None:
            bad = bad_end(ending, child.limits)
            if bad is not None and not (complete and bad.code == "closed"):  # else we ended it after its answer
                return _failure(*bad, started, ending=ending)
        try:
            answer = _Answer.model_validate(wire.parse(bytes(child.answer), max_bytes=ANSWER_BYTES))
        except (wire.BadDocument, ValidationError) as error:
            code = "bad-document" if child.answer else "no-answer"
            return _failure("TAMPERED", code, str(error)[:500], started, ending=ending or child.end())
        if answer.nonce != nonce:
            message = "the answer does not carry this request's nonce"
            return _failure("TAMPERED", "bad-nonce", message, started, ending=ending or child.end())
        if answer.error is not None or answer.result is None:
            wrong = answer.error or WorkerError(code="no-result", message="neither a result nor an error")
            ending = ending or child.end()
            return _finish(
                WorkerOutcome(status=answer.status, error=wrong, seconds=time.monotonic() - started, ending=ending)
            )
        return _finish(
            WorkerOutcome(status="PASS", result=answer.result, seconds=time.monotonic() - started, ending=ending)
        )


def _failure(
    status: WorkerStatus, code: str, message: str, started: float, *, ending: Ending | None = None
) -> WorkerOutcome:
    error = WorkerError(code=code, message=message)
    return _finish(WorkerOutcome(status=status, error=error, seconds=time.monotonic() - started, ending=ending))


def _finish(outcome: WorkerOutcome) -> WorkerOutcome:
    """Copy the tails of the streams to where readers look first."""
    if outcome.ending is None:
        return outcome
    tails = {
        "stderr_tail": outcome.ending.stderr.tail or outcome.ending.stderr.head,
        "stdout_tail": outcome.ending.stdout.tail or outcome.ending.stdout.head,
    }
    return outcome.model_copy(update=tails)


def _package_path() -> str:
    """The folders that hold `agent` and `coda`: a checkout or a site-packages, whatever the current folder is."""
    folders: dict[str, None] = {}
    for package in (_PACKAGE.split(".")[0], "coda"):
        spec = importlib.util.find_spec(package)
        if spec is not None and spec.origin is not None:
            folders[str(pathlib.Path(spec.origin).resolve().parents[1])] = None
    return os.pathsep.join(folders)


# ---- health of the GPU -----------------------------------------------------------------------------------------------


class GpuHealth(Frozen):
    """Whether the GPU can be used now."""

    state: Literal["healthy", "unusable", "no GPU"]
    reason: str
    device: str | None = None
    arch: str | None = None
    """sm_90 and the like."""
    seconds: float = Field(ge=0)


def gpu_health(deadline_s: float = 60.0, *, env: Mapping[str, str | None] | None = None) -> GpuHealth:
    """Run a tiny kernel in a process of its own, with a deadline of its own. Importing torch takes most of the time."""
    outcome = run_worker(f"{_PACKAGE}.worker:probe_gpu", {}, timeout_s=deadline_s, env=env)
    if outcome.result is not None:
        return GpuHealth.model_validate({**outcome.result, "seconds": round(outcome.seconds, 3)})
    assert outcome.error is not None
    reason = (
        f"a tiny kernel did not answer within {deadline_s:g} s"
        if outcome.status == "TIMEOUT"
        else outcome.error.message
    )
    return GpuHealth(state="unusable", reason=f"{outcome.status}: {reason}"[:500], seconds=round(outcome.seconds, 3))


def probe_gpu(payload: dict[str, Any]) -> dict[str, Any]:
    """In the worker: fill, add and read back a few numbers on the current device."""
    try:
        import torch
    except ImportError as error:
        return {"state": "no GPU", "reason": f"torch cannot be imported: {error}"}
    if not torch.cuda.is_available():
        built = torch.version.cuda
        reason = f"torch {torch.__version__} is built without CUDA" if built is None else "torch finds no CUDA device"
        return {"state": "no GPU", "reason": reason}
    numbers = torch.arange(1024, device="cuda", dtype=torch.float32)
    total = float((numbers + 1).sum().item())
    name = torch.cuda.get_device_name()
    arch = "sm_{}{}".format(*torch.cuda.get_device_capability())
    if total != 1024 * 1025 / 2:
        return {
            "state": "unusable",
            "reason": f"a sum of 1024 numbers came back as {total}",
            "device": name,
            "arch": arch,
        }
    return {"state": "healthy", "reason": "a tiny kernel ran and its result is right", "device": name, "arch": arch}


# ---- the process itself ----------------------------------------------------------------------------------------------


def _resolve(function: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    module, _, name = function.partition(":")
    found: Callable[[dict[str, Any]], dict[str, Any]] = getattr(importlib.import_module(module), name)
    return found


def _serve(descriptor: int, function: str) -> None:
    """Answer requests from stdin until it ends. Libraries get an empty stdin of their own."""
    requests = os.fdopen(os.dup(0), "rb")
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.set_inheritable(descriptor, False)  # compilers that the function starts do not get it
    work: Callable[[dict[str, Any]], dict[str, Any]] | None = None
    for line in requests:
        request = json.loads(line)
        try:
            if work is None:
                work = _resolve(function)
            data = wire.dump({"nonce": request["nonce"], "result": dict(work(request["payload"]))})
        except Exception as error:
            ours = work is None  # a function of ours that cannot be imported is not the candidate's fault
            status = "INFRA_ERROR" if ours else str(blame(error) or "RUNTIME_ERROR")
            data = wire.dump({"nonce": request["nonce"], "status": status, "error": _describe(error)})
        with os.fdopen(descriptor, "wb", closefd=False) as stream:
            stream.write(data)
    sys.stdout.flush()
    os._exit(0)  # the answer is out: threads and device libraries get no chance to hang or crash on the way out


def _describe(error: Exception) -> dict[str, Any]:
    code = getattr(error, "code", None)
    hint = getattr(error, "hint", None)
    message = str(getattr(error, "what", None) or error) or type(error).__name__
    frames = "".join(traceback.format_exception(error))
    return {
        "code": code if isinstance(code, str) else type(error).__name__,
        "message": message[:4000],
        "hint": str(hint)[:2000] if hint else None,
        "traceback": frames[-4000:],
    }


if __name__ == "__main__":
    _serve(int(sys.argv[1]), sys.argv[2])
