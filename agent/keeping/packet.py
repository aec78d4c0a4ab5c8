"""What a reviewer reads: a verdict and a kernel arranged into `REVIEW.md` and one self-contained HTML page.

    Packet      everything that the two templates show, as plain text and numbers; the templates decide nothing
    packet      a Packet from a kernel and its fresh verdict
    markdown, html    the two documents

Kernel sources, rationales and messages come from outside: the page escapes everything, the Markdown fences it with a fence
longer than any inside. Neighbours: `review` decides, `measured` reads timings, `agent.prompting.bank` knows how alike
programs are.
"""

from __future__ import annotations

import difflib
import json
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..prompting import bank
from ..prompting.quoting import fence
from ..records import GateRecord, Status, Verdict
from ..task import Task
from ..verify import feedback
from .measured import Timing
from .shelves import Kept

TEMPLATES = Path(__file__).with_name("templates")
CHECKED_DTYPES = ("bfloat16", "float16", "float32")


@dataclass(frozen=True)
class Packet:
    """The content of both documents."""

    title: str
    kernel: str
    task: str
    word: str
    """What the verdict says."""
    tone: str
    """good, bad or open: a colour, never the only sign."""
    open_gates: str
    refusals: tuple[str, ...]
    facts: tuple[tuple[str, str], ...]
    source: str
    rationale: str
    explain: str
    nearest: str
    diff: tuple[str, ...]
    gates: tuple[dict[str, str], ...]
    errors: tuple[dict[str, Any], ...]
    no_errors: str
    timings: tuple[dict[str, str], ...]
    no_timings: str
    resources: tuple[dict[str, Any], ...]
    no_resources: str
    untested: tuple[str, ...]
    command: str
    seeds: str
    versions: str
    created: str
    fence: str = field(default="```")


def packet(
    kept: Kept,
    task: Task,
    verdict: Verdict,
    refusals: Sequence[str],
    timings: Sequence[Timing],
    *,
    digests: tuple[str, str],
) -> Packet:
    """`digests` are the recorded and the retraced program's, "" where there is none."""
    near, diff = nearest(kept.source, verdict)
    explain = explained(verdict)
    rationale = str(kept.provenance.get("rationale") or "")
    command = shlex.join(["coda-agent", "verify", str(kept.folder / "kernel.py"), "--task", task.id])
    open_gates = ", ".join(g.name for g in verdict.not_run)
    accepted = verdict.passed and not refusals
    return Packet(
        title=task.title,
        kernel=kept.id,
        task=task.id,
        word=str(verdict.status) if accepted or not verdict.passed else f"REFUSED (the gates say {verdict.status})",
        tone="good" if accepted else "open" if verdict.status is Status.NOT_RUN else "bad",
        open_gates=open_gates if accepted else "",
        refusals=tuple(refusals),
        facts=tuple(facts(kept, verdict, digests)),
        source=kept.source.rstrip("\n"),
        rationale=rationale,
        explain=explain,
        nearest=near,
        diff=diff,
        gates=tuple(_gate(gate) for gate in verdict.gates),
        errors=tuple(errors(verdict)),
        no_errors=_why_not(verdict.gate("numerics"), "the gate recorded no errors"),
        timings=tuple(timing.shown() for timing in timings),
        no_timings=_why_not(verdict.gate("bench"), "there is no benchmark record"),
        resources=tuple(resources(verdict)),
        no_resources=_why_not(verdict.gate("compile"), "the gate recorded no resources"),
        untested=tuple(untested(task, verdict)),
        command=command,
        seeds=", ".join(f"{name} {seed}" for name, seed in verdict.seeds.items()) or "none drawn",
        versions=_versions(verdict),
        created=verdict.created.strftime("%Y-%m-%d %H:%M UTC"),
        fence=fence(kept.source, explain, rationale, command, *diff),
    )


# parts ----------------------------------------------------------------------------------------------------------------


def facts(kept: Kept, verdict: Verdict, digests: tuple[str, str]) -> Iterator[tuple[str, str]]:
    """Who, from what, at which cost; and which program."""
    known = kept.provenance
    author = str(known.get("author") or "not recorded")
    model = known.get("model")
    yield "author", f"{author}, {model} through {known.get('provider') or 'unknown'}" if model else author
    if known.get("run"):
        rounds = f", round {known['rounds']}" if known.get("rounds") else ""
        yield "run", f"{known['run']}, call {known.get('call', '?')}{rounds}"
    if isinstance(known.get("usage"), dict):
        tokens = sum(int(n) for n in known["usage"].values() if isinstance(n, int))
        yield "tokens", str(tokens)
    if known:
        cost = known.get("cost_usd")
        yield "cost", f"${cost:.4f}" if isinstance(cost, (int, float)) else "not known"
    if known.get("improves"):
        yield "started from", str(known["improves"])
    if kept.schedule is not None:
        yield "schedule", json.dumps(kept.schedule, sort_keys=True)
    if known.get("examples"):
        yield "examples shown", ", ".join(map(str, known["examples"]))
    recorded, retraced = digests
    yield "program.json", recorded or "missing"
    yield "kernel.py retraced", retraced or "could not be traced"
    yield "kind", verdict.kind or "unknown"
    yield "source SHA-256", verdict.source_sha256
    yield "task SHA-256", verdict.task_digest


def explained(verdict: Verdict) -> str:
    """The program's formula."""
    if verdict.program_json is None:
        return "There is no program: the source could not be traced."
    from coda.kernel import from_json

    return from_json(verdict.program_json).program.explain()


def nearest(source: str, verdict: Verdict) -> tuple[str, tuple[str, ...]]:
    """A sentence about the curated example that is most alike, and the difference of the texts."""
    if verdict.program_json is None:
        return "Not compared: there is no program.", ()
    from coda.kernel import from_json

    program = from_json(verdict.program_json).program
    examples = bank.examples()
    if not examples:
        return "Not compared: the bank of examples is empty.", ()
    best = max(
        examples, key=lambda e: (e.program.digest == program.digest, bank.similarity(e.program, program), -e.rung)
    )
    lines = tuple(
        difflib.unified_diff(
            best.source.splitlines(),
            source.splitlines(),
            f"examples_curated/{best.id}.py",
            "kernel.py",
            lineterm="",
            n=2,
        )
    )
    if best.program.digest == program.digest:
        texts = "the texts differ as shown" if lines else "and the same text"
        return f"Same program as the curated example {best.id}: equal digests, {texts}.", lines
    alike = 100 * bank.similarity(best.program, program)
    return f"{best.id}: {alike:.0f} % of the operations are of the same kinds, however they are put together.", lines


def errors(verdict: Verdict) -> Iterator[dict[str, Any]]:
    """The worst block per backend, dtype and output, as the numerics gate recorded it."""
    for backend, said in _mapping(verdict.gate("numerics").evidence.get("backends")).items():
        for key, found in _mapping(_mapping(said).get("errors")).items():
            dtype, _, output = key.partition("/")
            ratio = found.get("ratio")
            yield {
                "backend": backend,
                "dtype": dtype,
                "output": output,
                "max_error": _number(found.get("max_error")),
                "trusted_max": _number(found.get("trusted_max")),
                "max_allowed": _number(found.get("max_allowed")),
                "ratio": "beyond" if ratio is None else f"{ratio:.3g}",
                "percent": 100 if ratio is None else round(min(100.0, 100 * ratio)),
                "over": ratio is None or ratio > 1,
                "blocks": found.get("blocks", "?"),
                "bad_blocks": found.get("bad_blocks", "?"),
                "distribution": str(found.get("distribution", "?")),
                "where": f"{found.get('where', '?')} sizes, {found.get('distribution', '?')} values",
            }


def resources(verdict: Verdict) -> Iterator[dict[str, Any]]:
    """What the compiled kernels use."""
    evidence = verdict.gate("compile").evidence
    for backend, said in _mapping(evidence.get("backends")).items():
        for built in _mapping(said).get("built") or ():
            if built.get("status") == "PASS":
                shown = {name: _count(built.get(name)) for name in ("registers", "spills", "shared_memory")}
                about = {"name": str(built.get("name", "?")), "shape": str(built.get("shape", "?"))}
                yield {"backend": backend, "arch": str(evidence.get("arch", "?")), **about, **shown}


def untested(task: Task, verdict: Verdict) -> Iterator[str]:
    """What a pass here does not say."""
    for gate in verdict.not_run:
        yield f"gate {gate.name}: {gate.reason}"
    for text in feedback.untested(verdict):
        yield f"a way through the kernel that no judged input took: {text}"
    numerics, compiled = verdict.gate("numerics").evidence, verdict.gate("compile").evidence
    if numerics.get("device") == "interpreter":
        yield "numerics ran in Triton's interpreter: races, memory faults, bf16 and hardware rounding are untested"
    ran = {error["dtype"] for error in errors(verdict)}
    if numerics:
        missing = [dtype for dtype in CHECKED_DTYPES if dtype not in ran]
        if missing:
            yield f"dtypes: no numerics in {', '.join(missing)}"
    for name, said in _mapping(numerics.get("backends")).items():
        if said.get("status") == "NOT_RUN":
            yield f"backend {name} in numerics: {said.get('reason')}"
    if compiled:
        yield f"architectures: compiled for {compiled.get('arch')} only"
    largest = max((s.dims for s in task.shapes), key=lambda dims: _product(dims.values()), default=None)
    if largest is not None and numerics:
        sizes = ", ".join(f"{name} {length}" for name, length in largest.items())
        yield f"sizes: numerics ran on cut-down shapes; nothing above the task's largest ({sizes}) was compiled or timed"
    drawn = dict.fromkeys((*task.distributions, *(e["distribution"] for e in errors(verdict))))
    yield f"values: only the distributions {', '.join(drawn)} were drawn"


# documents ------------------------------------------------------------------------------------------------------------


def markdown(content: Packet) -> str:
    """`REVIEW.md`."""
    return _render("REVIEW.md.j2", content)


def html(content: Packet) -> str:
    """The page."""
    return _render("review.html.j2", content)


def _render(name: str, content: Packet) -> str:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        undefined=jinja2.StrictUndefined,
        autoescape=jinja2.select_autoescape(enabled_extensions=("html.j2",), default=False),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["cell"] = _cell
    environment.filters["diff_class"] = _diff_class
    return environment.get_template(name).render(p=content)


def _cell(text: object) -> str:
    """One line of a Markdown table."""
    plain = " ".join(str(text).split()).replace("\\", "\\\\").replace("|", "\\|")
    return plain.replace("<", "&lt;").replace(">", "&gt;")


def _diff_class(line: str) -> str:
    return "add" if line.startswith("+") else "del" if line.startswith("-") else "same"


# small things ---------------------------------------------------------------------------------------------------------


def _gate(gate: GateRecord) -> dict[str, str]:
    if gate.status is Status.NOT_RUN:
        return {"name": gate.name, "result": f"not run: {gate.reason}", "seconds": "", "tone": "open"}
    result = f"{gate.status}: {gate.reason}" if gate.reason else str(gate.status)
    tone = "good" if gate.status.good else "bad"
    return {"name": gate.name, "result": result, "seconds": f"{gate.seconds:.2f}", "tone": tone}


def _why_not(gate: GateRecord, otherwise: str) -> str:
    return gate.reason if gate.status is Status.NOT_RUN else otherwise


def _versions(verdict: Verdict) -> str:
    where = verdict.environment
    packages = ", ".join(f"{name} {version}" for name, version in where.packages.items())
    return f"Python {where.python}, {packages}, {where.gpu or 'no GPU'}"


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _number(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, (int, float)) else "not finite"


def _count(value: Any) -> str:
    return str(value) if isinstance(value, int) else "not reported"


def _product(values: Any) -> int:
    total = 1
    for value in values:
        total *= value
    return total
