"""The tracing process: what honest kernels get, and what it does with every hostile one.

The hostile candidates here skip the static gate on purpose and start from `ESCAPE`, which gets past the restricted builtins
the way a determined author would; the walls must hold regardless.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import threading
from random import Random

import pytest

from agent.verify import process, tracer
from agent.verify.tracer import TraceLimits, TraceOutcome, trace
from coda.kernel import from_json

pytestmark = pytest.mark.null

HONEST = '''"""Scaled accumulator."""
import coda
from coda.primitives import sigmoid


@coda.epilogue
def kernel(acc):
    """y = acc * sigmoid(acc)"""
    return {"y": acc * sigmoid(acc)}
'''

ESCAPE = HONEST + '\n_import = coda.__builtins__["__import__"]\nos, sys = _import("os"), _import("sys")\n'

LINUX_FILTER = pytest.mark.skipif(
    sys.platform != "linux" or os.uname().machine not in ("x86_64", "aarch64"),
    reason="the system-call filter is for Linux",
)


def run(body: str, **limits: object) -> TraceOutcome:
    """Trace `ESCAPE` and then this body."""
    return trace(ESCAPE + body, limits=TraceLimits.model_validate({"wall_s": 5.0, **limits}))


def code(outcome: TraceOutcome) -> tuple[str, str | None]:
    return outcome.status, outcome.error and outcome.error.code


# ---- honest ----------------------------------------------------------------------------------------------------------


def test_an_honest_kernel_passes_and_the_program_is_what_coda_writes() -> None:
    outcome = trace(HONEST)
    assert outcome.status == "PASS", outcome.error
    assert outcome.program_json is not None
    assert from_json(outcome.program_json).program.to_json() == outcome.program_json
    assert outcome.digest == from_json(outcome.program_json).program.digest
    assert outcome.error is None
    assert outcome.evidence.ending.exit_code == 0


def test_tracing_is_repeatable_and_cheap() -> None:
    first, second = trace(HONEST), trace(HONEST)
    assert first.program_json == second.program_json
    assert min(first.evidence.ending.cpu_s, second.evidence.ending.cpu_s) < 0.5
    assert first.evidence.ending.max_rss_mb < 200


def test_the_walls_that_this_system_has_are_in_the_evidence() -> None:
    layers = trace(HONEST).evidence.layers
    assert "rlimits" in layers
    assert "unprivileged" in layers
    if sys.platform == "linux" and os.uname().machine in ("x86_64", "aarch64"):
        assert "syscalls" in layers
        assert "no-new-privileges" in layers


def test_text_beyond_ascii_is_fine_in_any_locale(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "C")
    assert trace(HONEST.replace("Scaled", "📍 μ-scaled")).ok


def test_parallel_traces_do_not_disturb_each_other() -> None:
    found: list[TraceOutcome] = []
    threads = [threading.Thread(target=lambda: found.append(trace(HONEST))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [outcome.status for outcome in found] == ["PASS"] * 3


PLAN = HONEST.replace("def kernel", "def first").replace("acc * sigmoid(acc)}", "acc * sigmoid(acc)}\n")
PLAN += '@coda.plan\ndef kernel(x, w, v):\n    """Two GEMMs."""\n    return {"z": coda.matmul(first(x, w).y, v)}\n'
VECTOR = HONEST.replace("import sigmoid", "import ColVector, select_column, sigmoid").replace(
    "(acc)", "(acc, t: ColVector)", 1
)


def test_plans_travel_too() -> None:
    outcome = trace(PLAN)
    assert outcome.ok, outcome.error
    assert outcome.program_json is not None
    assert from_json(outcome.program_json).program.gemms == 2


def test_the_digest_is_the_one_of_the_module_imported_normally() -> None:
    for source in (HONEST, PLAN, VECTOR):
        module: dict[str, object] = {}
        exec(source, module)
        assert trace(source).digest == module["kernel"].program.digest  # type: ignore[attr-defined]


def test_integer_operands_of_the_task_are_traced_as_integers() -> None:
    source = VECTOR.replace("acc * sigmoid(acc)}", "acc * sigmoid(acc) * t}")
    plain, whole = (
        trace(source),
        trace(source, operand_dtypes={"t": "int64", "a": "bfloat16", "b": "int8", "unknown": "int32"}),
    )
    assert plain.ok
    assert whole.ok
    assert plain.digest != whole.digest
    assert whole.program_json is not None
    assert '"dtype":"int"' in whole.program_json
    assert trace(source, operand_dtypes={"t": "float32"}).digest == plain.digest


# ---- mistakes --------------------------------------------------------------------------------------------------------


def test_a_syntax_error_that_only_the_compiler_sees_has_its_line() -> None:
    outcome = trace(HONEST + "\nreturn 1\n")
    assert code(outcome) == ("COMPILE_ERROR", "syntax")
    assert outcome.error is not None
    assert outcome.error.line == len(HONEST.splitlines()) + 2


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("1 / 0\n", "ZeroDivisionError"),
        ("assert False, 'no'\n", "AssertionError"),
        ("def f(x):\n    return f(x)\nf(1)\n", "RecursionError"),
        ("open('/etc/passwd')\n", "NameError"),
        ("sys.exit(0)\n", "exit"),
    ],
)
def test_exceptions_come_back_with_class_and_line(body: str, expected: str) -> None:
    outcome = run(body)
    assert code(outcome) == ("RUNTIME_ERROR", expected)
    assert outcome.error is not None
    assert (outcome.error.line or 0) > len(ESCAPE.splitlines())


def test_an_exception_that_cannot_be_printed_is_still_an_answer() -> None:
    cls = 'coda.__builtins__["type"]("E", (coda.__builtins__["Exception"],), {"__str__": lambda self: 1 / 0})'
    assert code(run(f"raise {cls}()\n"))[0] == "RUNTIME_ERROR"


@pytest.mark.parametrize("kind", ["AssertionError", "ValueError"])
def test_what_a_candidate_says_cannot_steer_a_terminal_or_break_a_record(kind: str) -> None:
    said = r"'\x1b]0;title\x07\r\nPASS\n\x1b[2J\u202e\u2028\ud800 \u03bc'"
    cls = "coda.__builtins__['AssertionError']" if kind == "AssertionError" else "coda.__builtins__['ValueError']"
    error = run(f"raise {cls}({said})\n").error
    assert error is not None
    assert error.message.isprintable()
    assert error.message.startswith(f"{kind}: \\x1b]0;title\\x07\\r\\nPASS\\n\\x1b[2J\\u202e\\u2028")
    assert error.message.endswith("μ")
    error.model_dump_json()


def test_a_forged_error_is_shown_harmless_too() -> None:
    odd = r"'\x1b[2J\ud800\x9b'"
    error = f"{{'code': {odd} * 1000, 'message': {odd} * 9000, 'hint': {odd} * 9000, 'line': 1}}"
    document = f"{{'nonce': nonce, 'ok': False, 'layers': [], 'status': 'COMPILE_ERROR', 'error': {error}}}"
    outcome = run(
        STEAL
        + f"DATA = json.dumps({document}).encode()\nos.write(fd_of(), DATA)\nos._exit(0)\n".replace(
            "fd_of()", "frame.f_locals['descriptor']"
        )
    )
    assert outcome.status == "COMPILE_ERROR"
    assert outcome.error is not None
    shown = (outcome.error.code, outcome.error.message, outcome.error.hint or "")
    assert all(text and text.isprintable() and len(text) < 5000 for text in shown)
    outcome.model_dump_json()


def test_a_program_whose_text_cannot_be_encoded_becomes_one_that_can() -> None:
    outcome = trace(HONEST.replace('"""y = acc', r'"""\ud800 y = acc'))
    assert outcome.ok, outcome.error
    assert outcome.program_json is not None
    assert "\ufffd y = acc" in outcome.program_json
    outcome.model_dump_json()
    forged = outcome.program_json.replace("\ufffd", r"\ud800")
    again = tracer._accepted(forged, outcome.evidence)
    assert again.ok
    again.model_dump_json()


@pytest.mark.parametrize("name", ["ζ", "größe", "ﬁx", "変数"])
def test_names_beyond_ascii_work(name: str) -> None:
    source = HONEST.replace(
        '    return {"y": acc * sigmoid(acc)}', f'    {name} = sigmoid(acc)\n    return {{"y": acc * {name}}}'
    )
    assert name in source
    outcome = trace(source)
    assert outcome.ok, outcome.error
    assert outcome.digest == trace(HONEST).digest


def test_named_characters_work_too() -> None:
    assert trace(HONEST.replace("Scaled", r"\N{GREEK SMALL LETTER ZETA}")).ok


@pytest.mark.parametrize(
    ("body", "hint"),
    [
        ("for i in range(10 ** 12): pass\n", "loops over constants must be short"),
        ("x = [0] * (10 ** 11)\n", "do not build large Python objects"),
        ("def f(x):\n    return f(x)\nf(1)\n", "a function that calls itself must end"),
        ("(1, 2)[3]\n", "as many elements as the primitive has results"),
        ("1 / 0\n", "a constant of that line is 0"),
        ("2.0 ** 10000\n", "too large"),
        ("{}['a']\n", "the key is not in it"),
        ("assert False\n", "an assertion of the file"),
        ("len(3)\n", "wrong arguments"),
        ("(1).x\n", "no methods"),
        ("coda.__builtins__['eval']('1 +')\n", "a kernel file is run once"),
    ],
)
def test_every_python_error_and_limit_says_what_to_change(body: str, hint: str) -> None:
    error = run(body, wall_s=2.0).error
    assert error is not None
    assert hint in (error.hint or "")
    assert not error.message.rstrip().endswith(":")


def test_a_long_message_is_cut() -> None:
    outcome = run("raise coda.__builtins__['ValueError']('x' * 10**6)\n")
    assert outcome.error is not None
    assert 1000 < len(outcome.error.message) < 3000


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("acc * row_sum(acc)", "tile-local"),
        ("acc if acc > 0 else 0 * acc", "control-flow"),
        ("unpair(unpair(acc)[0])[0]", "width"),
        ("3", "outputs"),
    ],
)
def test_mistakes_that_coda_names_keep_its_code_its_hint_and_the_line(value: str, expected: str) -> None:
    source = HONEST.replace("import sigmoid", "import row_sum, sigmoid, unpair").replace(
        "acc * sigmoid(acc)}", value + "}"
    )
    outcome = trace(source)
    assert code(outcome) == ("COMPILE_ERROR", expected), outcome.error
    assert outcome.error is not None
    if expected != "outputs":  # that one is about the whole function
        assert outcome.error.line == 9
        assert outcome.error.hint


def test_a_name_that_the_primitives_lack_is_a_mistake_without_our_paths() -> None:
    outcome = trace(HONEST.replace("sigmoid", "sigmiod"))
    assert code(outcome) == ("COMPILE_ERROR", "import")
    assert outcome.error is not None
    assert "sigmiod" in outcome.error.message
    assert "/" not in outcome.error.message


@pytest.mark.parametrize(
    "line", ["import os", "import torch", "from coda import ops", "from coda.primitives.value import OPS"]
)
def test_imports_outside_the_list_are_policy_even_without_the_static_gate(line: str) -> None:
    assert code(trace(HONEST + f"\n{line}\n")) == ("POLICY", "import-refused")


def test_a_file_without_kernel_is_an_error() -> None:
    outcome = trace(HONEST.replace("def kernel", "def other"))
    assert code(outcome) == ("RUNTIME_ERROR", "NameError")
    assert "kernel" in str(outcome.error)


# ---- hostile: time, memory, output -----------------------------------------------------------------------------------


def test_an_endless_loop_hits_the_wall_limit() -> None:
    outcome = run("while True: pass\n", wall_s=0.7)
    assert code(outcome) == ("TIMEOUT", "wall-limit")
    assert outcome.evidence.ending.seconds < 4


def test_an_endless_loop_hits_the_cpu_limit() -> None:
    assert code(run("while True: pass\n", cpu_s=1)) == ("TIMEOUT", "cpu-limit")


def test_a_loop_that_ignores_the_soft_cpu_signal_is_killed_too() -> None:
    ignore = "signal = _import('_signal')\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\n"
    assert code(run(ignore + "while True: pass\n", cpu_s=1)) == ("TIMEOUT", "cpu-limit")


def test_ten_gigabytes_are_refused() -> None:
    assert code(run("x = bytearray(10 * 2**30)\n".replace("bytearray", "coda.__builtins__['bytearray']"))) == (
        "CRASH",
        "memory-limit",
    )


def test_a_flood_of_output_is_cut_and_the_kernel_is_still_judged() -> None:
    trace(HONEST)  # what the first call imports does not count
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    flood = "for i in range(200): os.write(1 + i % 2, b'x' * 2**20)\nos.write(2, b'last words')\n"
    outcome = run(flood, output_mb=256)
    assert outcome.status == "PASS"
    err = outcome.evidence.ending.stderr
    assert err.total_bytes > 90 * 2**20
    assert len(err.head) <= 4096
    assert err.tail.endswith("last words")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 40 * 1024


@pytest.fixture
def marks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The marks of every child that a test starts: what carries one belongs to it."""
    found: list[str] = []
    real = process.Child.__init__

    def remember(self: process.Child, *args: object, **kwargs: object) -> None:
        real(self, *args, **kwargs)  # type: ignore[arg-type]
        found.append(self.mark)

    monkeypatch.setattr(process.Child, "__init__", remember)
    return found


def test_two_hundred_megabytes_of_output_end_it_by_default(marks: list[str]) -> None:
    outcome = run("for i in range(200): os.write(1 + i % 2, b'x' * 2**20)\n")
    assert code(outcome) == ("CRASH", "output-limit")
    ending = outcome.evidence.ending
    assert ending.killed == "output"
    assert ending.stdout.total_bytes + ending.stderr.total_bytes < 64 * 2**20
    assert outcome.error is not None
    assert outcome.error.hint == "print nothing: nobody reads the output of a kernel file"
    assert process.marked(marks[0]) == []


@pytest.mark.parametrize("syscall_filter", [True, False])
def test_a_fork_bomb_in_the_child_forks_nothing(marks: list[str], syscall_filter: bool) -> None:
    """Both walls by themselves; a bomb that does not mind the refusals is ended by the clock."""
    bomb = "while True:\n    try:\n        os.fork()\n    except coda.__builtins__['OSError']:\n        pass\n"
    outcome = run(bomb, syscall_filter=syscall_filter, wall_s=1.5)
    assert code(outcome) == ("TIMEOUT", "wall-limit")
    assert outcome.evidence.ending.leftovers == 0
    assert process.marked(marks[0]) == []


def test_output_beyond_the_cap_ends_it() -> None:
    assert code(run("while True: os.write(1, b'x' * 65536)\n", output_mb=8)) == ("CRASH", "output-limit")


# ---- hostile: endings ------------------------------------------------------------------------------------------------


def test_the_success_word_and_exit_0_are_not_an_answer() -> None:
    outcome = run("os.write(1, b'PASS {\"ok\": true}')\nos._exit(0)\n")
    assert code(outcome) == ("TAMPERED", "no-answer")


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("os._exit(3)\n", "exit-code"),
        ("os.abort()\n", "SIGABRT"),
        ("os.kill(os.getpid(), 9)\n", "SIGKILL"),
        ("os.kill(os.getpid(), 11)\n", "SIGSEGV"),
    ],
)
def test_other_ends_are_crashes(body: str, expected: str) -> None:
    assert code(run(body)) == ("CRASH", expected)


# ---- hostile: forged answers -----------------------------------------------------------------------------------------

EVERYWHERE = "for fd in range(3, 64):\n    try:\n        os.write(fd, DATA)\n    except coda.__builtins__['OSError']:\n        pass\n"


def test_a_forged_answer_without_the_nonce() -> None:
    forged = 'DATA = b\'{"nonce": "0", "ok": true, "program": "{}"}\'\n' + EVERYWHERE + "os._exit(0)\n"
    assert code(run(forged)) == ("TAMPERED", "bad-nonce")


def test_a_forged_answer_before_the_real_one() -> None:
    forged = 'DATA = b\'{"nonce": "0", "ok": true, "program": "{}"}\'\n' + EVERYWHERE
    assert code(run(forged)) == ("TAMPERED", "bad-document")


@pytest.mark.parametrize(
    "data",
    ["b'\\x80\\x04N.'", "b'[' * 100000", "b'{\"a\": NaN}'", 'b\'{"nonce": 1, "nonce": 2}\'', "b'[1]'", "b'\\xff\\xfe'"],
)
def test_bytes_that_are_not_one_document(data: str) -> None:
    assert code(run(f"DATA = {data}\n" + EVERYWHERE + "os._exit(0)\n")) == ("TAMPERED", "bad-document")


def test_an_answer_beyond_the_cap() -> None:
    outcome = run(
        "DATA = b'x' * 65536\nfor i in range(64):\n    " + EVERYWHERE.replace("\n", "\n    ") + "\nos._exit(0)\n"
    )
    assert code(outcome) == ("TAMPERED", "answer-limit")


STEAL = (
    "frame = sys._getframe()\n"
    "while 'request' not in frame.f_locals: frame = frame.f_back\n"
    "nonce, json = frame.f_locals['request']['nonce'], _import('json')\n"
)


def test_a_stolen_nonce_on_something_that_is_no_program() -> None:
    body = STEAL + "DATA = json.dumps({'nonce': nonce, 'ok': True, 'program': '{\"kind\": \"epilogue\"}'}).encode()\n"
    outcome = run(body + EVERYWHERE + "os._exit(0)\n")
    assert outcome.status == "TAMPERED"
    assert outcome.program_json is None


def test_damaged_programs_never_trip_the_judge() -> None:
    text = trace(PLAN).program_json or ""
    evidence = trace(HONEST).evidence
    random = Random(7)
    for _ in range(300):
        at, length = random.randrange(len(text)), random.choice([0, 1, 1, 2, 5, 40])
        damaged = (
            text[:at] + random.choice(["", "0", "null", "[]", "{}", '"', "-1", "1e999", "true"]) + text[at + length :]
        )
        assert tracer._accepted(damaged, evidence).status in ("PASS", "TAMPERED")
    for odd in ("", "null", "[]", "{}", "[" * 100_000, '{"format":"coda.plan/1"}', '{"format":3}', "\udc9d"):
        assert tracer._accepted(odd, evidence).status == "TAMPERED"


def test_a_stolen_nonce_on_a_status_word_of_the_judge() -> None:
    body = STEAL + "DATA = json.dumps({'nonce': nonce, 'ok': False, 'status': 'PASS'}).encode()\n"
    assert code(run(body + EVERYWHERE + "os._exit(0)\n")) == ("TAMPERED", "bad-document")


# ---- hostile: reaching out -------------------------------------------------------------------------------------------


def test_the_environment_has_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-very-secret")
    outcome = run("os.write(1, ascii(os.environ).encode())\n".replace("ascii", "coda.__builtins__['repr']"))
    printed = outcome.evidence.ending.stdout.text
    assert "LC_ALL" in printed
    assert "sk-very-secret" not in printed
    assert "HOME" not in printed


@LINUX_FILTER
@pytest.mark.parametrize(
    "attempt",
    [
        "os.open('/proc/%d/environ' % os.getppid(), 0)",
        "os.open('/etc/hostname', 0)",
        "os.open('/tmp/coda-must-not-exist', os.O_CREAT | os.O_WRONLY)",
        "os.fork()",
        "os.execv('/bin/true', ['true'])",
        "os.kill(os.getppid(), 9)",
        "os.kill(-1, 9)",
        "os.kill(0, 9)",
        "os.setsid()",
        "os.unlink('/tmp/nothing')",
        "os.pipe()",
        "_import('_thread').start_new_thread(len, ())",
    ],
)
def test_system_calls_outside_the_list_fail(attempt: str) -> None:
    outcome = run(attempt + "\n")
    assert outcome.status == "RUNTIME_ERROR", outcome
    assert outcome.error is not None
    assert outcome.error.code in ("PermissionError", "RuntimeError")


def test_processes_are_refused_without_the_system_call_filter_too() -> None:
    bomb = "for i in range(10): os.fork()\n"
    outcome = run(bomb, syscall_filter=False)
    assert code(outcome) == ("RUNTIME_ERROR", "BlockingIOError")
    assert "syscalls" not in outcome.evidence.layers


def test_other_packages_are_not_on_the_path() -> None:
    outcome = run("_import('torch')\n", syscall_filter=False)
    assert code(outcome) == ("RUNTIME_ERROR", "ModuleNotFoundError")


def test_files_cannot_be_written_without_the_system_call_filter_either() -> None:
    body = "import_open = coda.__builtins__['open']\nf = import_open('/tmp/coda-judge-write-test', 'w')\nf.write('x')\nf.close()\n"
    assert run(body, syscall_filter=False).status == "RUNTIME_ERROR"
    path = "/tmp/coda-judge-write-test"
    if os.path.exists(path):
        assert os.path.getsize(path) == 0
        os.unlink(path)


@pytest.mark.parametrize(
    "body", ["while True: pass\n", "for i in range(10): os.fork()\n", "os.kill(-1, 9)\n", "os._exit(0)\n", "x = 1\n"]
)
def test_nothing_is_left_running_and_nobody_else_is_hit(body: str, marks: list[str]) -> None:
    sibling = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        run(body, wall_s=0.7)
        assert len(marks) == 1
        assert process.marked(marks[0]) == []
        assert sibling.poll() is None
    finally:
        sibling.kill()
        sibling.wait()
