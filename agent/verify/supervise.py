"""The watchdog process between the judge and what it runs: starts one program, sees it end, leaves nothing behind.

Run as `python -s -P -S -B supervise.py CONFIG` by `process.py`; standard library only, and it imports nothing of ours.

    judge (process.py) ──control pipe──▶ watchdog (here) ──fork + exec──▶ program ──▶ whatever it starts
                       ◀──status pipe───

- It is the *child subreaper*: a descendant that changes its session or loses its parent still hangs below this process,
  so "kill everything of that candidate" is exact, and nothing else is ever signalled.
- The control pipe closes when the judge says so, when it raises, and when it is killed: each time everything dies.
- It adds up the resident memory of the whole tree and kills it beyond the limit (an address-space limit would also
  forbid what a GPU driver merely reserves).
- The status pipe carries one JSON document: exit code or signal, CPU seconds, peak memory, what was killed and why. The
  program never holds that pipe.

Off Linux there is no subreaper and no /proc: only the process group is killed, and no memory is watched.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import sys
import time
from typing import Any

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
LINUX = sys.platform == "linux"
TICK_S = 0.1
KILL_S = 5.0
"""How long to go on killing. A process in uninterruptible sleep (a wedged driver) outlives it and is reported."""


def prctl(option: int, value: int) -> bool:
    """Linux `prctl`; false where there is none."""
    if not LINUX:
        return False
    return bool(ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) == 0)


def parents(*, zombies: bool = False) -> dict[int, int]:
    """pid → parent's pid, of every process there is; those that have ended only with `zombies`."""
    found = {}
    for name in os.listdir("/proc") if LINUX else ():
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    fields = file.read().rpartition(b")")[2].split()
            except OSError:
                continue
            if len(fields) > 1 and (zombies or fields[0] not in (b"Z", b"X")):
                found[int(name)] = int(fields[1])
    return found


def descendants(root: int) -> list[int]:
    """Every living process below `root`."""
    below: dict[int, list[int]] = {}
    for pid, parent in parents().items():
        below.setdefault(parent, []).append(pid)
    found, todo = [], list(below.get(root, ()))
    while todo:
        pid = todo.pop()
        found.append(pid)
        todo.extend(below.get(pid, ()))
    return found


def children() -> list[int]:
    """Direct children of this process, zombies included: one small file where the kernel has it."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children", "rb") as file:
            return [int(pid) for pid in file.read().split()]
    except OSError:
        me = os.getpid()
        return [pid for pid, parent in parents(zombies=True).items() if parent == me]


def resident_bytes(pids: list[int]) -> int:
    """Resident memory of these processes, shared pages counted each time."""
    total, page = 0, os.sysconf("SC_PAGE_SIZE")
    for pid in pids:
        try:
            with open(f"/proc/{pid}/statm", "rb") as file:
                total += int(file.read().split()[1]) * page
        except (OSError, IndexError, ValueError):
            continue
    return total


def send(pid: int, number: int) -> None:
    """Signal one process; one that is gone is fine."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


class Watch:
    """One program from its start to the last of its descendants."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.memory_bytes = int(config["memory_mb"]) * 2**20 if config["memory_mb"] else 0
        self.control, self.status = int(config["control"]), int(config["status"])
        for descriptor in (self.control, self.status):
            os.set_inheritable(descriptor, False)  # ours alone: the program must not write our report
        self.result: dict[str, Any] = {"exit_code": None, "signal": None, "killed": "", "cpu_s": 0.0}
        self.peak = self.leftovers = 0
        self.ending = False
        self.judge = os.getppid()
        self.program = self._start(config)

    def _start(self, config: dict[str, Any]) -> int:
        """Fork and exec the program in a session of its own; its result pipe is the only extra descriptor it gets."""
        pid = os.fork()
        if pid:
            os.close(int(config["result"]))
            return pid
        try:
            os.setsid()
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            os.set_inheritable(int(config["result"]), True)
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE, signal.SIGXFSZ):
                signal.signal(number, signal.SIG_DFL)
            os.execv(config["argv"][0], config["argv"])  # noqa: S606 - the judge chose the program; there is no shell
        except BaseException as error:  # this fork must never return into its parent's code
            os.write(2, f"cannot start {config['argv'][0]}: {error}\n".encode())
        os._exit(127)

    def run(self) -> None:
        """Until the program ends, the judge lets go, or the tree is too large; then kill what is left and report."""
        poll = select.poll()
        poll.register(self.control, select.POLLIN)
        ended = os.pidfd_open(self.program) if hasattr(os, "pidfd_open") else -1
        if ended >= 0:
            poll.register(ended, select.POLLIN)
        tick = TICK_S if ended >= 0 else 0.02
        while not self.result["killed"] and not self._ended():
            self._reap_others()
            events = dict(poll.poll(tick * 1000))
            if self.control in events or os.getppid() != self.judge:
                self.result["killed"] = "judge"
            elif not events:
                self._measure()
        self._end()

    def _measure(self) -> None:
        if LINUX:
            used = resident_bytes(descendants(os.getpid()))
            self.peak = max(self.peak, used)
            if self.memory_bytes and used > self.memory_bytes:
                self.result["killed"] = "memory"

    def _ended(self) -> bool:
        """Whether the program itself has ended. It stays a zombie until `_end`, so that its group's id stays its own."""
        options = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, self.program, options) is not None

    def _reap_others(self) -> None:
        """Collect adopted descendants that have ended."""
        for pid in children():
            status = self._reap(pid, os.WNOHANG) if pid != self.program else None
            if self.ending and status is not None and os.WIFSIGNALED(status):
                self.leftovers += 1

    def _reap(self, pid: int, options: int) -> int | None:
        try:
            found, status, usage = os.wait4(pid, options)
        except ChildProcessError:
            return None
        if found == 0:
            return None
        self.result["cpu_s"] += usage.ru_utime + usage.ru_stime
        self.peak = max(self.peak, usage.ru_maxrss * (1024 if LINUX else 1))
        return status

    def _end(self) -> None:
        """Kill the whole tree, collect it, report.

        One signal to the group is atomic, so an ordinary fork bomb dies of it. What left the group is stopped and
        killed process by process; orphans come to us, and reading our own children is quicker than they can fork.
        """
        self.ending = True
        until = time.monotonic() + KILL_S
        while time.monotonic() < until:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.program, signal.SIGKILL)
            for pid in descendants(os.getpid()):
                send(pid, signal.SIGSTOP)
                send(pid, signal.SIGKILL)
            for _ in range(100):
                alive = set(children()) - {self.program}
                for pid in alive:
                    send(pid, signal.SIGKILL)
                self._reap_others()
                if not alive:
                    break
            if self._ended() and not set(children()) - {self.program} and not descendants(os.getpid()):
                break
            time.sleep(0.001)
        status = self._reap(self.program, os.WNOHANG)
        if status is not None and os.WIFSIGNALED(status):
            self.result["signal"] = os.WTERMSIG(status)
        elif status is not None:
            self.result["exit_code"] = os.WEXITSTATUS(status)
        self.result["leftovers"] = self.leftovers
        self.result["unkillable"] = len(descendants(os.getpid()))
        self.result["max_rss_mb"] = round(self.peak / 2**20, 1)
        os.write(self.status, json.dumps(self.result).encode())


def main() -> None:
    """Read the configuration from argv, run, report."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # only the control pipe ends this process, and then in order
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    watch = Watch(json.loads(sys.argv[1]))
    for descriptor in (0, 1, 2):
        os.close(descriptor)  # the program alone holds them, so that the judge sees their end
    watch.run()


if __name__ == "__main__":
    main()
