"""The commands: values that `cli.py` parsed in, an `Answer` out.

    terminal.py    streams, exit codes, `--json`; `Answer`, `Terminal`
    entry.py       what every command shares: the group, the common options, every way to end
    flags.py       flags that hold a list; how `--help` shows what a command takes
    render.py      tables and progress, with rich
    comparing.py   compare, of kernels that are named
    judging.py     verify lint review promote selftest: what asks the judge or weighs what it found
    tune.py        tune: the fastest schedules here, measured and kept
    bench.py       bench: kernels against every peer on this GPU; measuring for compare --run
    layer.py       bench --layer: whole layers against PyTorch and their matrix products alone
    bank.py        compare --all, verify --all, collect: over every kernel, and over many runs
    author.py      author replay
    catalogue.py   list show
    card.py        a kept kernel on one screen, for show
    doctor.py      doctor and --version: what this machine and this installation can do

Nothing is imported here, so that `--help` stays quick.
"""
