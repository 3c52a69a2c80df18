"""A small real tokenizer with a chat template, made here: byte-level BPE, as Qwen's and Llama 3's are."""

from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from workflow_scripts import files

TEMPLATES = Path(__file__).parents[1] / "data" / "templates"
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEXT = "What is the weather like in Paris today? Tell me a story about the old house. def add(a, b): return a + b"


def make_tokenizer(folder: Path, template: str = "qwen3_like") -> Path:
    """Write tokenizer.json, tokenizer_config.json and chat_template.jinja; `template` is one of tests/data/templates.

    tokenizer.json says to cut at 16 tokens and to pad, as files of the hub may.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=330, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([TEXT] * 3, trainer)
    tokenizer.enable_truncation(16)
    tokenizer.enable_padding(length=64)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIAL[0],
        "eos_token": SPECIAL[2],
        "pad_token": SPECIAL[0],
        "model_max_length": 131072,
    }
    files.write_json(folder / "tokenizer_config.json", config)
    files.write_bytes(folder / "chat_template.jinja", (TEMPLATES / f"{template}.jinja").read_bytes())
    return folder
