"""The words of a model as directions: what goes in, and what comes out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from metastable.checkpoints.flows.lens import check_final_norm, direct_output
from metastable.checkpoints.weights import NormKind
from metastable.errors import InvalidInputError, UnsupportedError

if TYPE_CHECKING:
    from metastable.checkpoints.flows.flow import Flow

Matrix = NDArray[np.float32]


@dataclass(frozen=True)
class Vocabulary:
    """Words with their directions, one row each, float32: `inputs` (words, dim) unit rows, as a layer's norm passes them on, and
    `outputs` (words, dim) = unembedding with the final norm folded in. Both have their mean over words removed. `writing`: which
    embedding `outputs` are.
    """

    ids: NDArray[np.int64]
    inputs: Matrix
    outputs: Matrix
    writing: str


def project(rows: Matrix, directions: Any) -> Any:
    """(rows, directions): rows times directions (m, dim), in one product; complex where a direction is."""
    directions = np.asarray(directions)
    real = rows @ directions.real.T.astype(np.float32)
    planes = (
        np.flatnonzero(np.abs(directions.imag).max(axis=1) > 0) if np.iscomplexobj(directions) else np.empty(0, int)
    )
    if not planes.size:
        return real
    result = real.astype(np.complex64)
    result[:, planes] += 1j * (rows @ directions[planes].imag.T.astype(np.float32))
    return result


def _standardize(rows: Matrix, kind: str) -> None:
    """Rows, in place, as a norm without gain passes them on, at unit length: centred for LayerNorm; a zero row stays zero."""
    if kind == "layer":
        rows -= rows.mean(axis=1, keepdims=True)
    length = np.sqrt(np.einsum("ij,ij->i", rows, rows))
    rows /= np.where(length > 0, length, 1.0)[:, None]


@dataclass(frozen=True)
class FinalNorm:
    """The norm before the unembedding as it acts on a direction, up to length: v -> gain * v, or gain * (v - mean v) for LayerNorm."""

    gain: Matrix
    centers: bool

    def fold(self, rows: Matrix) -> None:
        """Rows (words, dim) of an unembedding, in place, so that their product with a direction is that behind the norm."""
        rows *= self.gain
        if self.centers:
            rows -= rows.mean(axis=1, keepdims=True)


def final_norm(flow: Flow) -> FinalNorm | None:
    """The final norm of a flow's model by its effect on states, whatever its class; None where there is none.

    A norm is gain * (x - m) / size + shift with m the mean of x or zero. Half the difference of its values at x and -x has no shift,
    and at an x of mean zero it does not matter which m it is.

    Raises:
        UnsupportedError: what the model does there is none of these.
    """
    if flow.final_norm is None:
        check_final_norm(flow)
        return None
    import torch

    def odd_part(x: Any) -> Any:
        return 0.5 * (flow.final_norm(x) - flow.final_norm(-x))[0]

    generator = np.random.default_rng(0)
    # Long states: the epsilon of a norm does not matter.
    drawn = 1e3 * generator.choice((-1.0, 1.0), flow.dim) * generator.uniform(0.5, 1.5, flow.dim)
    shifted = 1e3 * generator.standard_normal(flow.dim) + 1e3
    last = flow.probe.last
    zero_mean, other = (
        torch.tensor(x[None], dtype=last.dtype, device=last.device) for x in (drawn - drawn.mean(), shifted)
    )
    with torch.no_grad():
        gain = odd_part(zero_mean) / (zero_mean / zero_mean.square().mean().sqrt())[0]
        for centers in (False, True):
            x = other - other.mean() if centers else other
            expected = gain * (x / x.square().mean().sqrt())[0]
            if torch.allclose(odd_part(other), expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max())):
                return FinalNorm(gain.cpu().numpy().astype(np.float32), centers)
    raise UnsupportedError(
        f"{flow.source}: {type(flow.final_norm).__name__}, the last norm, is neither a LayerNorm nor a root-mean-square norm, so the "
        "words of a direction are not known"
    )


def vocabulary_of(flow: Flow, norm: NormKind) -> Vocabulary:
    """The words of a flow's model whose layers' norms are of the kind `norm`, special tokens left out.

    Words are written through the output embedding where it is applied to the (normed) states themselves. A model without one, or
    with another map in between (the dense layer and activation of a masked language model), is read through its input embeddings.

    Raises:
        InvalidInputError: no tokenizer, so no words.
        UnsupportedError: embeddings of another dimension than the hidden states.
    """
    if flow.tokenizer is None:
        in_memory = flow.source == type(flow.model).__name__
        advice = (
            "give meaning a flow that has one: checkpoints.flow(model, tokenizer=tokenizer)"
            if in_memory
            else "add its tokenizer.json (or tokenizer.model, vocab.txt) to the folder"
        )
        raise InvalidInputError(f"{flow.source} has no tokenizer, so its directions have no words; {advice}")
    given = flow.model.get_input_embeddings().weight.detach()
    direct = direct_output(flow)
    out, writing = (given, "input embeddings") if direct is None else (direct, "output embedding")
    if given.shape[1] != flow.dim or out.shape[1] != flow.dim:
        raise UnsupportedError(
            f"{flow.source} embeds words in dimension {given.shape[1]} and has states of dimension {flow.dim}: its directions "
            "cannot be read as words"
        )
    special = set(flow.tokenizer.all_special_ids)
    count = min(len(flow.tokenizer), given.shape[0], out.shape[0])
    kept = np.array([index for index in range(count) if index not in special])
    inputs, outputs = (matrix.float().cpu().numpy()[kept] for matrix in (given, out))
    _standardize(inputs, norm)
    inputs -= inputs.mean(axis=0)
    norm_behind = final_norm(flow)
    if norm_behind is not None:
        norm_behind.fold(outputs)
    outputs -= outputs.mean(axis=0)
    return Vocabulary(kept, inputs, outputs, writing)
