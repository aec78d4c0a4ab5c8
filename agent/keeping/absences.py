"""What was not measured, put together by reason: hundreds of sentences become a few, the most useful first.

    Missing    a kernel or a setting that is not on the board, and why
    reasons    reason -> what it holds of
    Absence    a peer that was not timed beside some tasks, and why
    absences   by peer and kind of reason
    Gap        what was not measured in one setting, beside which kernel, and why
    by_size    one sentence per setting

Nothing is left out here: whoever shows these may shorten the lists. Neighbours: `leaderboard` and `compare` find them, `board_page`
and the command `compare` show them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

NO_KERNEL = "no kernel for these tasks"
NOT_HERE = "not measured here"
FAILED = "could not run these"


@dataclass(frozen=True)
class Missing:
    """What is not on the board, and why."""

    task: str
    why: str
    of: str = ""
    """The kernel or setting, where it is not the whole task."""

    @property
    def what(self) -> str:
        """Of what this is said."""
        return self.of or self.task


def reasons(missing: Iterable[Missing]) -> dict[str, tuple[str, ...]]:
    """The commonest reason first."""
    found: dict[str, list[str]] = {}
    for one in missing:
        found.setdefault(one.why, []).append(one.what)
    return {why: tuple(found[why]) for why in sorted(found, key=lambda why: (-len(found[why]), why))}


@dataclass(frozen=True)
class Absence:
    """A peer, or several with one story."""

    peer: str
    why: str
    tasks: tuple[str, ...]
    """Each with its own reason in brackets, where it has one."""


def absences(absent: Mapping[tuple[str, str], Sequence[str]]) -> tuple[Absence, ...]:
    """From (peer, sentence) -> tasks. First what went wrong, then what an installation or a flag would add, then what cannot be."""
    found: dict[tuple[int, str, str], dict[str, None]] = {}
    for (peer, sentence), ids in absent.items():
        for task_id in ids:
            rank, why, what = _kind(peer, sentence, task_id)
            found.setdefault((rank, peer, why), {}).setdefault(what)
    told: dict[tuple[int, str, tuple[str, ...]], list[str]] = {}
    for (rank, peer, why), kinds in sorted(found.items()):
        told.setdefault((rank, why, tuple(kinds)), []).append(peer)
    return tuple(Absence(", ".join(peers), why, kinds) for (_, why, kinds), peers in sorted(told.items(), key=_rank))


def _rank(item: tuple[tuple[int, str, tuple[str, ...]], list[str]]) -> tuple[int, list[str]]:
    return item[0][0], item[1]


def _kind(peer: str, sentence: str, task_id: str) -> tuple[int, str, str]:
    """Rank, reason without the task, and the task."""
    state, _, rest = sentence.partition(": ")
    if state == "not installed":
        return 1, sentence, task_id
    if state == "not asked for":
        return 2, sentence, task_id
    if state == "not applicable":
        return 3, NO_KERNEL if task_id in rest.split() else rest, task_id
    own = (
        sentence.partition("\n")[0].removeprefix(f"{task_id}: ").removeprefix(f"backend '{peer}': ")
    )  # behind it there are hints for whoever runs it alone
    return 0, FAILED, f"{task_id} ({own})"


@dataclass(frozen=True)
class Gap:
    """Something that was not measured in one setting."""

    where: str
    """The setting, as sentences have it."""
    what: str
    """A peer, or a kernel."""
    why: str
    beside: str = ""
    """The kernel whose record says so; empty where the kernel itself is what was not measured."""
    task: str = ""


def by_size(gaps: Sequence[Gap], kernels: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """One sentence per setting, what went wrong first. `kernels`: who was measured in each; what holds beside all of them is not
    said of each."""
    told = []
    for where in kernels:
        found: dict[tuple[int, str], dict[str, list[str]]] = {}
        for gap in gaps:
            if gap.where == where:
                rank, why = _short(gap)
                found.setdefault((rank, why), {}).setdefault(gap.what, []).append(gap.beside)
        parts = []
        for (_, why), named in sorted(found.items()):
            names = [_beside(what, of, kernels[where]) for what, of in named.items()]
            parts.append(f"{', '.join(names)} ({why})")
        if parts:
            told.append(f"{where}: {'; '.join(parts)}")
    return tuple(told)


def _short(gap: Gap) -> tuple[int, str]:
    if not gap.beside:
        return 0, gap.why
    rank, why, what = _kind(gap.what, gap.why, gap.task)
    if why == FAILED:
        return rank, what.removeprefix(f"{gap.task} (").removesuffix(")")
    return rank, "no kernel for this task" if why == NO_KERNEL else why


def _beside(what: str, kernels: Sequence[str], all_: Sequence[str]) -> str:
    partly = any(kernels) and set(kernels) < set(all_)
    return f"{what} beside {' and '.join(dict.fromkeys(kernels))}" if partly else what
