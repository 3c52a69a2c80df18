"""What a model's config tells of it; the numbers are of the models' own cards and of SGLang's arithmetic."""

import json
from pathlib import Path

from tests.standin import models
from workflow_scripts.serving import model_facts


def test_a_hybrid_model() -> None:
    facts = models.qwen36_27b()
    assert facts.kind == "hybrid" and facts.traits == {"hybrid", "multimodal"}
    assert facts.kv_token == 16 * 2 * 4 * 256 * 2  # 16 layers have a cache
    assert facts.state == 48 * (48 * 128 * 128 * 4 + (2 * 16 * 128 + 48 * 128) * 3 * 2)
    assert (facts.model_type, facts.context, facts.quantization) == ("qwen3_5_text", 262144, "none")


def test_dense_and_mixtures() -> None:
    assert models.qwen3_32b().kind == "dense"
    assert models.qwen3_32b().kv_token == 64 * 2 * 8 * 128 * 2
    assert (models.qwen3_30b_a3b_fp8().kind, models.qwen3_30b_a3b_fp8().quantization) == ("moe", "fp8_block")
    assert (models.gpt_oss_120b().kind, models.gpt_oss_120b().quantization) == ("moe", "mxfp4")
    assert models.deepseek_v3().traits == {"moe", "mla"}
    assert models.deepseek_v3().kv_token == 61 * (512 + 64) * 2
    llama = models.llama_70b_nvfp4()
    assert (llama.quantization, llama.context) == ("nvfp4", 131072)
    assert llama.kv_token == 80 * 2 * 8 * 128 * 2  # the width follows from hidden_size


def test_other_ways_to_say_which_layers_are_what() -> None:
    interval = {**models.QWEN36_27B["text_config"], "full_attention_interval": 4}
    del interval["layer_types"]
    assert model_facts.of(interval, 0, None).state == models.qwen36_27b().state
    nemotron = {
        "model_type": "nemotron_h",
        "hybrid_override_pattern": "M-M*-",
        "num_attention_heads": 8,
        "head_dim": 64,
    }
    facts = model_facts.of(nemotron, 0, None)
    assert (facts.kind, facts.state, facts.kv_token) == ("hybrid", None, 2 * 8 * 64 * 2)


def test_a_stretched_context_is_read_as_sglang_reads_it() -> None:
    base = {"max_position_embeddings": 32768}
    yarn = {"rope_type": "yarn", "factor": 4.0}
    assert model_facts.of({**base, "rope_scaling": yarn}, 0, None).context == 131072
    told = {**yarn, "original_max_position_embeddings": 32768}
    assert model_facts.of({**base, "rope_scaling": told}, 0, None).context == 32768


def test_a_config_that_tells_nothing_is_no_error() -> None:
    facts = model_facts.of({}, 0, None)
    assert (facts.kind, facts.kv_token, facts.state, facts.context, facts.heads) == ("dense", None, None, None, None)


def test_weights_and_template_are_read_from_the_folder(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(models.QWEN3_32B))
    for name in ("model-1.safetensors", "model-2.safetensors", "consolidated.safetensors"):
        (tmp_path / name).write_bytes(b"12345")
    assert model_facts.read(tmp_path).weights == 10
    assert model_facts.read(tmp_path).template is None
    named = [{"name": "default", "template": "one"}, {"name": "tool_use", "template": "two"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    assert model_facts.read(tmp_path).template == "one"
    (tmp_path / "chat_template.jinja").write_text("own")
    assert model_facts.read(tmp_path).template == "own"
    assert model_facts.read(tmp_path, "given").template == "given"
