"""Our model in the words of Llama: the names of its tensors and the fields of its configuration.

Nothing but names differs: our rotary pairs (i, i + D/2), row-major [out, in] matrices, norms and
SwiGLU are those of transformers' LlamaForCausalLM. May import: train, config.
"""

from __future__ import annotations

from p2pnode.config import ModelConfig
from p2pnode.train.layers import NORM_EPS
from p2pnode.train.layout import layout_of
from p2pnode.train.model import ROPE_BASE
from p2pnode.train.tokenizer import Tokenizer

_IN_LAYER = {
    "attn_norm": "input_layernorm",
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}
_OUTSIDE = {"embed": "model.embed_tokens.weight", "norm": "model.norm.weight"}


def names(model: ModelConfig) -> dict[str, str]:
    """Our name of each tensor, in layout order, to transformers' name."""
    return {name: _OUTSIDE.get(name) or _layer_name(name) for name in layout_of(model).names}


def _layer_name(name: str) -> str:
    _, number, part = name.split(".")
    return f"model.layers.{number}.{_IN_LAYER[part]}.weight"


def shape_fields(model: ModelConfig) -> dict[str, object]:
    """What a config.json says of the shape; these fields and no others decide what is computed."""
    return {
        "attention_bias": False,
        "head_dim": model.head_dim,
        "hidden_act": "silu",
        "hidden_size": model.width,
        "intermediate_size": model.ffn,
        "max_position_embeddings": model.seq_len,
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": model.heads,
        "num_hidden_layers": model.layers,
        "num_key_value_heads": model.heads,
        "rms_norm_eps": NORM_EPS,
        "rope_theta": float(ROPE_BASE),
        "tie_word_embeddings": True,
        "vocab_size": model.vocab,
    }


def config_json(model: ModelConfig, tokenizer: Tokenizer) -> dict[str, object]:
    """The content of a config.json."""
    return shape_fields(model) | {
        "architectures": ["LlamaForCausalLM"],
        "bos_token_id": tokenizer.separator,
        "eos_token_id": tokenizer.separator,
        "initializer_range": 0.02,
        "torch_dtype": "float32",
        "use_cache": True,
    }
