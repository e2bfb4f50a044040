"""Tiny random models of every adapter, and the two real checkpoints that Python packages carry."""

from __future__ import annotations

import os

# Before any import of huggingface_hub, which reads it once.
os.environ["HF_HUB_OFFLINE"] = "1"
# Small matrices: more threads than one only wait for each other.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

VOCABULARY = 64
TOKENS = 12


def _llama(**changes: Any) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    options = {
        "hidden_size": 24,
        "intermediate_size": 32,
        "num_hidden_layers": 3,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 32,
    }
    return LlamaForCausalLM(LlamaConfig(**{**options, **changes}))


def _mistral() -> Any:
    from transformers import MistralConfig, MistralForCausalLM

    return MistralForCausalLM(
        MistralConfig(
            hidden_size=24,
            intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            vocab_size=VOCABULARY,
            max_position_embeddings=32,
            sliding_window=5,
        )
    )


def _qwen2() -> Any:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    return Qwen2ForCausalLM(
        Qwen2Config(
            hidden_size=24,
            intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            vocab_size=VOCABULARY,
            max_position_embeddings=32,
        )
    )


def _gpt2() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(n_embd=24, n_layer=3, n_head=4, vocab_size=VOCABULARY, n_positions=32))


def _gpt_neox() -> Any:
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

    return GPTNeoXForCausalLM(
        GPTNeoXConfig(
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=3,
            num_attention_heads=4,
            vocab_size=VOCABULARY,
            max_position_embeddings=32,
            rotary_pct=0.5,
        )
    )


def _bert() -> Any:
    from transformers import BertConfig, BertModel

    return BertModel(
        BertConfig(
            hidden_size=24,
            intermediate_size=32,
            num_hidden_layers=3,
            num_attention_heads=4,
            vocab_size=VOCABULARY,
            max_position_embeddings=32,
        )
    )


def _albert() -> Any:
    from transformers import AlbertConfig, AlbertModel

    return AlbertModel(
        AlbertConfig(
            hidden_size=24,
            embedding_size=12,
            intermediate_size=32,
            num_hidden_layers=4,
            num_hidden_groups=2,
            num_attention_heads=4,
            vocab_size=VOCABULARY,
            max_position_embeddings=32,
        )
    )


@dataclass(frozen=True)
class Family:
    """How to build a tiny model and where its attention output leaves a module."""

    build: Any
    output: str


FAMILIES = {
    "llama": Family(_llama, "model.layers.{}.self_attn"),
    "llama3 rope": Family(
        lambda: _llama(
            rope_parameters={
                "rope_type": "llama3",
                "rope_theta": 10000.0,
                "factor": 4.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 16,
            }
        ),
        "model.layers.{}.self_attn",
    ),
    "llama linear rope": Family(
        lambda: _llama(
            rope_parameters={"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}, attention_bias=True
        ),
        "model.layers.{}.self_attn",
    ),
    "mistral": Family(_mistral, "model.layers.{}.self_attn"),
    "qwen2": Family(_qwen2, "model.layers.{}.self_attn"),
    "gpt2": Family(_gpt2, "transformer.h.{}.attn"),
    "gpt_neox": Family(_gpt_neox, "gpt_neox.layers.{}.attention"),
    "bert": Family(_bert, "encoder.layer.{}.attention.output.dense"),
    "albert": Family(_albert, "encoder.albert_layer_groups.{}.albert_layers.0.attention.dense"),
}


def randomised(model: Any, seed: int = 0) -> Any:
    """The model with every parameter moved, so that gains differ from one and biases and shifts from zero."""
    import torch

    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model.eval()


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory):
    """name -> (model, folder it was saved to); built once each."""
    made: dict[str, tuple[Any, Path]] = {}

    def get(name: str) -> tuple[Any, Path]:
        if name not in made:
            model = randomised(FAMILIES[name].build())
            model.set_attn_implementation("eager")
            folder = tmp_path_factory.mktemp(name.replace(" ", "-"))
            model.save_pretrained(folder)
            made[name] = (model, folder)
        return made[name]

    return get


@pytest.fixture(scope="session")
def ids() -> list[int]:
    """Token ids for the tiny models."""
    return [int(i) for i in np.random.default_rng(0).integers(0, VOCABULARY, TOKENS)]


@pytest.fixture(scope="session")
def smollm2(smollm2_cache: Path):
    """SmolLM2, converted once: (model, tokenizer)."""
    from metastable.checkpoints import load_model

    return load_model("smollm2")


@pytest.fixture(scope="session")
def smollm2_states(smollm2):
    """Token states and attention on 128 tokens of the shipped prose."""
    from metastable.checkpoints import sample_text, token_states

    return token_states(*smollm2, sample_text(), max_tokens=128, attentions=True)
