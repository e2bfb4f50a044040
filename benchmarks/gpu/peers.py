"""What else runs this on a GPU: diffrax, batched Euler in torch (the field's scripts), torch's scaled dot-product attention.

Each peer gets the most favourable setting we know: no copies to the host, compiled where it can be, and for attention only the
kernel itself without the projection to the sphere.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.gpu import common

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

EULER_STEP = 0.05
"""The step of the field's scripts."""


def diffrax_seconds(dtype: str) -> dict[str, float]:
    """Tsit5 of diffrax, one step size per member (vmap), same tolerances and output times."""
    import diffrax
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_enable_x64", dtype == "float64")
    starts, times = common.figure_3()
    angle = jnp.asarray(np.arctan2(starts[..., 1], starts[..., 0]), dtype=dtype)
    causal = jnp.tril(jnp.ones((common.TOKENS, common.TOKENS), dtype=bool))
    outputs = jnp.asarray(times, dtype=dtype)

    def velocity(t, z, arguments):
        difference = z[None, :] - z[:, None]
        weight = jnp.where(causal, jnp.exp(common.BETA * (jnp.cos(difference) - 1.0)), 0.0)
        return (weight * jnp.sin(difference)).sum(axis=1) / weight.sum(axis=1)

    def solve(z):
        return diffrax.diffeqsolve(
            diffrax.ODETerm(velocity),
            diffrax.Tsit5(),
            t0=0.0,
            t1=common.HORIZON,
            dt0=None,
            y0=z,
            saveat=diffrax.SaveAt(ts=outputs),
            stepsize_controller=diffrax.PIDController(rtol=1e-6, atol=1e-9),
            max_steps=4096,
        ).ys

    run = jax.jit(jax.vmap(solve))
    return _wall(lambda: run(angle).block_until_ready(), 3)


def _wall(call: Callable[[], Any], repeats: int) -> dict[str, float]:
    begin = time.perf_counter()
    call()
    first = time.perf_counter() - begin
    found = []
    for _ in range(repeats):
        begin = time.perf_counter()
        call()
        found.append(time.perf_counter() - begin)
    return {"median": statistics.median(found), "least": min(found), "largest": max(found), "first_call": first}


def euler_seconds(compiled: bool) -> dict[str, float]:
    """Batched Euler with step 0.05 in float32, all members at once; one whole run."""
    import torch

    starts, _ = common.figure_3()
    x0 = torch.tensor(starts, dtype=torch.float32, device="cuda")
    hidden = torch.triu(torch.ones(common.TOKENS, common.TOKENS, dtype=torch.bool, device="cuda"), 1)

    def step(x):
        weight = torch.softmax((common.BETA * x @ x.transpose(1, 2)).masked_fill(hidden, -torch.inf), dim=-1)
        drift = weight @ x
        drift = drift - (drift * x).sum(-1, keepdim=True) * x
        return torch.nn.functional.normalize(x + EULER_STEP * drift, dim=-1)

    if compiled:
        step = torch.compile(step)
    with torch.no_grad():
        for _ in range(3):
            x = step(x0)
        torch.cuda.synchronize()
        begin = time.perf_counter()
        x = x0
        for _ in range(round(common.HORIZON / EULER_STEP)):
            x = step(x)
        torch.cuda.synchronize()
    return {"median": time.perf_counter() - begin}


def attention_seconds(tokens: int, dim: int, padded: int, dtype: str, backend: str, repeats: int) -> dict[str, float]:
    """Causal scaled dot-product attention of torch with one backend, by events."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    x = torch.zeros(1, 1, tokens, padded, dtype=getattr(torch, dtype), device="cuda")
    x[0, 0, :, :dim] = torch.tensor(common.unit_tokens(tokens, dim), device="cuda")
    found = []
    with torch.no_grad(), sdpa_kernel(getattr(SDPBackend, backend)):
        for _ in range(repeats + 1):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            torch.nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True, scale=9.0)
            end.record()
            end.synchronize()
            found.append(begin.elapsed_time(end) / 1e3)
    return {"median": statistics.median(found[1:]), "pairs_per_second": 0.5 * tokens**2 / statistics.median(found[1:])}


def main() -> dict[str, Any]:
    """Every peer; what fails says why."""
    result: dict[str, Any] = {}
    plan: list[tuple[str, Callable[[], dict[str, float]]]] = [
        ("diffrax float32", lambda: diffrax_seconds("float32")),
        ("diffrax float64", lambda: diffrax_seconds("float64")),
        ("torch Euler float32", lambda: euler_seconds(False)),
        ("torch.compile Euler float32", lambda: euler_seconds(True)),
    ]
    for tokens, dim, padded, dtype, backend, repeats in (
        (10**6, 3, 4, "float32", "EFFICIENT_ATTENTION", 1),
        (10**6, 3, 8, "float32", "EFFICIENT_ATTENTION", 1),
        (10**6, 3, 8, "bfloat16", "FLASH_ATTENTION", 2),
        (10**6, 3, 8, "bfloat16", "CUDNN_ATTENTION", 2),
        (2**16, 64, 64, "float32", "EFFICIENT_ATTENTION", 3),
        (2**16, 64, 64, "bfloat16", "FLASH_ATTENTION", 5),
        (2**16, 64, 64, "bfloat16", "CUDNN_ATTENTION", 5),
        (2**17, 8, 8, "float32", "EFFICIENT_ATTENTION", 3),
        (2**17, 16, 16, "float32", "EFFICIENT_ATTENTION", 3),
    ):
        name = f"torch attention n={tokens} dim={dim} padded={padded} {dtype} {backend}"
        arguments = (tokens, dim, padded, dtype, backend, repeats)
        plan.append((name, lambda arguments=arguments: attention_seconds(*arguments)))
    for name, call in plan:
        try:
            result[name] = call()
        except Exception as reason:
            result[name] = {"failed": " ".join(str(reason).split())[:300]}
        print(name, result[name], flush=True)
    return result
