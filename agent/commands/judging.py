"""The commands that ask the judge, or weigh what it found: values from the command line in, an `Answer` out.

    verify lint review promote selftest
    Judging     how to judge, as the flags say

A command looks things up, calls the module of its name in `agent.verify` or `agent.keeping`, and arranges what that found for
people and for programs. Neighbours: `bank` has `compare --all` and `verify --all`, `author` has `author` and `replay`, `catalogue`
has `list` and `show`, `doctor` itself and `--version`; `cli.py` parses, `terminal` speaks, `render` draws.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coda.errors import CodaError
from coda.problem import Schedule

from .. import files
from ..errors import JudgeUnavailable, UsageError
from ..keeping import shelves as kernels
from ..llm.protocol import MAX_SOURCE_BYTES
from ..records import Status, Verdict
from ..task import Task, find, load
from . import render
from .flags import lengths, one_of
from .terminal import Answer, Exit, Failure, Terminal

if TYPE_CHECKING:
    from ..keeping.review import Judge
    from ..verify.judge import Options
    from ..verify.lint import LintReport


SCHEDULE = 'write JSON like {"tile_m": 128}'


@dataclass(frozen=True)
class Judging:
    """How to judge."""

    arch: str | None = None
    """None: the judge chooses, by the GPU where there is one."""
    backends: tuple[str, ...] = ()
    gpu: bool = True
    shapes: str = ""
    """Of the benchmark: "4096x4096x4096,…", lengths in the order M, N, K, then the task's other dims."""
    peers: tuple[str, ...] = ()
    """Competing peers of the benchmark; empty: all."""
    tune: bool = False
    """Whether schedules are tuned before the benchmark."""

    def check(self) -> None:
        """Cheap, before anything slow is imported. Raises `UsageError` for a backend or an architecture that does not exist."""
        from coda.backends import registry
        from coda.backends.triton.configs import ARCHS

        if self.arch is not None and self.arch.rstrip("af") not in ARCHS:
            one_of("--arch", self.arch, ARCHS, "architecture")
        for name in self.backends:
            one_of("--backend", name, (n for n in registry.MODULES if n != "reference"), "fused backend")

        from coda.bench.peers import PEERS

        for name in self.peers:
            one_of("--peers", name, PEERS, "peer")

    def options(self, task: Task, schedule: Mapping[str, Any] | None = None) -> Options:
        """For the judge. Raises `UsageError` for shapes that are not this task's."""
        from ..verify.judge import Options

        return Options(
            arch=self.arch,
            backends=self.backends,
            device=self.gpu,
            schedule=None if schedule is None else dict(schedule),
            bench_shapes=tuple(self._dims(text, task) for text in self.shapes.split(",") if text),
            bench_peers=self.peers,
            tune=self.tune,
        )

    @staticmethod
    def _dims(text: str, task: Task) -> dict[str, int]:
        known = task.shapes[0].dims
        names = [n for n in ("M", "N", "K") if n in known] + [n for n in known if n not in ("M", "N", "K")]
        return dict(zip(names, lengths(text, names, task.id), strict=True))

    def judge(self, terminal: Terminal) -> Judge:
        """The real judge with these options, telling which gate runs."""
        from ..verify.judge import Progress
        from ..verify.judge import judge as real

        def told(progress: Progress) -> None:
            if progress.record is not None:
                terminal.detail(f"gate {progress.gate}: {progress.record.status} in {progress.record.seconds:.2f} s")

        def call(source: str, task: Task, schedule: Mapping[str, Any] | None) -> Verdict:
            return real(source, task, options=self.options(task, schedule), on_progress=told)

        return call


def exit_of(verdict: Verdict) -> Exit:
    """0 for a pass; 4 where a gate refused; 5 where only the machine stands in the way."""
    if verdict.passed:
        return Exit.OK
    return Exit.ENVIRONMENT if verdict.status in (Status.NOT_RUN, Status.INFRA_ERROR) else Exit.REFUSED


# verify and lint ------------------------------------------------------------------------------------------------------


def verify(
    terminal: Terminal,
    file: Path | None,
    task_text: str | None,
    schedule: Path | None,
    judging: Judging,
    record: Path | None = None,
) -> Answer:
    """The command `verify`. `record` is where benchmark records go, where there are any."""
    if file is None or task_text is None:
        missing = "argument 'FILE'" if file is None else "option '--task'"
        raise UsageError(f"missing {missing}", hint="`coda-agent verify FILE --task ID`, or `coda-agent verify --all`")
    judging.check()
    task_id = find(task_text).id
    source = read_source(file)
    submitted = _schedule(schedule) if schedule is not None else None
    if record is not None:
        files.require_place(record)
    task = load(task_id)
    judging.options(task)
    verdict = judging.judge(terminal)(source, task, submitted)
    if record is not None:
        _write_records(terminal, verdict, record)
    data = {
        "file": str(file),
        "task": task.id,
        "verdict": str(verdict.status),
        "passed": verdict.passed,
        "first_failure": verdict.first_failure,
        "gates": render.gate_rows(verdict),
        "kind": verdict.kind,
        "program_digest": verdict.program_digest,
        "source_sha256": verdict.source_sha256,
        "seeds": verdict.seeds,
        "environment": verdict.environment.model_dump(mode="json"),
    }
    code = exit_of(verdict)
    failure = None if code is Exit.OK else _refusal(verdict)
    return Answer(data, lambda: _shown(verdict), code, failure)


def _shown(verdict: Verdict) -> Iterator[Any]:
    yield render.gate_table(verdict.gates)
    yield render.verdict_line(verdict)


def _write_records(terminal: Terminal, verdict: Verdict, path: Path) -> None:
    """Every benchmark record of a passing verdict into one JSON file, at once or not at all."""
    from ..keeping.measured import records

    found = [r for r in records(verdict.gate("bench").evidence) if not isinstance(r, str)]
    if not found or not verdict.passed:
        terminal.warn(f"nothing was recorded in {path}: {verdict.gate('bench').reason or verdict.status}")
        return
    files.write_text(path, json.dumps({"records": [json.loads(r.to_json()) for r in found]}, ensure_ascii=False) + "\n")


def _refusal(verdict: Verdict) -> Failure:
    """Which gate, which word, and what to change: as an author is told."""
    from ..verify.feedback import digest

    if verdict.first_failure is None:
        missing = "; ".join(f"{g.name}: {g.reason}" for g in verdict.not_run if g.name != "bench")
        return Failure(
            "not-proven", f"no pass on this machine: {missing}", "`coda-agent doctor` says what is missing here"
        )
    gate = verdict.gate(verdict.first_failure)
    reason, hint = render.reason_and_hint(gate)
    said = " ".join(gate.reason.split())
    more = [finding for finding in dict.fromkeys(digest(verdict).findings) if finding not in said]
    advice = "; ".join(more) or hint or "change the kernel accordingly, and verify it again"
    code = str(gate.status).lower().replace("_", "-")
    return Failure(code, f"gate {gate.name}: {gate.status}: {reason}", advice)


def read_source(file: Path) -> str:
    """A kernel file as text; bytes that are no UTF-8 survive for the static gate to refuse. One that is too large is refused here:
    a verdict about the beginning of a file would be about another file."""
    try:
        data = files.read_bounded(file, MAX_SOURCE_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{str(file)!r} cannot be read: {error.strerror}", hint="name a kernel file") from error
    if len(data) > MAX_SOURCE_BYTES:
        hint = f"a kernel is a few dozen lines: keep it below {MAX_SOURCE_BYTES} bytes"
        raise UsageError(f"{str(file)!r} is no kernel file: it is larger than {MAX_SOURCE_BYTES} bytes", hint=hint)
    return data.decode("utf-8", "surrogateescape")


def _schedule(file: Path) -> dict[str, Any]:
    try:
        data = json.loads(files.read_bounded(file, MAX_SOURCE_BYTES).decode("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"--schedule {str(file)!r} cannot be read: {why}", hint=SCHEDULE) from error
    if not isinstance(data, dict):
        raise UsageError(f"--schedule {str(file)!r} holds a {type(data).__name__}", hint=SCHEDULE)
    try:
        Schedule.from_dict(data)
    except CodaError as error:
        said = str(error).partition("\n")[0]
        raise UsageError(f"--schedule {str(file)!r} is none: {said}", hint=error.hint or SCHEDULE) from error
    return data


def lint(terminal: Terminal, task_text: str) -> Answer:
    """The command `lint`."""
    from ..verify.lint import lint_in_worker

    task = load(find(task_text).id)
    report = lint_in_worker(task)

    def show() -> Iterator[Any]:
        yield f"{task.id}: {report.status}: {report.killed} of {report.tried} wrong programs refused, in {report.seconds:.1f} s"
        yield from (f"survives: {line}" for line in report.survivors)
        yield from (f"problem: {line}" for line in report.problems)

    code, failure = Exit.OK, None
    if machine_failed(report):
        hint = "try again; `coda-agent doctor` says what is missing here"
        said = f"the lint of {task.id!r} could not be finished here: {report.status}"
        code, failure = Exit.ENVIRONMENT, Failure(JudgeUnavailable.code, said, hint)
    elif not report.ok:
        code = Exit.REFUSED
        failure = Failure(
            "invalid-spec",
            f"the task {task.id!r} does not refuse wrong kernels",
            "change its shapes, inputs or baseline",
        )
    return Answer(report.model_dump(mode="json"), show, code, failure)


def machine_failed(report: LintReport) -> bool:
    """Whether the lint's worker ended badly, which says nothing about the task."""
    return report.status in (Status.INFRA_ERROR, Status.TIMEOUT, Status.CRASH)


# review and promote ---------------------------------------------------------------------------------------------------


def review(terminal: Terminal, name: str, judging: Judging, into: Path | None) -> Answer:
    """The command `review`."""
    from ..keeping.review import review as run

    judging.check()
    settings = terminal.settings()
    kept = kernels.find(name, folders=kernels.shelves(settings), runs=settings.runs_dir)
    terminal.run_path = kept.run
    task = load(kept.task)
    files.require_place((into or kept.folder) / "REVIEW.md")
    terminal.say(f"reviewing {kept.id} for task {task.id}, from its source")
    written = run(kept, task, judging.judge(terminal), into=into)
    found, verdict = written.review, written.review.verdict
    data = {
        "kernel": kept.id,
        "folder": str(kept.folder),
        "task": task.id,
        "accepted": found.accepted,
        "refusals": list(found.refusals),
        "verdict": str(verdict.status),
        "gates": render.gate_rows(verdict),
        "recorded_digest": found.recorded_digest,
        "retraced_digest": found.retraced_digest,
        "tree_digest": found.tree_digest,
        "markdown": str(written.markdown),
        "html": str(written.html),
    }

    def show() -> Iterator[Any]:
        yield from _shown(verdict)
        yield f"program.json {found.recorded_digest[:12] or 'missing'}, kernel.py retraced {found.retraced_digest[:12] or 'not traced'}"
        yield from (f"refused: {reason}" for reason in found.refusals)

    code, failure = Exit.OK, None
    if not found.accepted:
        code = Exit.ENVIRONMENT if found.unproven else Exit.REFUSED
        failure = Failure(
            "not-proven" if found.unproven else "review-refused", "; ".join(found.refusals), f"read {written.markdown}"
        )
    follow = ""
    if found.accepted and kept.origin == "kernel":
        follow = f'coda-agent promote {shlex.quote(kept.handle)} --reviewer NAME --note "…"'
        if written.markdown.parent.resolve() != kept.folder.resolve():
            terminal.say(
                f"a promotion needs the review in the kernel's own folder, {kept.folder}: review it without --into"
            )
            follow = f"coda-agent review {shlex.quote(kept.handle)}"
    elif found.accepted and kept.same_as:
        terminal.say(f"its program is kept already: {kept.same_as} is what can be promoted")
        follow = f"coda-agent review {shlex.quote(kept.same_as)}"
    return Answer(data, show, code, failure, paths=(("packet", written.markdown), ("page", written.html)), next=follow)


def promote(
    terminal: Terminal,
    name: str,
    *,
    reviewer: str,
    note: str,
    waiver: str | None,
    replace: bool,
    dry_run: bool,
    yes: bool,
) -> Answer:
    """The command `promote`."""
    from ..keeping import promote as promotion
    from ..keeping.reviews import latest

    settings = terminal.settings()
    kept = kernels.find(name, folders=kernels.shelves(settings), runs=settings.runs_dir)
    task = load(kept.task)
    record = promotion.prepare(kept, task, latest(kept), reviewer=reviewer, note=note, waiver=waiver, replace=replace)
    path = kept.folder / promotion.FILE
    data = {"dry_run": dry_run, "path": str(path), "promotion": record.model_dump(mode="json", by_alias=True)}
    warnings = [f"no GPU evidence: waived, {record.waiver!r}"] if record.waiver else []
    slower = [
        f"{b.shape} on {b.gpu}" for b in record.benchmarks if any("slower" in word for word in b.against.values())
    ]
    if slower:
        warnings.append(f"slower than a peer at {'; '.join(slower)}")

    def show() -> Iterator[Any]:
        held = record.envelope
        sizes = (
            ", ".join(f"{name} a multiple of {step}" for name, step in held.multiple_of.items() if step > 1)
            or "any sizes"
        )
        yield f"{kept.id}: {'would be promoted' if dry_run else 'promoted'} by {record.reviewer}"
        yield (
            f"envelope: {', '.join(held.arch) or 'no architecture'}{' (compiled for, not run on)' if record.waiver else ''}; "
            f"proven in {', '.join(held.dtypes) or 'no dtype'}; {sizes}; "
            + ", ".join(f"{package} {version}" for package, version in held.toolchain.items())
        )
        yield from (f"measured: {b.shape} {b.dtype} on {b.gpu}: {b.us:.1f} µs" for b in record.benchmarks)
        yield from record.trailers

    if dry_run:
        return Answer(data, show, warnings=tuple(warnings), paths=(("would write", path),))
    terminal.confirm(
        f"promote {kept.id} in the name of {record.reviewer!r}?", yes=yes, hint="--yes answers for scripts"
    )
    promotion.write(kept, record)
    return Answer(
        data,
        show,
        warnings=tuple(warnings),
        paths=(("written", path),),
        next=f"coda-agent compare {shlex.quote(kept.task)}",
    )


# selftest -------------------------------------------------------------------------------------------------------------


def selftest(terminal: Terminal, full: bool) -> Answer:
    """The command `selftest`."""
    rest = "every gate that this machine can run" if full else "a short form; --full has every one, and every gate"
    terminal.say(f"known cheats and honest controls go through the judge: {rest}")
    from ..verify.selftest import Row, SelfTest, run, trials

    with render.Counting(
        len(trials(quick=not full, short=not full)), terminal.say, terminal.live, unit="trial"
    ) as counting:

        def told(row: Row) -> None:
            said = f"{row.id}  {row.title}: {row.gate or 'nothing'} said {row.status}"
            terminal.detail(f"{'ok' if row.ok else 'NOT OK'}  {said} in {row.seconds:.1f} s")
            counting.advance(row.title, *([] if row.ok else [f"NOT OK  {said}"]))

        jobs = 1 if full else min(4, len(os.sched_getaffinity(0)) + 1)  # some of them only wait
        report: SelfTest = run(quick=not full, short=not full, jobs=jobs, on_row=told)
    columns = ["id", "title", "expected", "caught by", "word", "ok"]

    def rows(found: Sequence[Row]) -> list[dict[str, Any]]:
        return [
            {
                "id": r.id,
                "title": r.title,
                "expected": r.expected,
                "caught by": r.gate or "nothing",
                "word": r.status,
                "ok": "yes" if r.ok else "NO",
            }
            for r in found
        ]

    def show() -> Iterator[Any]:
        yield render.heading("exploits")
        yield render.table_of(rows(report.exploits), columns)
        yield render.heading("honest controls")
        yield render.table_of(rows(report.controls), ["id", "title", "word", "ok"])
        if report.left_out:
            yield f"left out, --full has them: {', '.join(report.left_out)}; gates compile, numerics and bench of sources"
        yield report.summary()

    failure = None
    if not report.ok:
        wrong = [f"missed {row.id}" for row in report.missed] + [
            f"falsely refused {row.id}" for row in report.false_rejections
        ]
        failure = Failure(
            "selftest",
            "; ".join(wrong),
            "the judge is at fault, not the kernels: do not trust its verdicts until it is mended",
        )
    data = {
        **report.model_dump(mode="json"),
        "missed": len(report.missed),
        "false_rejections": len(report.false_rejections),
    }
    return Answer(data, show, Exit.REFUSED if failure else Exit.OK, failure)
