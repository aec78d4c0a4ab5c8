"""Run folders: everything that a run asked, got, judged and decided, so that it can be resumed, replayed and audited.

    <runs>/<date>-<task>-<id>/
      run.json                 RunInfo: settings without secrets, task and digest, versions, prompt, examples
      events.jsonl             append-only, fsynced: agent/runs/events.py
      requests/NNN.json        what was asked in model call NNN     } a run folder is a recording:
      replies/NNN.json         what came back                       } `--llm replay:RUN` plays it
      attempts/NNN/            kernel.py, verdict.json, program.json, schedule.json, bench.json
      summary.json             the last word

    create, resume, open_run    a `Run`: new, locked for going on, read-only
    list_runs, find             what there is

Written whole or not at all; killed at any instant the folder stays readable, and what was paid for is in it. One process
at a time works on a run (a file lock, gone with the process). Text given as `secrets` never reaches a file: it is replaced on
the way. Neighbours: `events`; `agent.keeping.keep` writes kept kernels; `agent.authoring.loop` drives all this.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import pathlib
import re
import secrets as randomness
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, TypeVar

import filelock
from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from ..errors import RunDamaged, RunLocked, UnknownRun
from ..files import append_line, read_lines, spelled, write_text
from ..llm.protocol import Reply, Request, Submission
from ..records import Environment, Record, Verdict
from ..settings import Settings
from .events import EVENT, Event, Summary

_MODEL = TypeVar("_MODEL", bound=BaseModel)
_NUMBERED = re.compile(r"(\d{3,})")
_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]+")


class Start(Record):
    """The kept kernel that a run begins with: kept here, so that the run goes on whatever becomes of it."""

    kernel: str
    """Its id, or its folder where it is on no shelf."""
    program_digest: str
    text: str
    """What the first request says of it, after the task."""


class RunInfo(Record):
    """`run.json`: what is fixed for the whole run."""

    model_config = ConfigDict(populate_by_name=True)

    schema_name: Literal["coda-agent/run/1"] = Field(default="coda-agent/run/1", alias="schema")
    id: str
    task: str
    task_digest: str
    created: datetime.datetime
    llm: str
    """`--llm`, as given or resolved."""
    model: str | None
    """The model that is asked for; None where the provider decides. Replies say who answered."""
    limits: dict[str, JsonValue]
    goal: float | None = None
    start: Start | None = None
    """Where it does not begin with nothing."""
    into: str | None = None
    """Where its kernel is to be kept, if that was said; absolute."""
    name: str | None = None
    """As what, if that was said."""
    prompt_version: str
    system_sha256: str
    """Of the stable prefix."""
    examples: tuple[str, ...]
    """Ids of the examples in the prompt, in order."""
    withheld: dict[str, str] = Field(default_factory=dict)
    """Id of an example that was not shown -> why."""
    example_tokens: int | None = None
    """Of the examples in the prompt, estimated at four characters each."""
    untaught: tuple[str, ...] = ()
    """Primitives and idioms that the task needs and no example in the prompt shows."""
    settings: dict[str, JsonValue] = Field(default_factory=dict)
    environment: Environment


def settings_record(settings: Settings) -> dict[str, JsonValue]:
    """Resolved settings with their sources, for `run.json`; the key only as "set" or "not set"."""
    return {name: {"value": value, "source": source} for name, value, source in settings.explain()}


class Run:
    """One run folder. `create` and `resume` give one that may be written to."""

    def __init__(
        self, folder: pathlib.Path, info: RunInfo, *, secrets: Iterable[str] = (), writable: bool = False
    ) -> None:
        self.folder, self.info = folder, info
        self._secrets = tuple(s for s in secrets if s)
        self._writable = writable
        self._lock: filelock.BaseFileLock | None = None
        self._events = list(_read_events(folder / "events.jsonl"))
        self._keys = {e.key for e in self._events if e.key is not None}
        self._began = time.monotonic()
        self._before = max((e.elapsed_s for e in self._events), default=0.0)

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r})"

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the lock back."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None
        self._writable = False

    # events ---------------------------------------------------------------------------------------------------
    @property
    def events(self) -> tuple[Event, ...]:
        """Everything recorded so far."""
        return tuple(self._events)

    @property
    def elapsed_s(self) -> float:
        """Seconds that the run took, all its sessions together."""
        return self._before + time.monotonic() - self._began

    def record(self, event: Event) -> Event:
        """Append an event, dated; one that happened before (same `key`) is returned and not written again."""
        dated = event.model_copy(
            update={"at": datetime.datetime.now(datetime.UTC), "elapsed_s": round(self.elapsed_s, 3)}
        )
        if event.key is not None and event.key in self._keys:
            return dated
        self._require_writable()
        append_line(self.folder / "events.jsonl", self._clean(dated.model_dump_json()))
        self._events.append(dated)
        if event.key is not None:
            self._keys.add(event.key)
        return dated

    # model calls ----------------------------------------------------------------------------------------------
    def write_request(self, number: int, request: Request) -> None:
        """Before the call, so that a lost reply is known to have been asked for."""
        self._write(f"requests/{number:03d}.json", _dump(request))

    def write_reply(self, number: int, reply: Reply) -> None:
        """At once after the call: it was paid for."""
        self._write(f"replies/{number:03d}.json", _dump(reply))

    def request(self, number: int) -> Request | None:
        """What was asked in a call, if it was."""
        return self._load(Request, f"requests/{number:03d}.json")

    def reply(self, number: int) -> Reply | None:
        """What came back, if it did."""
        return self._load(Reply, f"replies/{number:03d}.json")

    @property
    def replies(self) -> tuple[int, ...]:
        """Numbers of the calls that were answered."""
        return _numbers(self.folder / "replies")

    # candidates -----------------------------------------------------------------------------------------------
    def write_candidate(self, number: int, submission: Submission) -> pathlib.Path:
        """The source, before it is judged. Returns the attempt's folder."""
        self._write(f"attempts/{number:03d}/kernel.py", submission.source)
        if submission.schedule is not None:
            self._write(f"attempts/{number:03d}/schedule.json", _json(submission.schedule))
        return self.attempt_folder(number)

    def write_verdict(self, number: int, verdict: Verdict) -> None:
        """The verdict, last: an attempt that has one is complete."""
        folder = f"attempts/{number:03d}"
        if verdict.program_json is not None:
            self._write(f"{folder}/program.json", verdict.program_json + "\n")
        bench = verdict.gate("bench")
        if bench.evidence:
            self._write(f"{folder}/bench.json", _json(bench.evidence))
        self._write(f"{folder}/verdict.json", verdict.to_json() + "\n")

    def verdict(self, number: int) -> Verdict | None:
        """The verdict of a call's candidate, if it was judged."""
        return self._load(Verdict, f"attempts/{number:03d}/verdict.json")

    def verdict_for(self, number: int, source_sha256: str) -> Verdict | None:
        """The verdict on disk, if it is about this source and this run's task as it is now. Raises `RunDamaged`."""
        found = self.verdict(number)
        if found is None or found.source_sha256 != source_sha256 or found.task_digest != self.info.task_digest:
            return None
        return found

    @property
    def verdicts(self) -> tuple[int, ...]:
        """Numbers of the calls whose candidates were judged."""
        return tuple(
            n for n in _numbers(self.folder / "attempts") if (self.attempt_folder(n) / "verdict.json").is_file()
        )

    def attempt_folder(self, number: int) -> pathlib.Path:
        """Where the files of an attempt are."""
        return self.folder / "attempts" / f"{number:03d}"

    # the last word --------------------------------------------------------------------------------------------
    def write_summary(self, summary: Summary) -> None:
        """Replaces the one of an earlier session."""
        self._write("summary.json", _dump(summary))

    @property
    def summary(self) -> Summary | None:
        """The last word, if the run or a session of it ended orderly."""
        return self._load(Summary, "summary.json")

    # files ----------------------------------------------------------------------------------------------------
    def _write(self, name: str, text: str) -> None:
        self._require_writable()
        write_text(self.folder / name, self._clean(text))

    def _clean(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, "[secret]")
        return text

    def _require_writable(self) -> None:
        if not self._writable:
            raise RuntimeError(f"{self.folder} was opened for reading")

    def _load(self, kind: type[_MODEL], name: str) -> _MODEL | None:
        return _read_model(kind, self.folder / name) if (self.folder / name).is_file() else None

    def _acquire(self) -> None:
        lock = filelock.FileLock(self.folder / ".lock")
        try:
            lock.acquire(timeout=0)
        except filelock.Timeout:
            raise RunLocked(
                f"another process works on the run {self.folder.name!r}", hint="wait until it ends, or stop it"
            ) from None
        self._lock, self._writable = lock, True


# opening --------------------------------------------------------------------------------------------------------------


def new_id(task: str, now: datetime.datetime | None = None) -> str:
    """`<date>-<task>-<id>`, safe as a file name."""
    date = (now or datetime.datetime.now(datetime.UTC)).strftime("%Y-%m-%d")
    return f"{date}-{_UNSAFE.sub('-', task)[:60]}-{randomness.token_hex(3)}"


def create(root: pathlib.Path, info: RunInfo, *, secrets: Iterable[str] = ()) -> Run:
    """A new run folder `root/<info.id>`, locked. `secrets` are replaced in whatever is written."""
    folder = root / info.id
    folder.mkdir(parents=True, exist_ok=False)
    run = Run(folder, info, secrets=secrets)
    run._acquire()
    for name in ("requests", "replies", "attempts"):
        (folder / name).mkdir()
    run._write("run.json", _dump(info))
    return run


def resume(folder: pathlib.Path, *, secrets: Iterable[str] = ()) -> Run:
    """A run to go on with, locked.

    Raises `RunLocked` where another process works on it, `UnknownRun`, or `RunDamaged`.
    """
    _require_run(folder)
    # Locked before anything is read: events that another process appends meanwhile would be missed.
    probe = Run(folder, _read_model(RunInfo, folder / "run.json"))
    probe._acquire()
    run = Run(folder, probe.info, secrets=secrets)
    run._lock, run._writable = probe._lock, True
    return run


def open_run(folder: pathlib.Path) -> Run:
    """A run to read; it may be going on. Raises `UnknownRun` or `RunDamaged`."""
    _require_run(folder)
    return Run(folder, _read_model(RunInfo, folder / "run.json"))


def find(name: str, runs: pathlib.Path) -> pathlib.Path:
    """The folder of a run: a path, a run's id, or the part of an id that fits one run alone. Raises `UnknownRun`."""
    for place in (spelled(name), spelled(str(runs / name))):
        if place is not None and (place / "run.json").is_file():
            return place
    fitting = [place for place in list_runs(runs) if name and name in place.name]
    if len(fitting) == 1:
        return fitting[0]
    several = f"{len(fitting)} runs fit: {', '.join(p.name for p in fitting[:4])}. " if fitting else ""
    raise UnknownRun(f"no run {name!r} in {str(runs)!r}", hint=f"{several}`coda-agent list runs` shows them all")


def list_runs(runs: pathlib.Path) -> tuple[pathlib.Path, ...]:
    """Folders of runs, newest first."""
    found = [path.parent for path in runs.glob("*/run.json")]
    return tuple(sorted(found, key=lambda p: (p / "run.json").stat().st_mtime_ns, reverse=True))


def source_sha256(source: str) -> str:
    """As in a verdict: of the text in UTF-8."""
    return hashlib.sha256(source.encode("utf-8")).hexdigest()


def _require_run(folder: pathlib.Path) -> None:
    if not (folder / "run.json").is_file():
        raise UnknownRun(f"{str(folder)!r} is no run folder", hint="`coda-agent list runs` shows them all")


def _read_events(path: pathlib.Path) -> Iterator[Event]:
    try:
        lines = read_lines(path)
    except (OSError, UnicodeDecodeError) as error:
        raise RunDamaged(f"{str(path)!r} cannot be read: {error}", hint=_EVENTS_HINT) from error
    for number, line in enumerate(lines, 1):
        try:
            yield EVENT.validate_json(line)
        except ValidationError as error:
            what = f"{str(path)!r}: line {number} is not an event: {_first(error)}"
            raise RunDamaged(what, hint=_EVENTS_HINT) from error


def _read_model(kind: type[_MODEL], path: pathlib.Path) -> _MODEL:
    try:
        return kind.model_validate_json(path.read_bytes())
    except OSError as error:
        raise RunDamaged(f"{str(path)!r} cannot be read: {error.strerror}", hint=_hint(kind)) from error
    except ValidationError as error:
        raise RunDamaged(f"{str(path)!r} is not a {kind.__name__}: {_first(error)}", hint=_hint(kind)) from error


_EVENTS_HINT = "restore it from a copy, or remove the line: replies and verdicts have files of their own"


def _hint(kind: type[BaseModel]) -> str:
    """What to do about a damaged file of this kind."""
    if kind is RunInfo:
        return "restore it from a copy; without it the replies can still be played: --llm replay:FOLDER"
    if kind is Reply:
        return "restore it from a copy; if it is removed, resuming asks the model for that reply again"
    if kind is Verdict:
        return "resume the run: with the reply on disk, the candidate is judged again"
    if kind is Summary:
        return "remove it and resume the run: it is written anew"
    return "remove it: nothing but the check for a changed prompt needs it"


def _first(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(map(str, first['loc'])) or 'the document'}: {first['msg']}"


def _numbers(folder: pathlib.Path) -> tuple[int, ...]:
    if not folder.is_dir():
        return ()
    found = (_NUMBERED.fullmatch(path.name.removesuffix(".json")) for path in folder.iterdir())
    return tuple(sorted(int(match[1]) for match in found if match))


def _dump(record: BaseModel) -> str:
    return record.model_dump_json(by_alias=True, indent=2) + "\n"


def _json(data: Mapping[str, Any]) -> str:
    return json.dumps(data, ensure_ascii=False, indent=2, sort_keys=True) + "\n"
