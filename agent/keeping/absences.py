"""What was not measured, put together by reason: hundreds of sentences become a few, the most useful first.

    Missing    a kernel or a setting that is not on the board, and why
    reasons    reason -> what it holds of
    Absence    a peer that was not timed beside some tasks, and why
    absences   by peer and kind of reason

Nothing is left out here: whoever shows these may shorten the lists. Neighbours: `leaderboard` finds them, `board_page` and the
command `compare --all` show them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

NO_KERNEL = "no kernel for these tasks"
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
        sentence.splitlines()[0].removeprefix(f"{task_id}: ").removeprefix(f"backend '{peer}': ")
    )  # behind it there are hints for whoever runs it alone
    return 0, FAILED, f"{task_id} ({own})"
