"""GGUF files (llama.cpp's format): tensors under their transformers names, and a config.json made from the metadata.

llama.cpp interleaves the two halves of every rotary plane, so the rows of the query and key projections are permuted in the
file; they are put back here. The result equals transformers' own GGUF loader exactly.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from metastable._checks import count, number
from metastable.checkpoints.gguf_layout import LayoutError, check_layout
from metastable.checkpoints.tensors import TensorStore
from metastable.errors import CheckpointError, UnknownArchitectureError, missing_extra

BLOCK_NAMES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_norm": "input_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_norm": "post_attention_layernorm",
}
TOP_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
FREQUENCY_FACTORS = "rope_freqs.weight"
KNOWN_GGUF = ("llama",)
ROPE_SCALING = {"none": "default", "linear": "linear", "yarn": "yarn", "longrope": "longrope"}


def _unpermute(weight: np.ndarray, heads: int, name: str) -> np.ndarray:
    """Rows of a query or key projection from llama.cpp's interleaved order to the half-split one (also for biases)."""
    rows = weight.shape[0]
    if rows % (2 * heads):
        raise CheckpointError(
            f"the tensor {name!r} has {rows} rows, which {heads} heads cannot share in pairs; the file is damaged, download it again"
        )
    return weight.reshape(heads, rows // heads // 2, 2, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


class GgufFile(TensorStore):
    """A GGUF file of the Llama family; tensors are dequantised to float32 when read."""

    def __init__(self, path: Path) -> None:
        try:
            from gguf import GGUFReader
        except ImportError:
            raise missing_extra("gguf", "weights", "reading GGUF files") from None
        self.path = path
        self.source = str(path)
        # The reader trusts the file, so its layout is checked first; what is left are texts that are no text.
        try:
            check_layout(path)
            self._reader = GGUFReader(path)
        except LayoutError as reason:
            raise CheckpointError(f"{path} is not a complete GGUF file: {reason}; download it again") from None
        except Exception as reason:
            raise CheckpointError(
                f"{path} is not a complete GGUF file ({type(reason).__name__}: {reason}); download it again"
            ) from None
        architecture = self.field("general.architecture", None)
        if architecture not in KNOWN_GGUF:
            raise UnknownArchitectureError(
                f"{path} is a GGUF file of the architecture {architecture!r}; GGUF is read for {', '.join(KNOWN_GGUF)}. "
                "Use the safetensors checkpoint of this model, or add its tensor names in metastable/checkpoints/gguf_file.py"
            )
        self._tensors = {}
        for tensor in self._reader.tensors:
            name = self._translate(tensor.name)
            if name is not None:
                self._tensors[name] = tensor
        self._names = frozenset(self._tensors)

    def _translate(self, name: str) -> str | None:
        """The transformers name of a GGUF tensor; None for the rotary factors, which are no parameter."""
        if name == FREQUENCY_FACTORS:
            return None
        parts = name.split(".")
        if parts[0] == "blk" and len(parts) == 4 and parts[2] in BLOCK_NAMES:
            return f"model.layers.{parts[1]}.{BLOCK_NAMES[parts[2]]}.{parts[3]}"
        if len(parts) == 2 and parts[0] in TOP_NAMES:
            return f"{TOP_NAMES[parts[0]]}.{parts[1]}"
        raise UnknownArchitectureError(
            f"{self.path}: the tensor {name!r} is not part of the Llama layout (a mixture of experts?); "
            "use the safetensors checkpoint of this model with an adapter of its own"
        )

    def field(self, name: str, *default: Any) -> Any:
        """A metadata value; without a default its absence is an error."""
        entry = self._reader.fields.get(name)
        if entry is not None:
            try:
                return entry.contents()
            except Exception as reason:
                raise CheckpointError(f"{self.path}: the metadata {name!r} cannot be read ({reason})") from None
        if default:
            return default[0]
        raise CheckpointError(
            f"{self.path} lacks the metadata {name!r}; the file is damaged or too old, download it again"
        )

    def whole(self, name: str, *default: Any, minimum: int = 1) -> int:
        """A metadata value that is a whole number of at least `minimum`."""
        return count(self.field(name, *default), f"{self.path}: the metadata {name!r}", minimum, error=CheckpointError)

    def real(self, name: str, *default: Any) -> float:
        """A metadata value that is a positive number."""
        where = f"{self.path}: the metadata {name!r}"
        return number(self.field(name, *default), where, 0.0, strict=True, error=CheckpointError)

    @property
    def names(self) -> frozenset[str]:
        return self._names

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every tensor, (output, input), in the order of the file."""
        return {name: tuple(int(n) for n in reversed(tensor.shape)) for name, tensor in self._tensors.items()}

    def load(self, name: str) -> np.ndarray:
        from gguf.quants import dequantize

        tensor = self._tensors[name]
        try:
            weight = dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
        except NotImplementedError:
            raise CheckpointError(
                f"{self.path}: the quantisation {tensor.tensor_type.name} cannot be undone; use another GGUF of this model"
            ) from None
        if ".self_attn.q_proj." in name:
            return _unpermute(weight, self.whole("llama.attention.head_count"), name)
        if ".self_attn.k_proj." in name:
            heads = self.whole("llama.attention.head_count")
            return _unpermute(weight, self.whole("llama.attention.head_count_kv", heads), name)
        return weight

    @property
    def frequency_factors(self) -> tuple[float, ...] | None:
        """The divisors of the rotary frequencies that long-context files carry, or None."""
        for tensor in self._reader.tensors:
            if tensor.name == FREQUENCY_FACTORS:
                factors = np.asarray(tensor.data).reshape(-1)
                if factors.dtype.kind != "f" or not np.isfinite(factors).all() or (factors <= 0).any():
                    raise CheckpointError(
                        f"{self.path}: {FREQUENCY_FACTORS!r} must hold positive numbers; download it again"
                    )
                return tuple(float(value) for value in factors)
        return None

    @property
    def config(self) -> dict[str, Any]:
        """The config.json that transformers would want for this file."""
        heads = self.whole("llama.attention.head_count")
        dim = self.whole("llama.embedding_length")
        head_dim = self.whole("llama.rope.dimension_count", dim // heads)
        scaling = str(self.field("llama.rope.scaling.type", "none"))
        rope: dict[str, Any] = {
            "rope_type": ROPE_SCALING.get(scaling, scaling),
            "rope_theta": self.real("llama.rope.freq_base", 10000.0),
        }
        if rope["rope_type"] == "linear":
            rope["factor"] = self.real("llama.rope.scaling.factor")
        factors = self.frequency_factors
        if factors is not None:
            rope.update(rope_type="factors", factors=list(factors))
        vocabulary = self.shapes["model.embed_tokens.weight"][0] if "model.embed_tokens.weight" in self.names else 0
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": dim,
            "head_dim": self.whole("llama.attention.key_length", head_dim),
            "intermediate_size": self.whole("llama.feed_forward_length"),
            "num_hidden_layers": self.whole("llama.block_count"),
            "num_attention_heads": heads,
            "num_key_value_heads": self.whole("llama.attention.head_count_kv", heads),
            "max_position_embeddings": self.whole("llama.context_length"),
            "rms_norm_eps": self.real("llama.attention.layer_norm_rms_epsilon"),
            "rope_parameters": rope,
            "rope_theta": rope["rope_theta"],
            "vocab_size": vocabulary,
            "tie_word_embeddings": "lm_head.weight" not in self.names,
            "bos_token_id": self.field("tokenizer.ggml.bos_token_id", None),
            "eos_token_id": self.field("tokenizer.ggml.eos_token_id", None),
            "pad_token_id": self.field("tokenizer.ggml.padding_token_id", None),
        }
