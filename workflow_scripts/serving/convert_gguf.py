"""Turn a Llama GGUF file into a Hugging Face model folder: `python -P convert_gguf.py MODEL.gguf FOLDER`.

It stands alone and runs with the server environment's Python, which holds gguf, torch, safetensors and tokenizers.
SGLang 0.5.23 can't load such a file as it is. Quantized tensors are dequantized by gguf's own code and stored as
bfloat16, which is what `transformers` makes of the same file, bit for bit.

Sources: the GGUF specification (keys `llama.*`, `tokenizer.ggml.*`), llama.cpp's convert_hf_to_gguf.py (the names of
the tensors, the order of the rows of q and k), and tokenizer.json of SmolLM2 (how text is split).
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy
import torch
from gguf import GGUFReader
from gguf.quants import dequantize
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

OUTER = {
    "token_embd": "model.embed_tokens.weight",
    "output_norm": "model.norm.weight",
    "output": "lm_head.weight",
}
IN_LAYER = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}
CONTROL_TOKEN = 3  # tokenizer.ggml.token_type


class Gguf:
    """A GGUF file's tensors, and its metadata by key."""

    def __init__(self, path: Path) -> None:
        self.reader = GGUFReader(path)

    def __getitem__(self, key: str) -> Any:
        return self.reader.fields[key].contents()

    def get(self, key: str, default: Any) -> Any:
        return self[key] if key in self.reader.fields else default


def rows_in_halves(weight: numpy.ndarray, heads: int) -> numpy.ndarray:
    """Undo llama.cpp's order of the rows of q and k: it pairs the rows that its rotary embedding turns together,
    where Hugging Face keeps the first of each pair in a head's first half."""
    pairs = weight.reshape(heads, weight.shape[0] // heads // 2, 2, *weight.shape[1:])
    return pairs.swapaxes(1, 2).reshape(weight.shape)


def tensors(gguf: Gguf) -> dict[str, torch.Tensor]:
    """Every tensor as bfloat16, under Hugging Face's name."""
    heads = {"attn_q": gguf["llama.attention.head_count"], "attn_k": gguf["llama.attention.head_count_kv"]}
    found = {}
    for tensor in gguf.reader.tensors:
        weight = dequantize(tensor.data, tensor.tensor_type)
        name = tensor.name.removesuffix(".weight")
        if name.startswith("blk."):
            _, layer, part = name.split(".")
            if part in heads:
                weight = rows_in_halves(weight, heads[part])
            name = f"model.layers.{layer}.{IN_LAYER[part]}.weight"
        else:
            name = OUTER[name]
        found[name] = torch.from_numpy(weight.copy()).to(torch.bfloat16)
    return found


def config(gguf: Gguf, tied: bool) -> dict[str, Any]:
    """config.json of a LlamaForCausalLM."""
    hidden, heads = gguf["llama.embedding_length"], gguf["llama.attention.head_count"]
    eos = gguf["tokenizer.ggml.eos_token_id"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": gguf["llama.feed_forward_length"],
        "num_hidden_layers": gguf["llama.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": gguf["llama.attention.head_count_kv"],
        "head_dim": hidden // heads,
        "vocab_size": gguf["llama.vocab_size"],
        "max_position_embeddings": gguf["llama.context_length"],
        # The file holds a float32; the model's own config says the decimal that is meant.
        "rms_norm_eps": float(f"{gguf['llama.attention.layer_norm_rms_epsilon']:.6g}"),
        "rope_theta": gguf["llama.rope.freq_base"],
        "hidden_act": "silu",
        "tie_word_embeddings": tied,
        "torch_dtype": "bfloat16",
        "bos_token_id": gguf["tokenizer.ggml.bos_token_id"],
        "eos_token_id": eos,
        "pad_token_id": gguf.get("tokenizer.ggml.padding_token_id", eos),
        "attention_bias": False,
        "mlp_bias": False,
    }


def tokenizer(gguf: Gguf) -> Tokenizer:
    """The byte-level BPE of the `smollm` pre-tokenizer: digits one by one, then GPT-2's split."""
    if gguf["tokenizer.ggml.model"] != "gpt2" or gguf["tokenizer.ggml.pre"] != "smollm":
        sys.exit(f"error: no rule for the pre-tokenizer {gguf['tokenizer.ggml.pre']!r} of this GGUF file")
    tokens = gguf["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ", 1)) for merge in gguf["tokenizer.ggml.merges"]]
    made = Tokenizer(models.BPE(vocab={token: number for number, token in enumerate(tokens)}, merges=merges))
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    made.decoder = decoders.ByteLevel()
    kinds = gguf["tokenizer.ggml.token_type"]
    made.add_special_tokens(
        [
            AddedToken(token, special=True, normalized=False)
            for token, kind in zip(tokens, kinds, strict=True)
            if kind == CONTROL_TOKEN
        ]
    )
    return made


def tokenizer_config(gguf: Gguf, settings: dict[str, Any]) -> dict[str, Any]:
    """tokenizer_config.json, with the chat template exactly as the file holds it."""
    tokens = gguf["tokenizer.ggml.tokens"]
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokens[settings["bos_token_id"]],
        "eos_token": tokens[settings["eos_token_id"]],
        "pad_token": tokens[settings["pad_token_id"]],
        "model_max_length": settings["max_position_embeddings"],
        "clean_up_tokenization_spaces": False,
        "chat_template": gguf["tokenizer.chat_template"],
    }


def write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def main() -> None:
    source, folder = Path(sys.argv[1]), Path(sys.argv[2])
    gguf = Gguf(source)
    if gguf["general.architecture"] != "llama":
        sys.exit(f"error: {source} holds a {gguf['general.architecture']} model; only llama is known here")
    folder.mkdir(parents=True, exist_ok=True)
    weights = tensors(gguf)
    settings = config(gguf, tied="lm_head.weight" not in weights)
    ids = {key: settings[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)  # it is made private
    write_json(folder / "config.json", settings)
    write_json(folder / "generation_config.json", ids)
    tokenizer(gguf).save(str(folder / "tokenizer.json"))
    write_json(folder / "tokenizer_config.json", tokenizer_config(gguf, settings))
    print(f"{len(weights)} tensors")


if __name__ == "__main__":
    main()
