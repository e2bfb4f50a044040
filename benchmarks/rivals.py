"""What people use now: the field's Euler script, SciPy, diffrax, torchdiffeq, and attention by NumPy, torch and KeOps.

Each is written the way its users write it, in its faster form where there are two.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.integrate import solve_ivp


def velocity(theta: np.ndarray, beta: float) -> np.ndarray:
    """Angular velocities on the circle by NumPy: one matrix product for the cosines, one exponential, one for the sums."""
    x = np.stack([np.cos(theta), np.sin(theta)], axis=1)
    weights = np.tril(np.exp(beta * (x @ x.T - 1.0)))
    sums = weights @ x
    return (sums[:, 1] * x[:, 0] - sums[:, 0] * x[:, 1]) / weights.sum(axis=1)


def euler(theta: np.ndarray, times: np.ndarray, beta: float, step: float = 0.05) -> np.ndarray:
    """The published scheme: explicit Euler in the plane, renormalised after every step, dense matrices. Angles at `times`."""
    x = np.stack([np.cos(theta), np.sin(theta)], axis=1)
    due = np.rint(times / step).astype(int)
    out = np.empty((len(times), len(theta)))
    done = 0
    for index in range(due[-1] + 1):
        while done < len(due) and due[done] == index:
            out[done] = np.arctan2(x[:, 1], x[:, 0])
            done += 1
        if done == len(due):
            break
        attention = np.tril(np.exp(beta * (x @ x.T - 1.0)))
        attention /= attention.sum(axis=1, keepdims=True)
        x = x + step * (attention @ x)
        x /= np.linalg.norm(x, axis=1, keepdims=True)
    return out


def scipy_solver(method: str, beta: float, rtol: float, atol: float) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """SciPy's adaptive integrators on the NumPy velocity."""

    def solve(theta: np.ndarray, times: np.ndarray) -> np.ndarray:
        span = (0.0, float(times[-1]))
        solved = solve_ivp(lambda t, y: velocity(y, beta), span, theta, method, t_eval=times, rtol=rtol, atol=atol)
        return solved.y.T

    return solve


def diffrax_solver(beta: float, times: np.ndarray, rtol: float, atol: float) -> Callable[[np.ndarray], np.ndarray]:
    """diffrax Tsit5 in float64, compiled and vectorised over members."""
    import diffrax
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_enable_x64", True)

    def field(t: Any, theta: Any, arguments: Any) -> Any:
        c, s = jnp.cos(theta), jnp.sin(theta)
        mask = jnp.tril(jnp.ones((theta.size, theta.size)))
        weights = mask * jnp.exp(beta * (c[:, None] * c[None, :] + s[:, None] * s[None, :] - 1.0))
        return ((weights @ s) * c - (weights @ c) * s) / weights.sum(axis=1)

    def one(theta: Any) -> Any:
        return diffrax.diffeqsolve(
            diffrax.ODETerm(field),
            diffrax.Tsit5(),
            t0=0.0,
            t1=float(times[-1]),
            dt0=None,
            y0=theta,
            saveat=diffrax.SaveAt(ts=jnp.asarray(times)),
            stepsize_controller=diffrax.PIDController(rtol=rtol, atol=atol),
            max_steps=100_000,
        ).ys

    many = jax.jit(jax.vmap(one))
    return lambda thetas: np.asarray(many(jnp.asarray(thetas)))


def torchdiffeq_solver(beta: float, times: np.ndarray, rtol: float, atol: float) -> Callable[[np.ndarray], np.ndarray]:
    """torchdiffeq dopri5 in float64, one batch with one step size for all."""
    import torch
    from torchdiffeq import odeint

    torch.set_num_threads(1)

    def field(t: Any, theta: Any) -> Any:
        x = torch.stack([torch.cos(theta), torch.sin(theta)], dim=-1)
        weights = torch.tril(torch.exp(beta * (x @ x.transpose(-1, -2) - 1.0)))
        sums = weights @ x
        return (sums[..., 1] * x[..., 0] - sums[..., 0] * x[..., 1]) / weights.sum(-1)

    def solve(thetas: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            solved = odeint(field, torch.tensor(thetas), torch.tensor(times), rtol=rtol, atol=atol, method="dopri5")
        return solved.transpose(0, 1).numpy()

    return solve


# --------------------------------------------------------------------------------------------- attention, any dimension


def numpy_attention(x: np.ndarray, q: np.ndarray, k: np.ndarray, v: np.ndarray, beta: float) -> np.ndarray:
    """Causal attention and projection by NumPy, dense."""
    logits = beta * (x @ q.T) @ (x @ k.T).T
    logits[np.triu_indices(len(x), 1)] = -np.inf
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    drift = (weights @ (x @ v.T)) / weights.sum(axis=1, keepdims=True)
    return drift - (drift * x).sum(axis=1, keepdims=True) * x


def torch_attention(
    x: np.ndarray, q: np.ndarray, k: np.ndarray, v: np.ndarray, beta: float
) -> Callable[[], np.ndarray]:
    """torch's scaled_dot_product_attention in float64 (its fused CPU kernel)."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    torch.set_num_threads(1)
    tokens, query, key, value = (torch.tensor(array) for array in (x, q, k, v))

    def run() -> np.ndarray:
        parts = ((tokens @ matrix.T)[None, None] for matrix in (query, key, value))
        drift = scaled_dot_product_attention(*parts, is_causal=True, scale=beta)[0, 0]
        return (drift - (drift * tokens).sum(1, keepdim=True) * tokens).numpy()

    return run


def keops_attention(
    x: np.ndarray, q: np.ndarray, k: np.ndarray, v: np.ndarray, beta: float
) -> Callable[[], np.ndarray]:
    """KeOps: symbolic causal attention in float64."""
    from pykeops.numpy import LazyTensor

    n = len(x)
    index = np.arange(n, dtype=float)[:, None]

    def run() -> np.ndarray:
        query = LazyTensor((beta * (x @ q.T))[:, None, :])
        key = LazyTensor(np.ascontiguousarray(x @ k.T)[None, :, :])
        value = LazyTensor(np.ascontiguousarray(x @ v.T)[None, :, :])
        later = (LazyTensor(index[None, :, :]) - LazyTensor(index[:, None, :]) - 0.5).step()
        logits = (query * key).sum(-1) - 1e6 * later
        drift = logits.sumsoftmaxweight(value, dim=1)
        return drift - (drift * x).sum(axis=1, keepdims=True) * x

    return run
