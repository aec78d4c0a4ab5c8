"""What a terminal shows: every meaning in text, colour only where it is wanted, nothing lost when it is narrow."""

from __future__ import annotations

import ast
import io
import re
from pathlib import Path
from typing import Any

import pytest

from agent.commands import render
from agent.commands.terminal import Answer, Exit, Failure, Options, Terminal
from agent.errors import NotConfirmed
from agent.llm.protocol import Usage
from agent.records import GateRecord, Status
from agent.runs.events import (
    Asked,
    Event,
    Judged,
    Judging,
    Kept,
    Replied,
    ReplyUnusable,
    Resumed,
    Started,
    Stopped,
    Warned,
)

pytestmark = pytest.mark.null

ROOT = Path(__file__).parents[3]
PASS = GateRecord(name="static", status=Status.PASS, evidence={"lines": 3}, seconds=0.5)
WRONG = GateRecord(
    name="algebra", status=Status.WRONG_VALUES, reason="output 'dz': factor 2", evidence={"cases": 1}, seconds=2
)
SUSPECT = GateRecord(name="bench", status=Status.SUSPECT, reason="below the floor", evidence={"shapes": []})
ABSENT = GateRecord.not_run("bench", "no GPU")


class Tty(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


def drawn(*items: object, stream: io.StringIO | None = None, color: str = "auto") -> str:
    stream = stream or io.StringIO()
    render.draw(stream, color, items)
    return stream.getvalue()


# gates ----------------------------------------------------------------------------------------------------------------


def test_each_gate_is_one_line_that_can_be_searched() -> None:
    lines = drawn(render.gate_table([PASS, WRONG, ABSENT])).splitlines()
    assert re.fullmatch(r"static +0\.50 +PASS", lines[1])
    assert re.fullmatch(r"algebra +2\.00 +WRONG_VALUES  output 'dz': factor 2", lines[2])
    assert re.fullmatch(r"bench +not run: no GPU", lines[3])
    assert len(lines) == 4


def test_a_long_reason_stays_on_its_line_in_a_pipe() -> None:
    reason = "word " * 60
    lines = drawn(render.gate_table([WRONG.model_copy(update={"reason": reason.strip()})])).splitlines()
    assert len(lines) == 2
    assert lines[1].endswith(reason.strip())


def test_a_narrow_terminal_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "32")
    text = re.sub(r"\x1b\[[0-9;]*m", "", drawn(render.gate_table([PASS, WRONG, ABSENT]), stream=Tty()))
    assert max(map(len, text.splitlines())) <= 32
    squeezed = re.sub(r"\s+", "", text)
    for part in ("WRONG_VALUES", "output'dz':factor2", "notrun:noGPU"):
        assert part in squeezed


@pytest.mark.parametrize(("width", "blocks"), [(40, True), (120, False)])
def test_a_table_of_many_columns_is_blocks_where_the_terminal_is_too_narrow_for_them(
    monkeypatch: pytest.MonkeyPatch, width: int, blocks: bool
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    rows = [{f"column {n}": f"a long word {n}{at}" for n in range(6)} | {"empty": ""} for at in "xy"]
    table = render.table_of(rows, [*rows[0]])
    text = re.sub(r"\x1b\[[0-9;]*m", "", drawn(table, stream=Tty()))
    lines = [line.rstrip() for line in text.splitlines()]
    assert max(map(len, lines)) <= width
    assert ("column 3  a long word 3y" in lines) is blocks
    assert ("" in lines) is blocks  # between rows
    assert all(f"a long word {n}{at}" in text for n in range(6) for at in "xy") or not blocks
    assert len(drawn(table).splitlines()) == 3  # in a pipe a row is a line


def test_a_table_that_fits_is_a_table_however_narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    table = render.table_of([{"a": 1, "b": 2, "c": 3}], ["a", "b", "c"])
    assert len(re.sub(r"\x1b\[[0-9;]*m", "", drawn(table, stream=Tty())).splitlines()) == 2


def test_markup_in_a_message_is_text() -> None:
    """Reasons quote candidates: `[bold]` and `[/x]` must come through, and must not break the table."""
    gate = WRONG.model_copy(update={"reason": "got [bold]x[/] [/nothing] :smile:"})
    assert "got [bold]x[/] [/nothing] :smile:" in drawn(render.gate_table([gate]), "[red]line[/]")
    assert "[red]line[/]" in drawn("[red]line[/]")


def test_an_error_shows_one_hint() -> None:
    gate = WRONG.model_copy(update={"reason": "line 3: widths differ: got a and b\n  hint: unpair(v) halves a width"})
    assert render.reason_and_hint(gate) == ("line 3: widths differ: got a and b", "unpair(v) halves a width")
    assert render.reason_and_hint(WRONG) == ("output 'dz': factor 2", "")


@pytest.mark.parametrize(
    "draw", [render.heading, render.path, render.error_line, lambda t: t, lambda t: render.table_of([{"a": t}], ["a"])]
)
def test_no_text_reaches_the_terminal_as_it_is(draw: Any) -> None:
    shown = drawn(draw("\x1b[2Jx\x9b\u202ey\r\x00"))
    assert r"\x1b[2Jx\x9b\u202ey\r\x00" in shown
    assert drawn("a\n\tb") == "a\n        b\n"  # newlines and tabs are ours


def test_rich_text_is_made_in_one_place() -> None:
    """So that `escaped` cannot be forgotten."""
    tree = ast.parse((ROOT / "agent" / "commands" / "render.py").read_text("utf-8"))
    makers = {
        f.name
        for f in ast.walk(tree)
        if isinstance(f, ast.FunctionDef)
        for call in ast.walk(f)
        if isinstance(call, ast.Call) and ast.unparse(call.func) in ("Text", "Text.assemble", "Text.from_ansi")
    }
    assert makers == {"_text"}


# colour ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("color", "environment", "tty", "coloured"),
    [
        ("auto", {}, True, True),
        ("auto", {}, False, False),
        ("auto", {"NO_COLOR": "1"}, True, False),
        ("auto", {"TERM": "dumb"}, True, False),
        ("auto", {"FORCE_COLOR": "1"}, False, True),
        ("always", {}, False, True),
        ("always", {"NO_COLOR": "1"}, False, True),
        ("never", {"FORCE_COLOR": "1"}, True, False),
    ],
)
def test_colour(
    monkeypatch: pytest.MonkeyPatch, color: str, environment: dict[str, str], tty: bool, coloured: bool
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    text = drawn(render.gate_table([PASS, WRONG, SUSPECT]), stream=Tty() if tty else io.StringIO(), color=color)
    assert bool(re.search(r"\x1b\[[0-9;]*3[0-7]", text)) is coloured
    if color == "never":
        assert "\x1b" not in text + drawn(render.heading("bold"), stream=Tty(), color=color)
    assert "PASS" in text
    assert "SUSPECT" in text


# progress -------------------------------------------------------------------------------------------------------------

GATES = (("static", Status.PASS), ("trace", Status.NOT_RUN))
EVENTS: list[tuple[Event, str | None]] = [
    (
        Started(task="t", llm="replay", model="m", shown=("a", "b"), withheld=("t",)),
        "task t, replay (m), 2 examples shown, withheld t",
    ),
    (Resumed(replies=2, verdicts=1), "resumed: 2 replies and 1 verdict on disk to reuse"),
    (Warned(message="drift"), "warning: drift"),
    (Asked(call=1, round=1, prompt_sha="0", input_tokens=1, reserved_usd=None), None),
    (
        Replied(call=1, round=2, model="m", stop_reason="end", usage=Usage(output_tokens=7), billed=True, cost_usd=0.5),
        "round 2: reply of 7 tokens from m, $0.50",
    ),
    (
        ReplyUnusable(call=1, round=2, problem="no_code", message="no code"),
        "round 2: no kernel in the reply (no_code): no code",
    ),
    (Judging(call=1, round=2, source_sha256="0"), "round 2: judging"),
    (
        Judged(call=1, round=2, status=Status.CRASH, gates=GATES, first_failure="trace", digest=None),  # type: ignore[arg-type]
        "round 2: CRASH  [static PASS  trace -]",
    ),
    (Kept(call=1, id="t/m", path="p", same_program=True), "kept: t/m (the same program was kept already)"),
    (Stopped(stop="goal", reason="passed"), "stopped: passed"),
]


@pytest.mark.parametrize(("event", "line"), EVENTS, ids=lambda x: getattr(x, "kind", ""))
def test_an_event_in_one_line(event: Event, line: str | None) -> None:
    assert render.event_line(event) == line


def test_without_a_terminal_progress_is_plain_lines() -> None:
    said: list[str] = []
    with render.Progress(said.append) as progress:
        for event, _ in EVENTS:
            progress(event)
    assert said[-3:] == [
        "round 2: CRASH  [static PASS  trace -]",
        "kept: t/m (the same program was kept already)",
        "stopped: passed",
    ]
    assert not any("judging" in line for line in said)


def test_a_live_display_leaves_only_the_lines_behind() -> None:
    stream, said = Tty(), []
    with render.Progress(said.append, render.console(stream)) as progress:
        for event, _ in EVENTS:
            progress(event)
    assert said == []
    assert "stopped: passed" in stream.getvalue()


@pytest.mark.parametrize(("usd", "text"), [(None, "cost unknown"), (0.0, "$0.00"), (0.0012, "$0.0012"), (1.5, "$1.50")])
def test_money(usd: float | None, text: str) -> None:
    assert render.money(usd) == text


# terminal -------------------------------------------------------------------------------------------------------------


def test_an_answer_fails_exactly_when_its_code_is_not_zero() -> None:
    with pytest.raises(ValueError, match="exactly"):
        Answer({}, list, Exit.REFUSED)
    with pytest.raises(ValueError, match="exactly"):
        Answer({}, list, failure=Failure("x", "y"))


def test_streams_that_cannot_encode_get_escapes(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(raw, encoding="ascii"))
    Terminal("x").answer(Answer({}, lambda: ["µ 📍 \udc9d"]))
    assert raw.getvalue() == b"\\xb5 \\U0001f4cd \\udc9d\n"


@pytest.mark.parametrize(
    ("typed", "agreed"), [("y\n", True), ("YES\n", True), ("n\n", False), ("\n", False), ("", False)]
)
def test_a_question_on_a_terminal(monkeypatch: pytest.MonkeyPatch, typed: str, agreed: bool) -> None:
    monkeypatch.setattr("sys.stdin", Tty(typed))
    monkeypatch.setattr("sys.stderr", Tty())
    if agreed:
        Terminal("x").confirm("really?", yes=False, hint="--yes")
        return
    with pytest.raises(NotConfirmed, match="not confirmed"):
        Terminal("x").confirm("really?", yes=False, hint="--yes")
    Terminal("x").confirm("really?", yes=True, hint="--yes")
    with pytest.raises(NotConfirmed, match="no terminal"):
        Terminal("x", Options(json=True)).confirm("really?", yes=False, hint="--yes")


def test_a_live_display_needs_a_terminal_and_no_objection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", Tty())
    assert Terminal("x").live is not None
    assert Terminal("x", Options(quiet=True)).live is None
    assert Terminal("x", Options(progress=False)).live is None
    monkeypatch.setattr("sys.stderr", io.StringIO())
    assert Terminal("x").live is None


def test_many_things_are_counted_in_a_bar_or_in_plain_lines_and_what_went_wrong_is_always_told() -> None:
    said: list[str] = []
    with render.Counting(3, said.append, unit="kernel") as counting:
        for at in range(3):
            counting.advance("done", *([f"refused: {at}"] if at == 1 else []))
    assert said == ["refused: 1", "3 of 3 kernels"]  # a line every ten seconds, and the last
    screen = Tty()
    with render.Counting(2, said.append, render.console(screen), unit="kernel") as counting:
        counting.advance("proved: a\x1b[2J")
        counting.advance("x", "refused: b")
    assert "refused: b" in screen.getvalue()
    assert "2 of 2" in screen.getvalue()
    assert "\x1b[2J" not in screen.getvalue()
    assert len(said) == 2


def test_options_before_and_after_the_command_add_up() -> None:
    before, after = Options(json=True, verbose=1, color="never"), Options(verbose=2, progress=False)
    both = before.merged(after)
    assert (both.json, both.verbose, both.color, both.progress) == (True, 2, "never", False)
    assert before.merged(Options(color="always")).color == "always"


def test_every_exit_code_has_a_meaning() -> None:
    assert all(code.meaning for code in Exit)
    assert [code.value for code in Exit] == [0, 1, 2, 3, 4, 5, 6, 7, 130]


def test_rich_is_known_in_one_place() -> None:
    users = []
    for path in [*(ROOT / "agent").rglob("*.py"), *(ROOT / "coda").rglob("*.py"), ROOT / "cli.py"]:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) and node.level == 0 else []
            if any(name.split(".")[0] in ("rich", "click") for name in names):
                users.append(path.relative_to(ROOT).as_posix())
    assert set(users) == {"agent/commands/render.py"}
