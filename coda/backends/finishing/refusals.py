"""What Triton's compiler raises, as one of ours.

raise_as_compile_error   a compiler's refusal as a `CompileError`; anything else is left alone
"""

from __future__ import annotations

from coda.errors import CompileError


def raise_as_compile_error(error: Exception, name: str) -> None:
    """Turn what Triton's compiler raises into a `CompileError`; leave anything else alone."""
    from triton.compiler.errors import CompilationError
    from triton.runtime.errors import OutOfResources, PTXASError

    if isinstance(error, OutOfResources):
        raise CompileError(
            f"{name}: the kernel does not fit the device",
            got=f"{error.required} of {error.name}",
            expected=f"at most {error.limit}",
            hint="a schedule with fewer stages, a smaller tile or a larger split",
        ) from error
    if isinstance(error, (CompilationError, PTXASError)) or type(error).__module__.startswith("triton"):
        raise CompileError(f"{name}: Triton refused the generated code", got=str(error)[-2000:]) from error
