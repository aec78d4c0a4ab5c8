"""What a candidate's process gives up before the first line of the candidate runs.

Used by `trace_child.py`, inside the throw-away process; standard library only, loaded by path. Nothing here is needed
for honest kernels: the static gate has refused everything that could try. It is the second wall, made of layers of
which each is applied where the system has it, and `confine` returns the names of those that hold (they are part of the
evidence).

- `rlimits`: CPU seconds, address space, no new processes or threads, no bytes into files, few descriptors, no core.
- `unprivileged`: started as root, become `nobody`; limits on processes do not bind root at all.
- `no-new-privileges`: no set-uid program can undo the above.
- `syscalls`: a seccomp filter with an *allow* list (memory, already open descriptors, sleeping, ending itself). Opening
  a file, starting a process or thread, the network and signals to others all fail with EPERM, so the candidate cannot
  read the judge's environment under /proc or leave anything behind. Numbers are known for x86-64 and arm64.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import struct
import sys
from typing import Any

PR_SET_PDEATHSIG, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 1, 22, 38
NOBODY = 65534

# name: (x86-64, arm64); 0 = the architecture does not have it
CALLS: dict[str, tuple[int, int]] = {
    "read": (0, 63), "write": (1, 64), "writev": (20, 66), "close": (3, 57), "lseek": (8, 62), "fstat": (5, 80),
    "mmap": (9, 222), "munmap": (11, 215), "mprotect": (10, 226), "mremap": (25, 216), "madvise": (28, 233),
    "brk": (12, 214), "futex": (202, 98), "sched_yield": (24, 124), "nanosleep": (35, 101),
    "clock_nanosleep": (230, 115), "clock_gettime": (228, 113), "gettimeofday": (96, 169),
    "restart_syscall": (219, 128),
    "rt_sigreturn": (15, 139), "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135), "sigaltstack": (131, 132),
    "getpid": (39, 172), "gettid": (186, 178), "getrandom": (318, 278), "exit": (60, 93), "exit_group": (231, 94),
}  # fmt: skip
KILLS: dict[str, tuple[int, int]] = {"kill": (62, 129), "tgkill": (234, 131)}
"""Allowed towards the process itself only: `abort` needs it."""
MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
"""machine: (column above, AUDIT_ARCH constant)."""

_ALLOW, _EPERM, _KILL = 0x7FFF0000, 0x00050001, 0x80000000
_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06


def confine(limits: dict[str, Any]) -> list[str]:
    """Apply every layer that the system has; the names of those that hold."""
    layers = []
    set_rlimits(limits)
    layers.append("rlimits")
    if drop_privileges():
        layers.append("unprivileged")
    if _prctl(PR_SET_NO_NEW_PRIVS, 1):
        layers.append("no-new-privileges")
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # a change of uid clears it
    if limits["syscall_filter"] and filter_syscalls():
        layers.append("syscalls")
    return layers


def set_rlimits(limits: dict[str, Any]) -> None:
    """Soft and hard limits. No new process is ever needed here, so zero of them is the limit that always binds."""
    cpu, memory = int(limits["cpu_s"]), int(limits["memory_mb"]) * 2**20
    wanted = {
        resource.RLIMIT_CPU: (cpu, cpu + 1),
        resource.RLIMIT_AS: (memory, memory),
        resource.RLIMIT_NPROC: (0, 0),
        resource.RLIMIT_FSIZE: (0, 0),
        resource.RLIMIT_NOFILE: (32, 32),
        resource.RLIMIT_CORE: (0, 0),
    }
    for which, pair in wanted.items():
        try:
            resource.setrlimit(which, pair)
        except (ValueError, OSError):  # an already lower hard limit binds as well; macOS refuses RLIMIT_AS
            continue


def drop_privileges() -> bool:
    """Become `nobody` when started as root. True when this process is not root afterwards."""
    if os.geteuid() == 0:
        try:
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
        except (OSError, AttributeError):  # a user namespace that maps root alone; the other layers stand
            return False
    return os.geteuid() != 0


def filter_syscalls() -> bool:
    """Install the allow list. False where the machine or the kernel has no such filter."""
    machine = MACHINES.get(os.uname().machine)
    if sys.platform != "linux" or machine is None:
        return False
    code = _program(*machine)
    buffer = ctypes.create_string_buffer(code, len(code))

    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_void_p))

    program = Program(len(code) // 8, ctypes.addressof(buffer))
    return _prctl(PR_SET_SECCOMP, 2, ctypes.addressof(program))


def _program(column: int, audit_arch: int) -> bytes:
    """The filter: wrong architecture dies, listed calls pass, signals pass towards this process, the rest is EPERM."""

    def step(code: int, value: int, yes: int = 0, no: int = 0) -> bytes:
        return struct.pack("=HBBI", code, yes, no, value)

    allowed = sorted({numbers[column] for numbers in CALLS.values()})
    kills = sorted({numbers[column] for numbers in KILLS.values()})
    steps = [step(_LOAD, 4), step(_EQUAL, audit_arch, 1, 0), step(_RETURN, _KILL), step(_LOAD, 0)]
    for number in allowed:
        steps += [step(_EQUAL, number, 0, 1), step(_RETURN, _ALLOW)]
    for number in kills:  # the first argument is the process, in the low half at offset 16
        steps += [
            step(_EQUAL, number, 0, 4),
            step(_LOAD, 16),
            step(_EQUAL, os.getpid(), 0, 1),
            step(_RETURN, _ALLOW),
            step(_RETURN, _EPERM),
        ]
    return b"".join([*steps, step(_RETURN, _EPERM)])


def _prctl(option: int, *values: int) -> bool:
    if sys.platform != "linux":
        return False
    rest = [ctypes.c_ulong(value) for value in (*values, 0, 0, 0, 0)[:4]]
    return bool(ctypes.CDLL(None, use_errno=True).prctl(option, *rest) == 0)
