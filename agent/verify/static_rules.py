"""The rules of the static gate on the syntax tree: shape of the file, statements, names and attributes.

`static.py` has the table of all rules, has already bounded the tree, and calls `check_tree`. Three passes, each a small
class or function: `_Scope` (which names the file defines), `_shape` (the file's grammar) and `_Walk` (everything else).
The rules are an allow list wherever one is possible: statements, builtins, imports and modules' attributes. Attributes
of values cannot be listed, because a result's fields are named by the author; they are barred by form instead.
"""

from __future__ import annotations

import ast
import builtins
import difflib
import math
from collections.abc import Iterable
from typing import Literal

from . import vocabulary
from .process import Frozen

Status = Literal["COMPILE_ERROR", "POLICY"]

_HONEST = ("S001", "S002", "S007", "S103", "S104", "S105", "S106", "S107", "S108", "S111", "S207", "S208", "S211",
           "S303")  # fmt: skip
_BARRED = ("S003", "S004", "S005", "S006", "S101", "S102", "S109", "S110", "S201", "S202", "S203", "S204", "S205",
           "S206", "S209", "S210", "S212", "S301", "S302", "S304", "S305", "S306")  # fmt: skip
RULES: dict[str, Status] = {**dict.fromkeys(_HONEST, "COMPILE_ERROR"), **dict.fromkeys(_BARRED, "POLICY")}
"""Every rule id and the status word that it gives."""


class Finding(Frozen):
    """One place that breaks one rule, and what to change there."""

    rule: str
    status: Status
    line: int
    column: int
    message: str

    @classmethod
    def of(cls, rule: str, line: int, column: int, message: str) -> Finding:
        """A finding with the rule's own status word."""
        return cls(rule=rule, status=RULES[rule], line=line, column=column, message=message[:500])


def check_tree(tree: ast.Module, text: str) -> list[Finding]:
    """All findings on a parsed kernel file."""
    scope = _Scope(tree)
    walk = _Walk(scope)
    walk.visit(tree)
    return [*_shape(tree, scope), *walk.findings]


def _at(node: ast.AST, rule: str, message: str) -> Finding:
    return Finding.of(rule, getattr(node, "lineno", 1), getattr(node, "col_offset", 0), message)


def _near(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=3, cutoff=0.6)
    return f"; did you mean {' or '.join(close)}?" if close else ""


def primitives() -> tuple[str, ...]:
    """The closed list of `coda.primitives`."""
    from coda.primitives import NAMES

    return NAMES


def offered(module: str) -> tuple[str, ...]:
    """What a kernel file may take from a module that it may import."""
    if module == "coda":
        return vocabulary.CODA_NAMES
    if module == "coda.primitives":
        return primitives()
    if module == "math":
        return tuple(name for name in dir(math) if not name.startswith("_"))
    return ("annotations",)  # of __future__


class _Scope:
    """Names bound at the top level of the file, and which of them are modules or decorators."""

    def __init__(self, tree: ast.Module) -> None:
        self.bound = _bound_in(tree.body)
        self.modules: dict[str, str] = {}
        self.decorators: dict[str, str] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                self._import(node)
            elif isinstance(node, ast.ImportFrom):
                self._import_from(node)

    def _import(self, node: ast.Import) -> None:
        for alias in node.names:
            name = alias.asname or alias.name.split(".")[0]
            self.modules[name] = alias.name if alias.asname else name

    def _import_from(self, node: ast.ImportFrom) -> None:
        for alias in node.names:
            name = alias.asname or alias.name
            if node.module == "coda" and alias.name == "primitives":
                self.modules[name] = "coda.primitives"
            elif node.module == "coda" and alias.name in vocabulary.DECORATORS:
                self.decorators[name] = alias.name

    def module_of(self, node: ast.expr) -> str | None:
        """The module that an expression is, if it is one: `coda`, `math`, `coda.primitives`, or an alias of them."""
        if isinstance(node, ast.Name):
            return self.modules.get(node.id)
        if isinstance(node, ast.Attribute) and node.attr == "primitives" and self.module_of(node.value) == "coda":
            return "coda.primitives"
        return None

    def is_decorator(self, node: ast.expr) -> bool:
        """Whether an expression is `coda.epilogue`, `coda.pointwise` or `coda.plan`."""
        return self.decorator_name(node) != ""

    def decorator_name(self, node: ast.expr) -> str:
        """Which of them it is; empty for anything else."""
        if isinstance(node, ast.Name):
            return self.decorators.get(node.id, "")
        of_coda = isinstance(node, ast.Attribute) and self.module_of(node.value) == "coda"
        return node.attr if of_coda and node.attr in vocabulary.DECORATORS else ""  # type: ignore[attr-defined]


_Comprehension = ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp
_OWN_SCOPE = (
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.Lambda,
    ast.ListComp,
    ast.SetComp,
    ast.GeneratorExp,
    ast.DictComp,
)


def _bound_in(body: Iterable[ast.AST]) -> set[str]:
    """Names that these nodes bind in their own scope, not in a function or comprehension inside them."""
    found: set[str] = set()
    waiting = list(body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            found.add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found.update(alias.asname or alias.name.split(".")[0] for alias in node.names)
        if not isinstance(node, _OWN_SCOPE):
            waiting.extend(ast.iter_child_nodes(node))
    return found


# ---- shape of the file -----------------------------------------------------------------------------------------------


def _shape(tree: ast.Module, scope: _Scope) -> list[Finding]:
    """Rules S104 to S108: docstring, allowed top-level statements, and exactly one `kernel`."""
    findings = []
    if not ast.get_docstring(tree):
        findings.append(Finding.of("S104", 1, 0, "start the file with a docstring that says what the kernel computes"))
    bindings: dict[str, list[ast.stmt]] = {}
    for index, statement in enumerate(tree.body):
        names = _bindings(statement)
        if names is None:
            if index or not _is_text(statement):
                findings.append(_at(statement, "S105", _top_level_message(statement)))
        else:
            for name in names:
                bindings.setdefault(name, []).append(statement)
    for name, places in bindings.items():
        functions = [place for place in places if isinstance(place, ast.FunctionDef)]
        if len(places) > 1 and (functions or name == "kernel"):
            first = places[0].lineno
            findings.append(_at(places[1], "S107", f"{name} is already bound in line {first}: bind it once"))
    return findings + _kernel(tree, bindings, scope)


def _is_text(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def _bindings(statement: ast.stmt) -> list[str] | None:
    """Names that an allowed top-level statement binds; None for a statement that is not allowed there."""
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return [alias.asname or alias.name.split(".")[0] for alias in statement.names]
    if isinstance(statement, ast.FunctionDef):
        return [statement.name]
    if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name) and statement.value is not None:
        return [statement.target.id]
    if isinstance(statement, ast.Assign):
        targets = [
            name
            for target in statement.targets
            for name in (target.elts if isinstance(target, ast.Tuple) else [target])
        ]
        return [name.id for name in targets if isinstance(name, ast.Name)]
    if isinstance(statement, ast.ClassDef | ast.AsyncFunctionDef | ast.With | ast.AsyncWith | ast.Try | ast.TryStar):
        return []  # rules S201 to S206 name them better
    return None


def _top_level_message(statement: ast.stmt) -> str:
    if _is_text(statement):
        return "text in the middle of the file: write a comment (#)"
    if isinstance(statement, ast.If):
        return "`if` at the top level: a kernel file only defines things; put it into the function, over constants"
    return f"{type(statement).__name__} at the top level: only docstring, imports, constants and functions belong there"


def _kernel(tree: ast.Module, bindings: dict[str, list[ast.stmt]], scope: _Scope) -> list[Finding]:
    """Rules S106 and S108."""
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    decorated = [
        name for name, node in functions.items() if any(map(scope.is_decorator, map(_callee, node.decorator_list)))
    ]
    if "kernel" not in bindings:
        if decorated:
            choice = decorated[-1] if len(decorated) == 1 else " or ".join(decorated)
            message = f"the file defines no `kernel`: add `kernel = {choice}` as its last line"
        elif functions:
            last = next(reversed(functions))
            message = f"the file defines no `kernel`: decorate {last} with @coda.epilogue and name it kernel"
        else:
            message = (
                "the file defines no `kernel`: write a function under @coda.epilogue, @coda.pointwise or @coda.plan"
            )
        return [Finding.of("S106", max((node.end_lineno or 1 for node in tree.body), default=1), 0, message)]
    statement, name = bindings["kernel"][-1], "kernel"
    aliases = {**_aliases(tree)}
    for _ in range(len(aliases) + 1):
        if name in functions and name in decorated:
            return []
        if name in functions:
            return [
                _at(statement, "S108", f"{name} has no decorator: add @coda.epilogue, @coda.pointwise or @coda.plan")
            ]
        if name not in aliases:
            break
        name = aliases[name]
    return [_at(statement, "S108", "`kernel` must be a decorated function of this file: `kernel = its_name`")]


def _aliases(tree: ast.Module) -> dict[str, str]:
    """Top-level `a = b` between names."""
    found = {}
    for statement in tree.body:
        if isinstance(statement, ast.Assign | ast.AnnAssign) and isinstance(statement.value, ast.Name):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            found.update({target.id: statement.value.id for target in targets if isinstance(target, ast.Name)})
    return found


def _callee(decorator: ast.expr) -> ast.expr:
    return decorator.func if isinstance(decorator, ast.Call) else decorator


# ---- everything inside -----------------------------------------------------------------------------------------------

_STATEMENTS: dict[type[ast.AST], tuple[str, str]] = {
    ast.ClassDef: ("S201", "classes are not part of a kernel file: use functions over values"),
    ast.Try: ("S202", "no `try`: a kernel has one way to compute, and mistakes must surface"),
    ast.TryStar: ("S202", "no `try`: a kernel has one way to compute, and mistakes must surface"),
    ast.Raise: ("S202", "no `raise`: coda checks shapes and types itself"),
    ast.With: ("S203", "no `with`: nothing in a kernel is opened or entered"),
    ast.AsyncWith: ("S203", "no `with`: nothing in a kernel is opened or entered"),
    ast.Global: ("S204", "no `global`: pass values as arguments and return them"),
    ast.Nonlocal: ("S204", "no `nonlocal`: pass values as arguments and return them"),
    ast.Lambda: ("S205", "no `lambda`: write a helper function, its name tells the reviewer what it does"),
    ast.AsyncFunctionDef: ("S206", "no `async`: a kernel is a plain function"),
    ast.AsyncFor: ("S206", "no `async`: a kernel is a plain function"),
    ast.Await: ("S206", "no `await`: a kernel is a plain function"),
    ast.Yield: ("S206", "no `yield`: return the outputs"),
    ast.YieldFrom: ("S206", "no `yield`: return the outputs"),
    ast.NamedExpr: ("S207", "no `:=`: assign in a statement of its own"),
    ast.While: ("S208", "no `while`: use `for` over a `range`, so that the number of steps is known"),
    ast.Delete: ("S209", "no `del`: nothing has to be released"),
    ast.Match: ("S209", "no `match`: use `if` over constants"),
    ast.Set: ("S211", "no set: its order is not defined; use a tuple"),
    ast.SetComp: ("S211", "no set: its order is not defined; use a list"),
}


class _Walk(ast.NodeVisitor):
    """Rules S101 to S103, S109 and from S201 on. Recursion is safe: the tree's depth is already bounded."""

    def __init__(self, scope: _Scope) -> None:
        self.scope = scope
        self.findings: list[Finding] = []
        self._functions = 0
        self._scopes = [scope.bound]
        self._named_modules: set[int] = set()

    def _add(self, node: ast.AST, rule: str, message: str) -> None:
        self.findings.append(_at(node, rule, message))

    def visit(self, node: ast.AST) -> None:
        """Apply the table of refused nodes, then the rules for this kind of node."""
        if type(node) in _STATEMENTS:
            self._add(node, *_STATEMENTS[type(node)])
        elif type(node).__name__ in ("TypeAlias", "TypeVar", "ParamSpec", "TypeVarTuple"):
            self._add(node, "S209", "no type parameters: values have the types that coda gives them")
        super().visit(node)

    # imports

    def visit_Import(self, node: ast.Import) -> None:
        """`import x as y`."""
        self._only_at_top(node)
        for alias in node.names:
            if alias.name not in vocabulary.IMPORTS[:-1]:
                self._add(node, "S101", _import_message(alias.name))
            self._check_bound_name(node, alias.asname)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        """`from x import y as z`."""
        self._only_at_top(node)
        module = "." * node.level + (node.module or "")
        if module not in vocabulary.IMPORTS:
            self._add(node, "S101", _import_message(module))
            return
        for alias in node.names:
            if alias.name == "*":
                self._add(node, "S102", f"no `import *`: name what you use from {module}")
            elif alias.name not in offered(module):
                self._add(
                    node, "S103", f"{module} has no {alias.name} for kernel files{_near(alias.name, offered(module))}"
                )
            self._check_bound_name(node, alias.asname)

    def _only_at_top(self, node: ast.stmt) -> None:
        if self._functions:
            self._add(node, "S101", "imports belong at the top of the file")

    # functions

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        """Decorators, annotations and defaults belong to the scope outside, the body to its own."""
        self._check_bound_name(node, node.name)
        for decorator in node.decorator_list:
            self._decorator(decorator)
            self.visit(decorator)
        arguments = [item for item in ast.walk(node.args) if isinstance(item, ast.arg)]
        for annotation in [argument.annotation for argument in arguments] + [node.returns]:
            self._annotation(annotation)
        self.visit(node.args)
        for extra in (node.returns, *getattr(node, "type_params", ())):
            if extra is not None:
                self.visit(extra)
        self._functions += 1
        self._scopes.append(_bound_in(node.body) | {argument.arg for argument in arguments})
        for statement in node.body:
            self.visit(statement)
        self._scopes.pop()
        self._functions -= 1

    def _comprehension(self, node: _Comprehension) -> None:
        """Its first iterable is evaluated outside; the rest in a scope that has its targets."""
        self.visit(node.generators[0].iter)
        self._scopes.append(_bound_in(generator.target for generator in node.generators))
        self.generic_visit(node)
        self._scopes.pop()

    visit_ListComp = visit_SetComp = _comprehension  # noqa: N815 - the names are ast's
    visit_GeneratorExp = visit_DictComp = _comprehension  # noqa: N815

    def _decorator(self, decorator: ast.expr) -> None:
        allowed = ", ".join(f"@coda.{name}" for name in vocabulary.DECORATORS)
        if self._functions:
            self._add(decorator, "S109", "decorated functions belong at the top level of the file")
        elif not self.scope.is_decorator(_callee(decorator)):
            self._add(decorator, "S109", f"the decorators of a kernel file are {allowed}")
        elif isinstance(decorator, ast.Call):
            literal = all(word.arg and isinstance(word.value, ast.Constant) for word in decorator.keywords)
            if decorator.args or not literal:
                self._add(decorator, "S110", "a decorator takes keywords with literal values, as in fast_math=True")
            self._options(decorator)

    def _options(self, call: ast.Call) -> None:
        """Keywords that the decorator has. It is known by its name in `coda`, whatever the file calls it."""
        name = self.scope.decorator_name(call.func)
        known = vocabulary.DECORATOR_OPTIONS[name]
        for word in call.keywords:
            if word.arg and word.arg not in known:
                takes = f"takes only {', '.join(f'{k}=…' for k in known)}" if known else "takes no keywords"
                self._add(word, "S111", f"@coda.{name} {takes}, not {word.arg}={_near(word.arg, known)}")
        if not known and not call.keywords and not call.args:
            self._add(call, "S111", f"@coda.{name} is written without parentheses")

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        """Annotations of constants."""
        self._annotation(node.annotation)
        self.generic_visit(node)

    def _annotation(self, annotation: ast.expr | None) -> None:
        nodes = list(ast.walk(annotation)) if annotation is not None else []
        options = {id(node.value) for node in nodes if isinstance(node, ast.keyword) and node.arg == "dtype"}
        for (
            node
        ) in nodes:  # `ColVector(dtype="int")` is an option; anything else would be evaluated when it is resolved
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in options:
                self._add(node, "S212", "an annotation is written as it is, not as text")

    def visit_arg(self, node: ast.arg) -> None:
        """Parameter names."""
        self._check_bound_name(node, node.arg)
        self.generic_visit(node)

    # expressions

    def visit_BinOp(self, node: ast.BinOp) -> None:
        """The `@` operator."""
        self._matmul(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        """`@=`."""
        self._matmul(node)

    def _matmul(self, node: ast.BinOp | ast.AugAssign) -> None:
        if isinstance(node.op, ast.MatMult):
            message = "no `@`: an epilogue gets its GEMM as `acc`; a second GEMM is coda.matmul(a, b) in a @coda.plan"
            self._add(node, "S210", message)
        self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        """Names: underscores, builtins, undefined ones, modules as values."""
        if node.id.startswith("__"):
            self._add(node, "S301", f"{node.id}: names with two leading underscores are not available")
        elif not isinstance(node.ctx, ast.Load):
            return
        elif any(node.id in names for names in self._scopes):
            if node.id in self.scope.modules and id(node) not in self._named_modules:
                self._add(
                    node, "S306", f"the module {node.id} is not a value: use what it offers, as in {node.id}.name"
                )
        elif node.id in vocabulary.BUILTINS:
            return
        elif hasattr(builtins, node.id):
            self._add(node, "S302", _builtin_message(node.id))
        else:
            self._add(node, "S303", _undefined_message(node.id, set().union(*self._scopes)))

    def visit_Attribute(self, node: ast.Attribute) -> None:
        """Attributes: of modules by their lists, of values by form."""
        module = self.scope.module_of(node.value)
        self._named_modules.add(id(node.value))
        if not isinstance(node.ctx, ast.Load):
            self._add(node, "S305", f".{node.attr} = …: values and modules are not changed; bind a new name")
        elif node.attr.startswith("_"):
            self._add(node, "S304", f".{node.attr}: attributes with a leading underscore are not available")
        elif module is not None and node.attr not in offered(module):
            self._add(node, "S103", f"{module} has no {node.attr} for kernel files{_near(node.attr, offered(module))}")
        elif self.scope.module_of(node) is not None and id(node) not in self._named_modules:
            self._add(node, "S306", f"the module {self.scope.module_of(node)} is not a value: use what it offers")
        elif node.attr in vocabulary.HIDDEN_ATTRIBUTES:
            self._add(node, "S304", f".{node.attr} is not available in a kernel file")
        self.generic_visit(node)

    def visit_keyword(self, node: ast.keyword) -> None:
        """Keyword names of calls."""
        self._check_bound_name(node, node.arg)
        self.generic_visit(node)

    def _check_bound_name(self, node: ast.AST, name: str | None) -> None:
        if name is not None and name.startswith("__"):
            self._add(node, "S301", f"{name}: names with two leading underscores are not available")


def _import_message(module: str) -> str:
    usual = ", ".join(vocabulary.IMPORTS[:-1])
    if module.startswith("coda.primitives."):
        return f"import from coda.primitives itself, not from {module}"
    if module.split(".")[0] in ("torch", "triton", "numpy", "cutlass", "quack"):
        return f"no {module}: a kernel is written with coda.primitives; the backends generate the device code"
    return f"a kernel file imports only {usual}, not {module}"


def _builtin_message(name: str) -> str:
    if name == "print":
        return "no print: nobody reads the output of a kernel file; remove it"
    if name == "set":
        return "no set: its order is not defined; use a tuple"
    return f"the builtin {name} is not available in a kernel file{_near(name, vocabulary.BUILTINS)}"


def _undefined_message(name: str, bound: set[str]) -> str:
    if name in primitives():
        return f"{name} is not imported: add `from coda.primitives import {name}`"
    if name in ("coda", "math"):
        return f"{name} is not imported: add `import {name}`"
    return f"{name} is not defined{_near(name, (*bound, *primitives()))}"
