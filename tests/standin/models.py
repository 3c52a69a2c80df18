"""Configs of known models, cut down to the keys that say what they take, with their weights' sizes and templates."""

from typing import Any

from workflow_scripts.serving import model_facts
from workflow_scripts.serving.model_facts import ModelFacts

QWEN3_TEMPLATE = "{%- if enable_thinking is defined and enable_thinking is false %}<think>{% endif %} tools <tool_call>"
QWEN35_TEMPLATE = (
    "{%- if enable_thinking is defined and enable_thinking is false %}<think>{% endif %} tools <function= <parameter="
)

# Hybrid: 48 of 64 layers are gated delta nets. Shapes: https://github.com/sgl-project/sglang/issues/33629
QWEN36_27B: dict[str, Any] = {
    "architectures": ["Qwen3_5ForConditionalGeneration"],
    "model_type": "qwen3_5",
    "vision_config": {"depth": 27},
    "text_config": {
        "model_type": "qwen3_5_text",
        "hidden_size": 5120,
        "num_hidden_layers": 64,
        "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 16,
        "num_attention_heads": 24,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 48,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "mamba_ssm_dtype": "float32",
        "max_position_embeddings": 262144,
    },
}
QWEN3_32B: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 5120,
    "num_hidden_layers": 64,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40960,
}
QWEN3_30B_A3B_FP8: dict[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "num_hidden_layers": 48,
    "hidden_size": 2048,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "num_experts": 128,
    "max_position_embeddings": 40960,
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
}
GPT_OSS_120B: dict[str, Any] = {
    "architectures": ["GptOssForCausalLM"],
    "model_type": "gpt_oss",
    "num_hidden_layers": 36,
    "hidden_size": 2880,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "num_local_experts": 128,
    "layer_types": ["sliding_attention", "full_attention"] * 18,
    "max_position_embeddings": 131072,
    "quantization_config": {"quant_method": "mxfp4"},
}
DEEPSEEK_V3: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "num_hidden_layers": 61,
    "hidden_size": 7168,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "n_routed_experts": 256,
    "max_position_embeddings": 163840,
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
}
LLAMA_70B_NVFP4: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": 80,
    "hidden_size": 8192,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192},
    "quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"},
}

GB = 10**9


def qwen36_27b() -> ModelFacts:
    return model_facts.of(QWEN36_27B, 55 * GB, QWEN35_TEMPLATE)


def qwen3_32b() -> ModelFacts:
    return model_facts.of(QWEN3_32B, 65 * GB, QWEN3_TEMPLATE)


def qwen3_30b_a3b_fp8() -> ModelFacts:
    return model_facts.of(QWEN3_30B_A3B_FP8, 31 * GB, QWEN3_TEMPLATE)


def gpt_oss_120b() -> ModelFacts:
    return model_facts.of(GPT_OSS_120B, 65 * GB, "<|channel|> tools")


def deepseek_v3() -> ModelFacts:
    return model_facts.of(DEEPSEEK_V3, 689 * GB, "{% if not thinking is defined %}<think> tools")


def llama_70b_nvfp4() -> ModelFacts:
    return model_facts.of(LLAMA_70B_NVFP4, 43 * GB, "ipython tools")
