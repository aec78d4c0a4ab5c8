"""The command line: parse, call `agent`, print, exit. `coda-agent = "cli:main"`.

One function per command, whose parameters are its arguments and flags. What all commands share, the common options and every
way to end among them, is `agent/commands/entry.py`. Nothing heavy is imported before a command runs: `--help` needs typer alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from agent.commands.entry import app, command
from agent.commands.flags import listed
from agent.commands.terminal import Answer, Terminal

SIZES, PEERS = "4096x4096x4096,512x4096x4096", "compile,quack"
"""How lists are written, for hints."""

# shared parameters ----------------------------------------------------------------------------------------------------

Arch = Annotated[
    str | None,
    typer.Option(
        "--arch",
        metavar="ARCH",
        help="GPU architecture to build for, such as sm_90. Default: the GPU's own, or sm_90 without one.",
    ),
]
Backends = Annotated[
    list[str] | None,
    typer.Option("--backend", metavar="NAME", help="triton or cutedsl; repeat for both. Default: both."),
]
NoGpu = Annotated[
    bool, typer.Option("--no-gpu", help="Do not use a GPU: numerics in Triton's interpreter, no benchmark.")
]
Tune = Annotated[
    bool,
    typer.Option(
        "--tune", help="Tune its schedules before the benchmark, a submitted one among the candidates; needs a GPU."
    ),
]
Kernel = Annotated[
    str, typer.Argument(metavar="RUN_OR_KERNEL", help='A kept kernel "task/name", its folder, or a run.')
]


# commands -------------------------------------------------------------------------------------------------------------


@command("author")
def author(
    terminal: Terminal,
    task: Annotated[
        str | None,
        typer.Argument(
            metavar="TASK",
            help='Id, title or alias: "swiglu backward". A run that is resumed knows its own, and so does a kernel to improve.',
        ),
    ] = None,
    llm: Annotated[
        str | None,
        typer.Option(
            metavar="WHO",
            help="anthropic, replay, replay:RUN, folder:DIR or scripted:FILE. Default: anthropic, where a key is set.",
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option(metavar="ID", help="Model id; any string. Default: claude-opus-5-5.")
    ] = None,
    rounds: Annotated[int | None, typer.Option(metavar="N", help="Most rounds. Default: 8.")] = None,
    max_tokens_total: Annotated[
        int | None, typer.Option(metavar="N", help="Most tokens of the run, input and output. Default: no limit.")
    ] = None,
    max_cost: Annotated[
        float | None, typer.Option(metavar="USD", help="Most US dollars of the run. Default: no limit.")
    ] = None,
    time: Annotated[
        str | None, typer.Option(metavar="TIME", help="Longest run, such as 20m. Default: no limit.")
    ] = None,
    goal: Annotated[
        float | None,
        typer.Option(
            metavar="FRACTION",
            help="Of the physical floor's speed, such as 0.95, to go on for; needs a GPU. Default: a pass will do; with --improve, 1.",
        ),
    ] = None,
    arch: Arch = None,
    backend: Backends = None,
    no_gpu: NoGpu = False,
    tune: Tune = False,
    into: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where a passing kernel is kept. Default: as `doctor` says.")
    ] = None,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name of the kept kernel. Default: made of the model id.")
    ] = None,
    resume: Annotated[
        str | None,
        typer.Option(metavar="RUN", help="Go on with a run; what was paid for is reused. Default: a new run."),
    ] = None,
    improve: Annotated[
        str | None,
        typer.Option(
            metavar="KERNEL",
            help="Start from a kept kernel and what was measured of it; how fast the new one is shows on a GPU. Default: from nothing.",
        ),
    ] = None,
    show_own: Annotated[bool, typer.Option("--show-own-example", help="Withhold no example; recorded.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the first prompt and its token estimate; ask nobody.")
    ] = False,
    events: Annotated[
        bool, typer.Option("--events", help="Events of the run on stdout, one JSON object a line.")
    ] = False,
) -> Answer:
    """Have a kernel for TASK written. It is judged, and written anew, until it passes or a limit is reached."""
    from agent.commands import author as authoring
    from agent.commands import judging

    flags = {
        "llm": llm,
        "model": model,
        "rounds": rounds,
        "max_tokens_total": max_tokens_total,
        "max_cost": max_cost,
        "time_limit": time,
    }
    asked = authoring.Asked(
        task=task,
        goal=goal,
        judging=judging.Judging(arch, tuple(backend or ()), not no_gpu, tune=tune),
        into=into,
        name=name,
        resume=resume,
        improve=improve,
        show_own=show_own,
        dry_run=dry_run,
        events=events,
    )
    return authoring.author(terminal, asked, flags)


@command("review")
def review(
    terminal: Terminal,
    kernel: Kernel,
    arch: Arch = None,
    backend: Backends = None,
    no_gpu: NoGpu = False,
    into: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where the packet goes. Default: the kernel's folder.")
    ] = None,
) -> Answer:
    """Judge a kernel again from scratch. Writes REVIEW.md and review.html."""
    from agent.commands import judging

    return judging.review(terminal, kernel, judging.Judging(arch, tuple(backend or ()), not no_gpu), into)


@command("promote")
def promote(
    terminal: Terminal,
    kernel: Kernel,
    reviewer: Annotated[str, typer.Option(metavar="NAME", help="The person who answers for it.")],
    note: Annotated[str, typer.Option(metavar="TEXT", help="What was looked at, and why it may be used.")],
    waive_gpu: Annotated[
        str | None,
        typer.Option(metavar="REASON", help="Promote without a GPU benchmark; recorded. Default: one is needed."),
    ] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Promote anew what is promoted already.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be written; write nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> Answer:
    """Promote a kept kernel that a fresh review accepted."""
    from agent.commands import judging

    return judging.promote(
        terminal, kernel, reviewer=reviewer, note=note, waiver=waive_gpu, replace=replace, dry_run=dry_run, yes=yes
    )


@command("compare")
def compare(
    terminal: Terminal,
    subjects: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME", help="Tasks, kept kernels, curated examples or runs; the first is compared with the others."
        ),
    ] = None,
    threshold: Annotated[
        float | None,
        typer.Option(
            metavar="PERCENT", help="Exit 7 where the first is slower than another by more. Default: no limit."
        ),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="The leaderboard: every task, from its records.")] = False,
    html: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="With --all: write the leaderboard as one page. Default: none is written."),
    ] = None,
    run: Annotated[
        bool, typer.Option("--run", help="Measure them on this GPU first; keep the records beside the kernels.")
    ] = False,
) -> Answer:
    """Put what was measured side by side, and say what was not."""
    from agent.commands import bank, comparing

    if everything:
        return bank.leaderboard(terminal, tuple(subjects or ()), threshold, html, run=run)
    return comparing.compare(terminal, tuple(subjects or ()), threshold, page=html, run=run)


@command("verify")
def verify(
    terminal: Terminal,
    file: Annotated[Path | None, typer.Argument(metavar="FILE", help="A kernel file; none with --all.")] = None,
    task: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Id, title or alias of its task; needed with FILE."),
    ] = None,
    schedule: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A schedule as JSON, submitted with it. Default: none.")
    ] = None,
    shapes: Annotated[
        str | None, typer.Option(metavar="MxNxK,…", help="Sizes of the benchmark. Default: the task's own.")
    ] = None,
    peers: Annotated[
        str | None, typer.Option(metavar="NAME,…", help="Competing peers of the benchmark. Default: all that apply.")
    ] = None,
    record: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the benchmark's records there. Default: nowhere.")
    ] = None,
    arch: Arch = None,
    backend: Backends = None,
    no_gpu: NoGpu = False,
    tune: Tune = False,
    everything: Annotated[
        bool,
        typer.Option(
            "--all", help="Prove every curated and kept kernel that has a task again, on the CPU; trace the others."
        ),
    ] = False,
    sample: Annotated[
        int | None, typer.Option(metavar="N", help="With --all: so many of them, drawn. Default: every one.")
    ] = None,
    seed: Annotated[int | None, typer.Option(metavar="N", help="Of the sample. Default: drawn, and told.")] = None,
    jobs: Annotated[
        int | None,
        typer.Option(metavar="N", help="With --all: so many at a time. Default: as many as processors, at most 8."),
    ] = None,
) -> Answer:
    """Judge a kernel file. Exit 0 where every required gate passes, 4 where one refuses."""
    from agent.commands import bank, judging

    sizes, named = listed("--shapes", shapes, SIZES), listed("--peers", peers, PEERS)
    how = judging.Judging(arch, tuple(backend or ()), not no_gpu, ",".join(sizes), named, tune)
    if everything:
        alone: dict[str, object] = {"FILE": file, "--task": task, "--schedule": schedule, "--record": record}
        alone |= {
            "--shapes": shapes,
            "--peers": peers,
            "--tune": tune or None,
            "--no-gpu": no_gpu or None,
        }
        return bank.verify_all(terminal, how, alone, number=sample, seed=seed, jobs=jobs)
    bank.needs_all({"--sample": sample, "--seed": seed, "--jobs": jobs})
    return judging.verify(terminal, file, task, schedule, how, record)


@command("collect")
def collect(
    terminal: Terminal,
    runs: Annotated[list[str], typer.Argument(metavar="RUN", help="Runs that have ended, by name or folder.")],
    campaign: Annotated[
        str,
        typer.Option(metavar="NAME", show_default=False, help="Default: the run's day and the model that answered."),
    ] = "",
    into: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where records go. Default: the checkout's authored_kernels/campaigns."),
    ] = None,
) -> Answer:
    """Keep what became of runs. They are small records, for the tables of the leaderboard."""
    from agent.commands import bank

    return bank.collect(terminal, runs, campaign, into)


@command("tune")
def tune(
    terminal: Terminal,
    subjects: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME",
            help="Tasks (example and kept kernels), examples, kept kernels, runs, kernel files. Equal programs once.",
        ),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every task's example and kept kernels.")] = False,
    task: Annotated[
        str | None, typer.Option(metavar="ID", help="The task of a kernel file. Default: none; then --shapes.")
    ] = None,
    shapes: Annotated[
        str | None, typer.Option(metavar="MxNxK,…", help="Sizes. Default: the benchmark sizes of the task.")
    ] = None,
    dtype: Annotated[str, typer.Option(metavar="bfloat16|float16|float32", help="Of the matrices.")] = "bfloat16",
    weights: Annotated[
        str, typer.Option(metavar="row|col|both", help="Layout of b: col is a linear layer's weight.mT.")
    ] = "row",
    budget: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Start nothing later. Default: no limit.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(metavar="N", help="Processes that compile. Default: by processors and memory.")
    ] = None,
    most: Annotated[
        int | None, typer.Option(metavar="N", help="The first candidates of each backend. Default: all.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Measure again what is known.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List what would be tuned; no GPU needed.")] = False,
    compile_only: Annotated[
        bool,
        typer.Option("--compile-only", help="Build every candidate for --arch and show what it takes; no GPU needed."),
    ] = False,
    arch: Arch = None,
    backend: Backends = None,
) -> Answer:
    """Measure which backend and schedule is fastest. It is kept for later calls of these programs at these sizes."""
    from agent.commands import tune as tuning

    asked = tuning.Asked(
        subjects=tuple(subjects or ()),
        everything=everything,
        task=task,
        shapes=",".join(listed("--shapes", shapes, SIZES)),
        backends=tuple(backend or ()),
        dtype=dtype,
        weights=weights,
        arch=arch,
        budget_s=budget,
        workers=workers,
        most=most,
        force=force,
        dry_run=dry_run,
        compile_only=compile_only,
    )
    return tuning.tune(terminal, asked)


@command("bench")
def bench(
    terminal: Terminal,
    subjects: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME", help="Tasks (example and kept kernels), examples, kept kernels, runs."),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every task's example and kept kernels.")] = False,
    shapes: Annotated[
        str | None, typer.Option(metavar="MxNxK,…", help="Sizes. Default: the benchmark sizes of the task.")
    ] = None,
    peers: Annotated[
        str | None, typer.Option(metavar="NAME,…", help="Competing peers. Default: all that apply.")
    ] = None,
    backend: Backends = None,
    protocol: Annotated[
        str, typer.Option(metavar="default|paper", help="paper: 30 runs in a row, mean and standard deviation.")
    ] = "default",
    rounds: Annotated[int, typer.Option(metavar="N", help="Rounds of the default protocol.")] = 25,
    resume: Annotated[bool, typer.Option("--resume", help="Skip what --out has already.")] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR|FILE.json",
            help="Results as they come, then the records. Default: below the user's state folder.",
        ),
    ] = None,
    plots: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Pictures as SVG and PNG; needs the extra [plot]. Default: none are drawn."),
    ] = None,
    tune: Annotated[
        bool, typer.Option("--tune", help="Tune every kernel at these sizes, or what a layer runs, first.")
    ] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Put the records beside the kernels.")] = False,
    cache_dir: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="All compilers' caches in one folder, to be carried along. Default: each one's own."
        ),
    ] = None,
    parallel: Annotated[int, typer.Option(metavar="N", help="Benchmarks that compile at once; 0: by processors.")] = 0,
    budget: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Start nothing later. Default: no limit.")
    ] = None,
    layer: Annotated[
        list[str] | None,
        typer.Option(
            metavar="D:FFN", help="A whole layer of this width instead of kernels; repeatable. Default: none."
        ),
    ] = None,
    tokens: Annotated[int | None, typer.Option(metavar="N", help="With --layer: rows. Default: 16384.")] = None,
    autotune: Annotated[
        bool, typer.Option("--autotune", help="With --layer: torch.compile's max-autotune too.")
    ] = False,
) -> Answer:
    """Time kernels beside what people use today. All are measured in one run on this GPU."""
    from agent.commands import bench as benching

    asked = benching.Asked(
        subjects=tuple(subjects or ()),
        everything=everything,
        shapes=",".join(listed("--shapes", shapes, SIZES)),
        peers=listed("--peers", peers, PEERS),
        backends=tuple(backend or ()),
        protocol=protocol,
        rounds=rounds,
        resume=resume,
        out=out,
        plots=plots,
        tune=tune,
        keep=keep,
        cache_dir=cache_dir,
        parallel=parallel,
        budget_s=budget,
    )
    if layer or tokens is not None or autotune:
        from agent.commands import layer as layering

        return layering.bench(terminal, layering.Asked(tuple(layer or ()), tokens, autotune, asked))
    return benching.bench(terminal, asked)


@command("lint")
def lint(
    terminal: Terminal, task: Annotated[str, typer.Argument(metavar="TASK", help="Id, title or alias.")]
) -> Answer:
    """Try wrong programs on a task. One that the judge would let pass makes the task invalid."""
    from agent.commands import judging

    return judging.lint(terminal, task)


@command("list")
def list_(
    terminal: Terminal,
    what: Annotated[str, typer.Argument(metavar="tasks|examples|kernels|runs", help="What to list.")],
) -> Answer:
    """List tasks, curated examples, kept kernels or runs."""
    from agent.commands import catalogue

    return catalogue.listing(terminal, what)


@command("show")
def show(
    terminal: Terminal,
    name: Annotated[str, typer.Argument(metavar="ID", help="A task, a curated example or a kept kernel.")],
) -> Answer:
    """Show a task, an example or a kernel. It is described, with its formula and source."""
    from agent.commands import catalogue

    return catalogue.show(terminal, name)


@command("replay")
def replay(
    terminal: Terminal, run: Annotated[str, typer.Argument(metavar="RUN", help="A run, by name or folder.")]
) -> Answer:
    """Derive a run's decisions again. Only its recorded evidence is read: nobody is asked, nothing is judged."""
    from agent.commands import author as authoring

    return authoring.replay(terminal, run)


@command("selftest")
def selftest(
    terminal: Terminal,
    full: Annotated[
        bool, typer.Option("--full", help="Every gate this machine can run, and every example; takes minutes.")
    ] = False,
) -> Answer:
    """Run known cheats and honest kernels through the judge. It says what is caught, missed, and falsely refused."""
    from agent.commands import judging

    return judging.selftest(terminal, full)


@command("doctor")
def doctor(terminal: Terminal) -> Answer:
    """Say what this machine and this installation can do. What stands in the way is told too."""
    from agent.commands import doctor as examination

    return examination.doctor(terminal)


def main() -> None:
    """The entry point."""
    app(prog_name="coda-agent")


if __name__ == "__main__":
    main()
