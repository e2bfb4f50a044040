"""Rodas5P for unnormalised attention (USA): softmax at another pace.

With Z_k the sum of the weights and N_k the number (or mass) of the visible tokens, the velocity is s_k = Z_k/N_k times that of softmax,
so everything that is free of cancellation there stays so, and the Jacobian gets one term more,

    J_kj -> s_k J_kj + f_k (grad_j s_k)^T,    grad_j log s_k = beta p_kj M^T x_k,  and for j = k also beta sum_c p_kc M x_c,

f_k the velocity of softmax. Speeds reach exp(beta |M|): the natural unit of time is exp(-beta), and a horizon of order one is long.
All rows are one dense block, under a causal mask too.
"""

from __future__ import annotations

import numpy as np

from metastable._checks import FloatArray
from metastable.integrate.rodas.dense import DenseSystem
from metastable.integrate.rodas.sphere_system import SphereSystem


class Pace:
    """s_k = Z_k/N_k and the softmax weights p_kj of all tokens; columns are frozen tokens first, then the tokens."""

    def __init__(self, system: SphereSystem, visible: np.ndarray, mass: FloatArray) -> None:
        self.beta, self.form = float(system.model.betas[0]), system.model.forms[0]
        self.fixed = system.columns.position[0, : self.form.shape[0], : system.frozen].T.copy()
        counts = np.concatenate([np.broadcast_to(mass, (len(visible), mass.size)), visible], axis=1)
        self.total = np.maximum(counts.sum(axis=1), np.finfo(float).tiny)
        with np.errstate(divide="ignore"):
            self.shift = np.log(counts)

    def columns(self, x: FloatArray) -> FloatArray:
        """Frozen tokens and tokens, (m + n, d)."""
        return np.concatenate([self.fixed, x])

    def __call__(self, x: FloatArray) -> tuple[FloatArray, FloatArray]:
        """s (n,) and p (n, m + n) at the tokens x (n, d)."""
        logits = self.beta * (x @ self.form) @ self.columns(x).T + self.shift
        top = logits.max(axis=1)
        top = np.where(np.isfinite(top), top, 0.0)
        weights = np.exp(logits - top[:, None])
        z = weights.sum(axis=1)
        return np.exp(top) * z / self.total, weights / np.where(z > 0, z, 1.0)[:, None]


class UnnormalizedSystem(DenseSystem):
    """A `SphereSystem`, all of whose rows are in the dense block, at the pace of unnormalised attention."""

    def __init__(self, system: SphereSystem, visible: np.ndarray, mass: FloatArray) -> None:
        super().__init__(system)
        self.pace = Pace(system, visible, mass)

    def jacobian(self) -> FloatArray:
        """As for softmax, times s, and the term of its gradient; the velocities at the start of the step get their pace, too."""
        system = self.system
        result = super().jacobian()
        x, frames = system.charts.origin, self.frames
        s, p = self.pace(x)
        moving = p[:, system.frozen :]
        gradient = self.pace.beta * moving[:, :, None] * np.einsum("kd,jdb->kjb", x @ self.pace.form, frames)
        own = np.arange(len(x))
        seen = p @ self.pace.columns(x) @ self.pace.form.T
        gradient[own, own] += self.pace.beta * np.einsum("kd,kdb->kb", seen, frames)
        result += system.velocity[:, :, None, None] * gradient[:, None, :, :]
        result *= s[:, None, None, None]
        system.velocity[:] *= s[:, None]
        system.rows.terms[:] *= s
        return result

    def stage_slopes(self, i: int, slope: FloatArray) -> None:
        super().stage_slopes(i, slope)
        system = self.system
        places = system.columns.position[i, : system.charts.origin.shape[1], system.frozen :]
        s, _ = self.pace(places[:, : len(slope)].T)
        slope *= s[:, None]
