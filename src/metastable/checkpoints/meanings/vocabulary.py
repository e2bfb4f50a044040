"""The words of a model as directions: what goes in, and what comes out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from metastable.checkpoints.flows.lens import names_of, output_embedding
from metastable.checkpoints.weights import Norm
from metastable.errors import InvalidInputError, UnsupportedError

if TYPE_CHECKING:
    from metastable.checkpoints.flows.flow import Flow

Matrix = NDArray[np.float32]


@dataclass(frozen=True)
class Vocabulary:
    """Words with their directions, one row each, float32: `inputs` (words, dim) unit rows, as a layer's norm passes them on, and
    `outputs` (words, dim) = unembedding times the final norm's gain. Both have their mean over words removed.
    """

    ids: NDArray[np.int64]
    inputs: Matrix
    outputs: Matrix
    tokenizer: Any

    def names(self, rows: Any) -> tuple[str, ...]:
        """The words of these rows, as a person reads them."""
        return names_of(self.tokenizer, self.ids[np.asarray(rows)])


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


def final_gain(flow: Flow) -> Matrix | None:
    """Gain of the norm before the unembedding, by its effect on a state; None where there is none."""
    if flow.final_norm is None:
        return None
    import torch

    # A norm is gain * standardised + shift; a difference of two states of one length takes the shift away.
    state = torch.ones(2, flow.dim, dtype=flow.probe.last.dtype, device=flow.probe.last.device)
    state[:, ::2] = -1.0
    state[1] = -state[1]
    with torch.no_grad():
        result = flow.final_norm(state)
    gain = (0.5 * (result[0] - result[1]) / state[0]).cpu().numpy()
    return gain.astype(np.float32)


def vocabulary_of(flow: Flow, norm: Norm) -> Vocabulary:
    """The words of a flow's model for layers whose norm is `norm`, special tokens left out.

    Raises:
        InvalidInputError: no tokenizer, so no words.
        UnsupportedError: embeddings of another dimension than the hidden states.
    """
    if flow.tokenizer is None:
        raise InvalidInputError(
            f"{flow.source} has no tokenizer, so its directions have no words; add tokenizer.json to it"
        )
    given = flow.model.get_input_embeddings().weight.detach()
    out = output_embedding(flow.model)
    if given.shape[1] != flow.dim or out is None or out.shape[1] != flow.dim:
        raise UnsupportedError(
            f"{flow.source} embeds words in dimension {given.shape[1]} and has states of dimension {flow.dim}: its directions "
            "cannot be read as words"
        )
    special = set(flow.tokenizer.all_special_ids)
    count = min(len(flow.tokenizer), given.shape[0], out.shape[0])
    kept = np.array([index for index in range(count) if index not in special])
    inputs, outputs = (matrix.float().cpu().numpy()[kept] for matrix in (given, out))
    _standardize(inputs, norm.kind)
    inputs -= inputs.mean(axis=0)
    gain = final_gain(flow)
    if gain is not None:
        outputs *= gain
    outputs -= outputs.mean(axis=0)
    return Vocabulary(kept, inputs, outputs, flow.tokenizer)
