"""What a model's files tell of it: its kind, its parts, and what it takes of a GPU's memory.

By the keys of Hugging Face configs as SGLang 0.5.23 reads them (sglang/srt/configs, model_config.py), of models of
several parts those of `text_config`.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workflow_scripts import files

CACHED = ("full_attention", "attention", "sliding_attention", "chunked_attention")
LINEAR = ("linear_attention", "mamba", "mamba2", "kda", "gdn")
SINKS = ("add_swa_attention_sink_bias", "add_full_attention_sink_bias", "learnable_sink")
BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


@dataclass(frozen=True)
class ModelFacts:
    """A model as its config.json and files describe it. Sizes in bytes; None or 0 where the config doesn't tell.

    `traits` are of: moe, hybrid (linear attention or Mamba beside attention), mla, sparse (attention with an indexer),
    sinks (attention with learned sinks), multimodal. `quantization` is one of none, fp8, fp8_block, nvfp4, or the
    config's own word.
    """

    architecture: str
    model_type: str
    traits: frozenset[str]
    quantization: str
    weights: int
    context: int | None
    heads: int | None
    kv_heads: int | None
    kv_token: int | None  # of a token, in all layers, at two bytes a number
    state: int | None  # of a request's linear-attention state, in all layers
    template: str | None

    @property
    def kind(self) -> str:
        """dense, moe, hybrid or hybrid moe."""
        parts = [part for part in ("hybrid", "moe") if part in self.traits]
        return " ".join(parts) or "dense"


def config_of(folder: Path) -> dict[str, Any]:
    """A model's config.json. PlainError if there is none, or it is damaged."""
    config: dict[str, Any] = files.read_json(folder / "config.json", remedy="copy the model's files anew")
    return config


def read(folder: Path, template: str | None = None) -> ModelFacts:
    """The facts of a model's folder; `template` stands in for its own chat template."""
    config = config_of(folder)
    weights = [path for path in folder.glob("*.safetensors") if not path.name.startswith("consolidated")]
    size = sum(path.stat().st_size for path in weights or folder.glob("*.safetensors"))
    return of(config, size, template if template is not None else chat_template(folder))


def of(config: Mapping[str, Any], weights: int, template: str | None) -> ModelFacts:
    """The facts that a config.json tells."""
    text = config.get("text_config")
    inner: Mapping[str, Any] = text if isinstance(text, dict) else config
    layers = _layers(inner)
    architectures = config.get("architectures") or inner.get("architectures")
    return ModelFacts(
        architecture=str(architectures[0]) if architectures and isinstance(architectures, list) else "",
        model_type=str(inner.get("model_type") or config.get("model_type") or ""),
        traits=_traits(config, inner, layers),
        quantization=_quantization(config, inner),
        weights=weights,
        context=_context(inner),
        heads=_whole(inner, "num_attention_heads"),
        # MLA keeps one compressed vector for all heads.
        kv_heads=None if _whole(inner, "kv_lora_rank") else _whole(inner, "num_key_value_heads"),
        kv_token=_kv_token(inner, sum(layer in CACHED for layer in layers)),
        state=_state(inner, sum(layer in LINEAR for layer in layers)),
        template=template,
    )


def chat_template(folder: Path) -> str | None:
    """The chat template of a model's folder, as transformers finds it; None without one."""
    own = folder / "chat_template.jinja"
    if own.is_file():
        return own.read_text(encoding="utf-8", errors="replace")
    for name in ("chat_template.json", "tokenizer_config.json"):
        try:
            value = json.loads((folder / name).read_text(encoding="utf-8")).get("chat_template")
        except (OSError, ValueError, AttributeError):
            continue
        if isinstance(value, list):  # several, by name
            named = {entry.get("name"): entry.get("template") for entry in value if isinstance(entry, dict)}
            value = named.get("default")
        if isinstance(value, str):
            return value
    return None


def _whole(config: Mapping[str, Any], *names: str) -> int | None:
    return next((config[name] for name in names if isinstance(config.get(name), int)), None)


def _context(inner: Mapping[str, Any]) -> int | None:
    """As get_context_length of srt/utils/hf_transformers/common.py."""
    own = _whole(inner, "max_position_embeddings", "max_sequence_length", "model_max_length")
    rope = inner.get("rope_scaling")
    if own is None or not isinstance(rope, dict):
        return own
    stretched = "original_max_position_embeddings" in rope or rope.get("rope_type") == "llama3"
    factor = rope.get("factor", 1)
    return own if stretched or not isinstance(factor, int | float) else int(own * factor)


def _layers(inner: Mapping[str, Any]) -> list[str]:
    """The kind of each layer."""
    count = _whole(inner, "num_hidden_layers") or 0
    types = inner.get("layer_types") or inner.get("layers_block_type")
    if isinstance(types, list):
        return [str(one) for one in types]
    if isinstance(pattern := inner.get("hybrid_override_pattern"), str):  # Nemotron-H: M is Mamba, * attention
        return [{"M": "mamba", "*": "attention"}.get(one, "mlp") for one in pattern]
    every = _whole(inner, "full_attention_interval")  # Qwen3-Next: of so many layers the last
    if every and _whole(inner, "linear_num_value_heads"):
        return ["full_attention" if (number + 1) % every == 0 else "linear_attention" for number in range(count)]
    return ["full_attention"] * count


def _traits(config: Mapping[str, Any], inner: Mapping[str, Any], layers: list[str]) -> frozenset[str]:
    experts = _whole(inner, "num_experts", "num_local_experts", "n_routed_experts") or 0
    found = {
        "moe": experts > 1,
        "hybrid": any(layer in LINEAR for layer in layers),
        "mla": _whole(inner, "kv_lora_rank") is not None,
        "sparse": _whole(inner, "index_topk") is not None,  # is_deepseek_dsa
        "sinks": any(inner.get(key) for key in SINKS),  # ModelConfig._detect_attention_sinks
        "multimodal": any(isinstance(config.get(part), dict) for part in ("vision_config", "audio_config")),
    }
    return frozenset(name for name, there in found.items() if there)


def _quantization(config: Mapping[str, Any], inner: Mapping[str, Any]) -> str:
    held = config.get("quantization_config") or inner.get("quantization_config")
    if not isinstance(held, dict):
        return "none"
    method = str(held.get("quant_method") or "")
    algorithm = str(held.get("quant_algo") or held.get("format") or "").lower()
    if "nvfp4" in algorithm or algorithm == "fp4":
        return "nvfp4"
    if method == "fp8":
        return "fp8_block" if held.get("weight_block_size") else "fp8"
    return "fp8" if "fp8" in algorithm or "float-quantized" in algorithm else method or "none"


def _kv_token(inner: Mapping[str, Any], layers: int) -> int | None:
    rank = _whole(inner, "kv_lora_rank")
    if rank is not None:  # MLA caches one compressed vector for keys and values
        return layers * (rank + (_whole(inner, "qk_rope_head_dim") or 0)) * 2
    heads = _whole(inner, "num_attention_heads")
    kv_heads, hidden = _whole(inner, "num_key_value_heads") or heads, _whole(inner, "hidden_size")
    if not heads or not kv_heads:
        return None
    width = _whole(inner, "head_dim") or (hidden or 0) // heads
    return layers * 2 * kv_heads * width * 2 or None


def _state(inner: Mapping[str, Any], layers: int) -> int | None:
    """Gated delta nets: a matrix for each value head, and the last inputs of a convolution (configs/qwen3_next.py)."""
    values, keys = _whole(inner, "linear_num_value_heads"), _whole(inner, "linear_num_key_heads")
    value_width, key_width = _whole(inner, "linear_value_head_dim"), _whole(inner, "linear_key_head_dim")
    if not (values and keys and value_width and key_width and layers):
        return None
    number = BYTES.get(str(inner.get("mamba_ssm_dtype") or "float32"), 4)
    kernel = _whole(inner, "linear_conv_kernel_dim") or 4
    convolution = (2 * keys * key_width + values * value_width) * (kernel - 1) * 2
    return layers * (values * value_width * key_width * number + convolution)
