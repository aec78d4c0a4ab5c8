"""The throw-away process that runs a candidate's Python once and answers with the program that it wrote.

Started by `tracer.py` as `python -s -P -S -B trace_child.py DESCRIPTOR CODA_FOLDER`, with an environment built from
nothing. Standard library and `coda` only; torch and the other packages are not even on the path. In order:

1. read the request from stdin: nonce, source, operand dtypes, limits;
2. import everything that tracing needs, then give up files, processes, network, memory and privileges (`confine.py`);
3. run the source as a module named `candidate`, with the builtins and imports of `vocabulary.py` and no others;
4. take the program of `kernel` and write one JSON document to the private descriptor.

The document is the candidate's word (it ran in this very process): `tracer.py` treats it as data.
"""

from __future__ import annotations

import builtins
import importlib
import importlib.util
import json
import linecache
import os
import pathlib
import sys
import types
from typing import Any

PRELOAD = ("coda.primitives", "coda.program", "coda.plan", "coda.kernel")
PRELOAD_LIBRARY = (
    "math",
    "difflib",
    "inspect",
    "hashlib",
    "textwrap",
    "fractions",
    "decimal",
    "typing",
    "warnings",
    "ast",
    "unicodedata",  # the compiler's, for names beyond ASCII: it could not be opened later
)
MESSAGE_CHARS = 2000
ONCE = "a kernel file is run once, before there are any tensors"
HINTS: dict[str, str] = {
    "RecursionError": f"{ONCE}: a function that calls itself must end after a few steps; use a short `for` over a `range`",
    "MemoryError": "do not build large Python objects (lists, text, huge integers): a kernel holds numbers and traced values",
    "IndexError": "count what the line unpacks or indexes: tuples have as many elements as the primitive has results",
    "KeyError": "look at the dict of that line: the key is not in it",
    "ZeroDivisionError": f"{ONCE}: a constant of that line is 0; sizes are rows() and columns(), which are traced values",
    "OverflowError": "a constant of that line is too large for Python's arithmetic: write it in a form that stays small",
    "ValueError": "look at the constants of that line: Python refuses them (unpacking a wrong number of results, math of a number outside its domain)",
    "TypeError": "look at how that line calls or combines: wrong arguments, or Python objects that do not go together",
    "AttributeError": "traced values have operators and no methods: use the primitives, as in sqrt(x), row_sum(x); those that give two "
    "values are unpacked, as in mean, variance = row_moments(x)",
    "NameError": "define the name before that line runs; `kernel` is the decorated function",
    "UnboundLocalError": "assign the name on every way to that line",
    "AssertionError": "an assertion of the file itself does not hold while it is traced: correct it or remove it",
    "SystemExit": "a kernel file only defines things: it must not end the process",
}
"""What to change, by class of a Python exception."""


class ImportRefused(ImportError):
    """A kernel file asked for a module that is not its to use."""


def load(name: str, path: pathlib.Path, *, package: bool = False) -> types.ModuleType:
    """Import one file, or one package folder, under this name without putting anything on the path."""
    file = path / "__init__.py" if package else path
    where = [str(path)] if package else None
    spec = importlib.util.spec_from_file_location(name, file, submodule_search_locations=where)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def namespace(vocabulary: types.ModuleType) -> types.ModuleType:
    """An empty module for the candidate, whose builtins and imports are the vocabulary's."""
    real_import = builtins.__import__

    def guarded(name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:
        if level or name not in vocabulary.IMPORTS:
            raise ImportRefused(f"a kernel file imports only {', '.join(vocabulary.IMPORTS[:-1])}, not {name}")
        if name == "coda":
            for item in fromlist or ():
                if item not in vocabulary.CODA_NAMES:
                    raise ImportRefused(
                        f"a kernel file takes only {', '.join(vocabulary.CODA_NAMES)} from coda, not {item}"
                    )
        return real_import(name, globals, locals, fromlist, level)

    module = types.ModuleType("candidate")
    allowed = {
        name: getattr(builtins, name)
        for name in (*vocabulary.BUILTINS, "True", "False", "None")
        if hasattr(builtins, name)
    }
    vars(module)["__builtins__"] = {**allowed, "AssertionError": AssertionError, "__import__": guarded}
    sys.modules["candidate"] = module
    return module


def program_of(source: str, filename: str, operand_dtypes: dict[str, str] | None, module: types.ModuleType) -> str:
    """Run the source and return the JSON of the program of its `kernel`."""
    lines = source.splitlines(keepends=True)
    linecache.cache[filename] = (len(source), None, lines, filename)
    exec(compile(source, filename, "exec", dont_inherit=True), vars(module))  # noqa: S102 - what this process is for
    kernel = vars(module).get("kernel")
    if kernel is None:
        raise NameError("the file defines no `kernel`")
    text = _program(kernel, operand_dtypes or {}).to_json()
    if not isinstance(text, str):
        raise TypeError("the program did not serialise to text")
    return text


def _program(kernel: Any, operand_dtypes: dict[str, str]) -> Any:
    """The kernel's program, traced again where the task binds integers to operands that could hold either."""
    program = kernel.program
    inputs = getattr(program, "inputs", None)
    vectors = (
        [name for name, *_ in inputs] if inputs is not None else [o.name for o in program.operands if o.kind != "tile"]
    )
    whole = {n: "int" for n in vectors if operand_dtypes.get(n, "").startswith(("int", "uint"))}
    return kernel.specialise(whole) if whole else program


def explain(error: BaseException, filename: str) -> tuple[str, dict[str, Any]]:
    """A status word, and the error in parts: code, message, hint, line of the candidate."""
    what, hint = getattr(error, "what", None), getattr(error, "hint", None)
    if what is not None and hasattr(error, "to_dict"):
        code, message = str(error.code), _facts(error)  # type: ignore[attr-defined]
        return "COMPILE_ERROR", _error(code, message, hint, _line(error, filename))
    status, code = "RUNTIME_ERROR", type(error).__name__
    hint = hint or next((HINTS[kind.__name__] for kind in type(error).__mro__ if kind.__name__ in HINTS), ONCE)
    if isinstance(error, ImportRefused):
        status, code = "POLICY", "import-refused"
        hint = "build the kernel from coda.primitives; a missing capability is a new primitive"
    elif isinstance(error, SyntaxError) and error.filename == filename:
        return "COMPILE_ERROR", _error("syntax", str(error.msg), None, error.lineno)
    elif isinstance(error, ImportError) and not isinstance(error, ModuleNotFoundError):
        hint = getattr(error, "hint", None)
        found = f"{error.name or 'the module'} has no such name: {str(error).partition(' (')[0]}"  # without our paths
        return "COMPILE_ERROR", _error("import", found, hint, _line(error, filename))
    elif isinstance(error, MemoryError):
        return "CRASH", _error("memory-limit", "while tracing: memory is full", hint, _line(error, filename))
    elif isinstance(error, SystemExit):
        code = "exit"
    said = str(error)
    message = f"{type(error).__name__}: {said}" if said else f"{type(error).__name__}, raised without a text"
    return status, _error(code, message, hint, _line(error, filename))


def _facts(error: Any) -> str:
    facts = [
        f"{name} {value}" for name, value in (("got", error.got), ("expected", error.expected)) if value is not None
    ]
    return f"{error.what}: {', '.join(facts)}" if facts else str(error.what)


def _error(code: str, message: str, hint: str | None, line: int | None) -> dict[str, Any]:
    short = message if len(message) <= MESSAGE_CHARS else message[:MESSAGE_CHARS] + "…"
    return {"code": code[:80], "message": short, "hint": hint and hint[:MESSAGE_CHARS], "line": line}


def _line(error: BaseException, filename: str) -> int | None:
    """The innermost line of the candidate on the way to the error."""
    found, step = None, error.__traceback__
    while step is not None:
        if step.tb_frame.f_code.co_filename == filename:
            found = step.tb_lineno
        step = step.tb_next
    where = str(getattr(error, "where", None) or "")  # what `coda` itself says: it knows the line of a whole expression
    name, _, number = where.rpartition(":")
    return int(number) if number.isdigit() and name.endswith(filename) else found


def main() -> None:
    """Read, confine, run, answer, leave."""
    descriptor, coda_folder = int(sys.argv[1]), pathlib.Path(sys.argv[2])
    request = json.loads(sys.stdin.buffer.read())
    os.close(0)
    os.open(os.devnull, os.O_RDONLY)
    answer: dict[str, Any] = {"nonce": request["nonce"], "ok": False, "layers": []}
    try:
        here = pathlib.Path(__file__).parent
        vocabulary, walls = load("vocabulary", here / "vocabulary.py"), load("confine", here / "confine.py")
        load("coda", coda_folder, package=True)
        for name in (*PRELOAD_LIBRARY, *PRELOAD):
            importlib.import_module(name)
        answer["layers"] = walls.confine(request["confine"])
    except BaseException as error:  # ours, not the candidate's
        answer |= {
            "status": "INFRA_ERROR",
            "error": _error("tracing-process", f"{type(error).__name__}: {error}", None, None),
        }
        reply(descriptor, answer)
    try:
        module = namespace(vocabulary)
        text = program_of(request["source"], request["filename"], request["operand_dtypes"], module)
        answer |= {"ok": True, "program": text}
    except BaseException as error:  # whatever a candidate raises is an answer
        try:
            status, parts = explain(error, request["filename"])
        except BaseException as second:  # an exception of its own making that cannot be shown
            status, parts = (
                "RUNTIME_ERROR",
                _error(type(second).__name__, "the error could not be described", None, None),
            )
        answer |= {"status": status, "error": parts}
    reply(descriptor, answer)


def reply(descriptor: int, answer: dict[str, Any]) -> None:
    """Write the one document and end without running anything else of the candidate's (exit handlers, finalisers)."""
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:  # noqa: S110 - its streams are its own affair
        pass
    data = json.dumps(answer).encode("ascii")
    while data:
        data = data[os.write(descriptor, data) :]
    os._exit(0)


if __name__ == "__main__":
    main()
