"""A Llama-style layer without its attention, shifted by half: from one attention's output to the next one's queries, keys, values.

    Shape      lengths of such a layer
    Reference  what everybody writes in PyTorch: the definition, and the baseline
    Layer      the same from fused kernels, forward and backward: the same parameters, gate and up interleaved
    rope       cosines and sines of a head's pairs, for `Reference`; frequencies, of every pair of columns, for `Layer`

Computes, for a residual stream x0 (M, D) and an attention output y0 (M, A), with N(x) = x·rsqrt(mean x² + eps)·gain:

    x1 = x0 + y0 @ out^T        [g|u] = N(x1) @ gate_up^T        x2 = x1 + (silu(g)·u) @ down^T        qkv = R(N(x2) @ qkv^T)

R turns each adjacent pair of columns of q and k, not of v. Returned are x2 and qkv. The rewrites are those of the bank's
kernels: the scale of a norm waits for the GEMM behind it (`residual_rms`, `rms_swiglu`), and what a norm's backward sums over a
row is summed one GEMM earlier (`swiglu_backward`, `rope_backward`; arXiv 2605.19269). Forward is 4 GEMMs, backward 8: 3 with
an epilogue, 5 plain ones, which are torch's.

Saved for backward are x1, x2, the rotated qkv, the pre-activations and two numbers per row, beside inputs and weights. Neither the
gained norms nor the activation is: `rms_backward` and `swiglu_backward` compute them again in passing, as operands of the weight
gradients. The gradient of the pre-activations, as large as all the rest together, is written over them, as torch.compile does with
its donated buffers: so backward runs once per forward, but in a layer that was made with `retain_graph=True`. Where hooks get what
is saved, as in a checkpoint that is not reentrant, nothing is written over.

Angles are positions times frequencies, in registers: a table as wide as qkv, which `rms_rope` reads, would be as large as qkv
itself; a frequency of 0 lets v through.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

import coda
import examples_curated
from coda import torch_private
from coda.errors import DTypeUnsupported, LayoutError, NotDifferentiable, ShapeMismatch
from coda.layout import interleave_gate_up, split_gate_up
from coda.primitives import ColVector, RowVector, cos, pair, sin, unpair

WEIGHTS = ("out", "gate_up", "down", "qkv")
GAINS = ("mlp_gain", "qkv_gain")
LOWERED = (torch.float32, torch.bfloat16, torch.float16)
"""What autocast casts. It leaves fp64 and what is no floating-point number as they are."""
LAYOUT = "_extra_state"
"""PyTorch's name, in a state, for what `get_extra_state` gives."""


@dataclass(frozen=True)
class Shape:
    """Lengths of a layer. Heads of queries share heads of keys and values where there are more of them."""

    width: int
    """D, of the residual stream."""
    ffn: int
    """F, of gate, of up, and of their product."""
    heads: int
    kv_heads: int
    head: int = 128
    """Columns of a head; even."""
    base: float = 10000.0
    """Of the frequencies: pair i of a head turns by base^(-2i/head) per position."""
    eps: float = 1e-6

    @property
    def attention(self) -> int:
        """A, the columns of an attention's output."""
        return self.heads * self.head

    @property
    def turned(self) -> int:
        """Columns of q and k together, which come first."""
        return (self.heads + self.kv_heads) * self.head

    @property
    def parameters(self) -> dict[str, tuple[int, ...]]:
        """Every parameter's shape by name: weights as (out, in)."""
        return {
            "out": (self.width, self.attention),
            "gate_up": (2 * self.ffn, self.width),
            "down": (self.width, self.ffn),
            "qkv": (self.turned + self.kv_heads * self.head, self.width),
            "mlp_gain": (self.width,),
            "qkv_gain": (self.width,),
        }

    def check(self) -> None:
        """Raises `ShapeMismatch` for lengths and numbers that no layer has."""
        lengths = (self.width, self.ffn, self.heads, self.kv_heads, self.head)
        if not all(isinstance(n, int) for n in lengths):
            raise ShapeMismatch("a layer's lengths", got=lengths, expected="integers")
        if min(lengths) < 1 or self.head % 2 or self.heads % self.kv_heads:
            raise ShapeMismatch(
                "a layer's lengths",
                got=f"width {self.width}, ffn {self.ffn}, heads {self.heads}, kv_heads {self.kv_heads}, head {self.head}",
                expected="all above 0, head even, heads a multiple of kv_heads",
            )
        if not (0 < self.base < math.inf and 0 <= self.eps < math.inf):
            got = f"base {self.base}, eps {self.eps}"
            raise ShapeMismatch("a layer's numbers", got=got, expected="base above 0, eps 0 or more, both finite")


# angles -----------------------------------------------------------------------------------------------------------------


def _head(shape: Shape, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Frequencies of one head's pairs (head/2,), computed in fp64; fp32, or fp64 beside fp64."""
    pairs = torch.arange(shape.head // 2, dtype=torch.float64, device=device)
    return (shape.base ** (-2 * pairs / shape.head)).to(torch.float64 if dtype == torch.float64 else torch.float32)


def rope(shape: Shape, position: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosines and sines (M, head/2) of a head's pairs at integer positions (M,), for matrices of `dtype`."""
    angle = position[:, None] * _head(shape, position.device, dtype)
    return angle.cos(), angle.sin()


def frequencies(shape: Shape, device: torch.device, dtype: torch.dtype) -> Tensor:
    """One per pair of qkv's columns; 0 for those of v."""
    with torch.inference_mode(False):  # kept for calls that save it for backward too
        turning = _head(shape, device, dtype).repeat(shape.heads + shape.kv_heads)
        return torch.cat([turning, turning.new_zeros(shape.kv_heads * shape.head // 2)])


# plain PyTorch ----------------------------------------------------------------------------------------------------------


class _Parameters(nn.Module):
    """Four weights and two gains."""

    out: nn.Parameter  # (D, A)
    gate_up: nn.Parameter  # (2F, D)
    down: nn.Parameter  # (D, F)
    qkv: nn.Parameter  # (A + 2·kv, D)
    mlp_gain: nn.Parameter  # (D,)
    qkv_gain: nn.Parameter  # (D,)

    def __init__(
        self, shape: Shape, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> None:
        shape.check()
        super().__init__()
        self.shape = shape
        for name, lengths in shape.parameters.items():
            x = torch.ones(lengths, device=device, dtype=dtype)
            if name in WEIGHTS:
                nn.init.normal_(x, std=lengths[1] ** -0.5)
            self.register_parameter(name, nn.Parameter(x))

    def _wrong_layout(self, state_dict: Mapping[str, Any], prefix: str) -> LayoutError | None:
        """Why a state is not this module's, although names and shapes are."""
        raise NotImplementedError

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        wrong = self._wrong_layout(state_dict, prefix)
        if wrong is None:
            super()._load_from_state_dict(state_dict, prefix, *rest)
        else:
            errors: list[str] = rest[-1]  # which load_state_dict raises, strict or not
            errors.append(str(wrong))


class Reference(_Parameters):
    """As it is written without fused kernels. `gate_up` has all gates first, then all ups."""

    def forward(
        self,
        x0: Tensor,  # (M, D)
        y0: Tensor,  # (M, A)
        cos: Tensor,  # (M, head/2)
        sin: Tensor,  # (M, head/2)
    ) -> tuple[Tensor, Tensor]:
        """x2 (M, D) and qkv (M, A + 2·kv), q and k rotated."""
        shape = self.shape
        x1 = x0 + F.linear(y0, self.out)
        gate, up = F.linear(F.rms_norm(x1, (shape.width,), self.mlp_gain, shape.eps), self.gate_up).chunk(2, dim=-1)
        x2 = x1 + F.linear(F.silu(gate) * up, self.down)
        qkv = F.linear(F.rms_norm(x2, (shape.width,), self.qkv_gain, shape.eps), self.qkv)
        even, odd = qkv[:, : shape.turned].view(len(qkv), -1, shape.head // 2, 2).unbind(-1)
        c, s = cos[:, None], sin[:, None]  # fp32 beside 16 bits: so is the rotation
        turned = torch.stack([even * c - odd * s, even * s + odd * c], -1).flatten(1).to(qkv.dtype)
        return x2, torch.cat([turned, qkv[:, shape.turned :]], 1)

    def _wrong_layout(self, state_dict: Mapping[str, Any], prefix: str) -> LayoutError | None:
        if f"{prefix}{LAYOUT}" not in state_dict:
            return None
        return LayoutError(
            f"{prefix}gate_up",
            got="a Layer's, gate and up alternating",
            expected="all gates before all ups",
            hint="convert it: Layer.for_reference(state)",
        )


# fused ------------------------------------------------------------------------------------------------------------------


@coda.epilogue
def rms_rope_positions(  # type: ignore[no-untyped-def]
    acc,  # (M, N)
    rstd: ColVector,  # type: ignore[valid-type]  # (M,)
    position: ColVector(dtype="int"),  # type: ignore[valid-type]  # (M,)
    frequency: RowVector(width=0.5),  # type: ignore[valid-type]  # (N/2,)
):
    """The scaled product with each adjacent pair of columns turned by position times frequency."""
    angle = position * frequency
    c, s = cos(angle), sin(angle)
    even, odd = unpair(acc * rstd)
    return {"rotated": pair(even * c - odd * s, even * s + odd * c)}


residual_rms: Any = examples_curated.load("residual_rms")
rms_swiglu: Any = examples_curated.load("rms_swiglu")
swiglu_backward: Any = examples_curated.load("swiglu_backward")
rms_backward: Any = examples_curated.load("rms_backward")
rope_backward: Any = examples_curated.load("rope_backward")


def _autocast(kind: str) -> torch.dtype | None:
    """Its dtype, where it is at work on such a device."""
    at_work = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
    return torch.get_autocast_dtype(kind) if at_work else None


class _Fused(torch.autograd.Function):
    """What is not needed any more is dropped at once: a layer's peak of memory is in here."""

    @staticmethod
    def forward(
        ctx: Any,
        x0: Tensor,  # (M, D)
        y0: Tensor,  # (M, A)
        out: Tensor,  # (D, A)
        gate_up: Tensor,  # (2F, D), interleaved
        down: Tensor,  # (D, F)
        qkv: Tensor,  # (N, D)
        mlp_gain: Tensor,  # (D,)
        qkv_gain: Tensor,  # (D,)
        position: Tensor,  # (M,), int
        frequency: Tensor,  # (N/2,)
        eps: float,
        backend: str | None,
        retain_graph: bool,
    ) -> tuple[Tensor, Tensor]:
        x1, h, rstd1 = residual_rms(y0, out.mT, residual=x0, gamma=mlp_gain, eps=eps, backend=backend)
        z, h = rms_swiglu(h, gate_up.mT, rstd=rstd1, backend=backend)
        x2, h, rstd2 = residual_rms(h, down.mT, residual=x1, gamma=qkv_gain, eps=eps, backend=backend)
        (rotated,) = rms_rope_positions(h, qkv.mT, rstd=rstd2, position=position, frequency=frequency, backend=backend)
        ctx.save_for_backward(
            y0, out, gate_up, down, qkv, mlp_gain, qkv_gain, position, frequency, x1, rstd1, z, x2, rstd2, rotated
        )
        ctx.backend = backend
        # what hooks hold may be shared or kept; a graph's memory is its compiler's to reuse
        ctx.overwrite = not (retain_graph or torch.compiler.is_compiling() or torch_private.saving_hooks())
        ctx.once = [None]
        return x2, rotated

    @staticmethod
    def backward(ctx: Any, dx2: Tensor, dqkv: Tensor) -> tuple[Tensor | None, ...]:
        kind = dx2.device.type
        if _autocast(kind):  # which would lower the plain products
            with torch.autocast(kind, enabled=False):
                return _Fused.backward(ctx, dx2, dqkv)
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            raise NotDifferentiable(
                "layer: a gradient that is to be differentiated again", hint="call backward without create_graph=True"
            )
        if ctx.overwrite:
            try:
                ctx.once.pop()  # at once: two threads may be here
            except IndexError:
                raise NotDifferentiable(
                    "layer: a second backward pass through one forward pass",
                    got="pre-activations that the first one may write over",
                    hint="make the layer with retain_graph=True, which keeps them",
                ) from None
        y0, out, gate_up, down, qkv, mlp_gain, qkv_gain, position, frequency, *made = ctx.saved_tensors
        x1, rstd1, z, x2, rstd2, rotated = made
        backend, width = ctx.backend, x2.shape[1]
        _, wants_y0, wants_out, wants_gate_up, wants_down, wants_qkv, *_ = ctx.needs_input_grad  # frozen: no GEMM
        dz, zdz = rope_backward(dqkv, rotated, position=position, frequency=frequency, backend=backend)
        dx, normed, d_qkv_gain = rms_backward(
            dz, qkv, h=x2, gamma=qkv_gain, rstd=rstd2, s=zdz / width, dres=dx2, backend=backend
        )
        d_qkv = dz.mT @ normed if wants_qkv else None
        del dz, normed
        dz, h, zdz = swiglu_backward(dx, down, z=z, out={"dz": z} if ctx.overwrite else None, backend=backend)
        d_down = dx.mT @ h if wants_down else None
        del h
        dx, normed, d_mlp_gain = rms_backward(
            dz, gate_up, h=x1, gamma=mlp_gain, rstd=rstd1, s=zdz / width, dres=dx, backend=backend
        )
        d_gate_up = dz.mT @ normed if wants_gate_up else None
        del dz, normed
        weights = (dx.mT @ y0 if wants_out else None, d_gate_up, d_down, d_qkv)
        gains = (d_mlp_gain.to(mlp_gain.dtype), d_qkv_gain.to(qkv_gain.dtype))
        return dx, dx @ out if wants_y0 else None, *weights, *gains, None, None, None, None, None


class Layer(_Parameters):
    """The same from fused kernels. `gate_up` has gate k in row 2k and up k in row 2k + 1.

    `backend` is that of every kernel's call: None lets each choose, and takes PyTorch on a CPU. `retain_graph`: backward may run
    more than once per forward, for 2F numbers more per row at its peak; else the second one raises `NotDifferentiable`, as a
    gradient with create_graph=True does. A call raises `ShapeMismatch`, `DTypeUnsupported` or what a kernel's call raises.

    Under autocast a call takes inputs and parameters in autocast's dtype, and gives both outputs in it: x2 too, the residual stream,
    which plain PyTorch keeps in fp32 where x0 is. So a stack of layers carries its stream as layers made in that dtype do. A layer
    and inputs in fp64 throughout stay fp64; fp64 beside another dtype is refused. An eager backward gives the same gradients within
    an autocast region as outside.
    """

    def __init__(
        self,
        shape: Shape,
        *,
        backend: str | None = None,
        retain_graph: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(shape, device=device, dtype=dtype)
        self.backend, self.retain_graph = backend, retain_graph
        self._turns: dict[tuple[torch.device, torch.dtype], Tensor] = {}

    @classmethod
    def from_reference(cls, reference: Reference, *, backend: str | None = None, retain_graph: bool = False) -> Self:
        """With copies of its parameters, on the same device."""
        layer = cls(reference.shape, backend=backend, retain_graph=retain_graph, device="meta")
        found = {n: interleave_gate_up(x) if n == "gate_up" else x.clone() for n, x in reference.state_dict().items()}
        layer.load_state_dict({**layer.state_dict(), **found}, assign=True)
        return layer

    def get_extra_state(self) -> dict[str, str]:
        """In the state beside the parameters: without it a `Reference`'s, of the same names and shapes, would be loaded as it is."""
        return {"gate_up": "interleaved"}

    def set_extra_state(self, state: Any) -> None:
        """Nothing is left to do: another layout is refused before anything is loaded."""

    def _wrong_layout(self, state_dict: Mapping[str, Any], prefix: str) -> LayoutError | None:
        key, wanted = f"{prefix}{LAYOUT}", self.get_extra_state()
        if f"{prefix}gate_up" not in state_dict or state_dict.get(key) == wanted:
            return None
        return LayoutError(
            f"{prefix}gate_up",
            got=f"{LAYOUT} {state_dict[key]!r}" if key in state_dict else f"no {key}, which names its layout",
            expected=wanted,
            hint="all gates before all ups, as in a Reference: Layer.from_reference converts it; gate and up alternating already: "
            f"load it with {key!r}: layer.get_extra_state()",
        )

    def extra_repr(self) -> str:
        """Its lengths."""
        lengths = ", ".join(f"{f.name}={getattr(self.shape, f.name)}" for f in dataclasses.fields(self.shape))
        return lengths + ", retain_graph=True" * self.retain_graph

    @staticmethod
    def for_reference(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Parameters or their gradients by name, or a state, in the layout of `Reference`; also of a model whose parameters of that name
        are all of layers."""
        own = {n: n.rpartition(".")[2] for n in tensors}
        return {n: split_gate_up(x) if own[n] == "gate_up" else x for n, x in tensors.items() if own[n] != LAYOUT}

    def forward(
        self,
        x0: Tensor,  # (M, D)
        y0: Tensor,  # (M, A)
        position: Tensor,  # (M,), int
    ) -> tuple[Tensor, Tensor]:
        """x2 (M, D) and qkv (M, A + 2·kv), q and k rotated."""
        for name, x in (("x0", x0), ("y0", y0), ("position", position)):
            if not isinstance(x, Tensor):
                hint = "convert it: torch.as_tensor(x)"
                raise DTypeUnsupported(f"layer: {name}", got=type(x).__name__, expected="a torch tensor", hint=hint)
        matrices = {"x0": x0, "y0": y0, **{name: getattr(self, name) for name in (*WEIGHTS, *GAINS)}}
        kind = x0.device.type
        lower = None if all(x.dtype == torch.float64 for x in matrices.values()) else _autocast(kind)
        self._check(matrices, position, lower)
        if lower is None:
            return self._run(matrices, position)
        with torch.autocast(kind, enabled=False):
            return self._run({name: x.to(lower) for name, x in matrices.items()}, position)

    def _run(self, matrices: Mapping[str, Tensor], position: Tensor) -> tuple[Tensor, Tensor]:
        run: Any = _Fused.apply
        found: tuple[Tensor, Tensor] = run(
            *matrices.values(), position, self._turn(matrices["x0"]), self.shape.eps, self.backend, self.retain_graph
        )
        return found

    def _turn(self, x: Tensor) -> Tensor:
        """The frequencies beside such a matrix, kept for the next call; a tracer's stand-ins for tensors are not."""
        if torch.compiler.is_compiling() or type(x) not in (Tensor, nn.Parameter):
            return frequencies(self.shape, x.device, x.dtype)
        key = x.device, x.dtype
        if key not in self._turns:
            found = frequencies(self.shape, *key)
            if type(found) is not Tensor:
                return found
            self._turns[key] = found
        return self._turns[key]

    def _check(self, matrices: Mapping[str, Tensor], position: Tensor, lower: torch.dtype | None) -> None:
        """As they were given, by the names that a caller knows; the kernels would name their own operands, in autocast's dtype."""
        x0, y0 = matrices["x0"], matrices["y0"]
        rows = x0.shape[0] if x0.ndim else 0
        wanted = {
            "x0": (x0, (rows, self.shape.width)),
            "y0": (y0, (rows, self.shape.attention)),
            "position": (position, (rows,)),
        }
        for name, (x, expected) in wanted.items():
            if tuple(x.shape) != expected:
                hint = f"its rows are tokens: {name}.flatten(0, -2)" if x.ndim > len(expected) == 2 else None
                raise ShapeMismatch(f"layer: {name}", got=tuple(x.shape), expected=expected, hint=hint)
        if position.is_floating_point():
            raise DTypeUnsupported("layer: position", got=position.dtype, expected="an integer dtype")
        taken = LOWERED if lower else (torch.float64, *LOWERED)
        for name, x in matrices.items():
            if x.dtype not in taken:
                expected = ", ".join(map(str, taken)) + (", which autocast casts" if lower else "")
                hint = "convert it: " + (f"{name}.to(layer.out.dtype)" if name in wanted else "layer.float()")
                raise DTypeUnsupported(f"layer: {name}", got=x.dtype, expected=expected, hint=hint)
            if not lower and x.dtype != x0.dtype:
                hint = "convert the layer, layer.to(x0.dtype), or what it gets"
                hint += "; or call it under torch.autocast" if torch.float64 not in (x.dtype, x0.dtype) else ""
                raise DTypeUnsupported(f"layer: {name}", got=x.dtype, expected=f"{x0.dtype}, as x0 has", hint=hint)
