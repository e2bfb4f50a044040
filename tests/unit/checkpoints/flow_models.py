"""Small random models of every architecture that a flow is tested on."""

from __future__ import annotations

from functools import cache
from typing import Any

VOCABULARY = 64
CONTEXT = 32

DECODER = {
    "hidden_size": 24,
    "intermediate_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": CONTEXT,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
ENCODER = {name: value for name, value in DECODER.items() if name != "num_key_value_heads"}
NEOX = {**ENCODER, "hidden_size": 32, "rotary_pct": 0.5}

# name: (model class, config class, options, kind of layer, whether causal)
ARCHITECTURES: dict[str, tuple[str, str, dict[str, Any], str, bool]] = {
    "llama": ("LlamaForCausalLM", "LlamaConfig", DECODER, "sequential", True),
    "mistral": ("MistralForCausalLM", "MistralConfig", {**DECODER, "sliding_window": 5}, "sequential", True),
    "qwen2": ("Qwen2ForCausalLM", "Qwen2Config", DECODER, "sequential", True),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3Config", {**DECODER, "head_dim": 8}, "sequential", True),
    "gemma2": (
        "Gemma2ForCausalLM",
        "Gemma2Config",
        {**DECODER, "head_dim": 8, "sliding_window": 4},
        "sequential",
        True,
    ),
    "gemma3": (
        "Gemma3ForCausalLM",
        "Gemma3TextConfig",
        {**DECODER, "head_dim": 8, "sliding_window": 4, "num_hidden_layers": 7},
        "sequential",
        True,
    ),
    "olmo2": ("Olmo2ForCausalLM", "Olmo2Config", DECODER, "sequential", True),
    "phi3": ("Phi3ForCausalLM", "Phi3Config", DECODER, "sequential", True),
    "gpt2": (
        "GPT2LMHeadModel",
        "GPT2Config",
        {
            "n_embd": 24,
            "n_layer": 3,
            "n_head": 4,
            "vocab_size": VOCABULARY,
            "n_positions": CONTEXT,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
        "sequential",
        True,
    ),
    "gpt_neox": ("GPTNeoXForCausalLM", "GPTNeoXConfig", NEOX, "parallel", True),
    "gpt_neox sequential": (
        "GPTNeoXForCausalLM",
        "GPTNeoXConfig",
        {**NEOX, "use_parallel_residual": False},
        "sequential",
        True,
    ),
    "bert": ("BertModel", "BertConfig", ENCODER, "post", False),
    "albert": (
        "AlbertModel",
        "AlbertConfig",
        {**ENCODER, "embedding_size": 12, "num_hidden_layers": 4, "num_hidden_groups": 2, "inner_group_num": 2},
        "post",
        False,
    ),
}


@cache
def build(name: str) -> Any:
    """The model with every parameter moved, so that gains differ from one and biases from zero; eager attention."""
    import torch
    import transformers

    model_class, config_class, options, _, _ = ARCHITECTURES[name]
    torch.manual_seed(0)
    model = getattr(transformers, model_class)(getattr(transformers, config_class)(**options))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    model.set_attn_implementation("eager")
    return model.eval()
