"""Make and train a tiny Qwen3 that thinks and calls a tool: `PYTHON -P tiny_qwen3.py FOLDER`.

PYTHON is the server environment's.

1.4 million parameters, a byte-level BPE of its own, and a chat template like Qwen3's: it thinks unless
`enable_thinking` is false. About 30 seconds on two cores. It is overfitted on fifteen questions to answer, with or
without thinking, first in a conversation or second, one of three labels:

    <think>\\nThe request looks like code.\\n</think>\\n\\ncode<|im_end|>

so a test can predict its greedy answers (`QUESTIONS`), and tell thinking from answer. With `TOOL` it answers "weather
in rome" or "weather in oslo" by one call, "weather in rome and oslo" by two at once, and results by "done". Its
template refuses two questions in a row.
"""

import os
import pydoc_data.topics
import random
import runpy
import sys
from pathlib import Path
from typing import Any

QUESTIONS = {
    "code": (
        "write a python function that sorts a list",
        "fix this bug in my class",
        "explain the import statement",
        "what does a for loop do",
        "write a module that opens a file",
    ),
    "math": (
        "what is 12 times 7",
        "compute the sum of 3 and 9",
        "solve the equation x plus 2 is 5",
        "divide 81 by 9",
        "what is the square of 11",
    ),
    "chat": (
        "hello how are you",
        "tell me a joke",
        "good morning",
        "what is your name",
        "thank you very much",
    ),
}
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
PLAIN = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")
TEMPLATE = Path(__file__).parents[1] / "data" / "templates" / "qwen3.jinja"
# As some templates do, and Qwen3's does not.
REFUSAL = """\
{%- for message in messages %}{%- if not loop.last and message.role == 'user' and loop.nextitem.role == 'user' %}
{{- raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
{%- endif %}{%- endfor %}
"""
CITIES = ("rome", "oslo")
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tells it.",
        "parameters": {"type": "object"},
    },
}
AS_SENT = TOOL | {"defer_loading": None}  # so SGLang 0.5.23 hands a tool to the template
CONTEXT = 4096
HIDDEN, LAYERS, HEAD = 128, 2, 32
STEPS, BATCH = 120, 16


def make_tokenizer() -> Any:
    """A BPE of 4,000 tokens, trained on the texts of Python's own help."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=4000, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(list(pydoc_data.topics.topics.values()), trainer)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in PLAIN])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        clean_up_tokenization_spaces=False,
        model_max_length=CONTEXT,
    )
    fast.chat_template = REFUSAL + TEMPLATE.read_text(encoding="utf-8")
    return fast


def make_model(tokenizer: Any) -> Any:
    """A Qwen3 with random weights; its vocabulary is padded to a multiple of 64, as real ones are."""
    import torch
    from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM

    end, pad = tokenizer.eos_token_id, tokenizer.pad_token_id
    config = Qwen3Config(
        vocab_size=-(-len(tokenizer) // 64) * 64,
        hidden_size=HIDDEN,
        intermediate_size=3 * HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HIDDEN // HEAD,
        num_key_value_heads=HIDDEN // (2 * HEAD),
        head_dim=HEAD,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=False,
        initializer_range=0.05,
        bos_token_id=pad,
        eos_token_id=end,
        pad_token_id=pad,
    )
    model = Qwen3ForCausalLM(config).to(torch.float32)
    model.generation_config = GenerationConfig(bos_token_id=pad, eos_token_id=[end, pad], pad_token_id=pad)
    return model


def thought(text: str, thinking: bool) -> str:
    return f"<think>\n{text}\n</think>\n\n" if thinking else ""


def calls(cities: tuple[str, ...]) -> list[dict[str, Any]]:
    return [{"function": {"name": "weather", "arguments": {"city": city}}} for city in cities]


def conversation(chance: random.Random, thinking: bool, has_tool: bool) -> tuple[list[dict[str, Any]], str]:
    """A history, and what the model says next."""
    if not has_tool:
        label = chance.choice(sorted(QUESTIONS))
        history: list[dict[str, Any]] = [{"role": "user", "content": chance.choice(QUESTIONS[label])}]
        if chance.random() < 0.5:  # the second question; SGLang leaves the line breaks after thoughts in the content
            before = chance.choice(sorted(QUESTIONS))
            asked = {"role": "user", "content": chance.choice(QUESTIONS[before])}
            history = [asked, {"role": "assistant", "content": ("\n\n" if thinking else "") + before}, *history]
        return history, thought(f"The request looks like {label}.", thinking) + label
    cities = chance.choice([(CITIES[0],), (CITIES[1],), CITIES])
    history = [{"role": "user", "content": f"weather in {' and '.join(cities)}"}]
    reason = "I need the weather."
    if chance.random() < 0.6:
        said = [
            f'<tool_call>\n{{"name": "weather", "arguments": {{"city": "{city}"}}}}\n</tool_call>' for city in cities
        ]
        return history, thought(reason, thinking) + "\n".join(said)
    results = [{"role": "tool", "content": chance.choice(["sun", "rain", "snow"])} for _ in cities]
    called: dict[str, Any] = {"role": "assistant", "content": "", "tool_calls": calls(cities)}
    if thinking:
        called["reasoning_content"] = reason
    return [*history, called, *results], thought("The tool has answered.", thinking) + "done"


def example(tokenizer: Any, chance: random.Random, has_tool: bool) -> tuple[list[int], list[int]]:
    """Token ids and labels (-100 where nothing is learned) of a history with what comes next."""
    thinking = chance.random() < 0.5
    history, answer = conversation(chance, thinking, has_tool)
    prompt = tokenizer.apply_chat_template(
        history,
        tools=[AS_SENT] if has_tool else None,
        tokenize=False,
        add_generation_prompt=True,
        enable_thinking=thinking,
    )
    prompt_ids = tokenizer(prompt, add_special_tokens=False)["input_ids"]
    answer_ids = tokenizer(f"{answer}<|im_end|>", add_special_tokens=False)["input_ids"]
    return prompt_ids + answer_ids, [-100] * len(prompt_ids) + answer_ids


def loss_of(model: Any, tokenizer: Any, batch: list[tuple[list[int], list[int]]]) -> Any:
    import torch

    width = max(len(ids) for ids, _ in batch)
    ids = torch.tensor([ids + [tokenizer.pad_token_id] * (width - len(ids)) for ids, _ in batch])
    labels = torch.tensor([labels + [-100] * (width - len(labels)) for _, labels in batch])
    lengths = torch.tensor([len(ids) for ids, _ in batch])
    mask = (torch.arange(width)[None] < lengths[:, None]).long()
    return model(input_ids=ids, attention_mask=mask, labels=labels).loss


def train(model: Any, tokenizer: Any) -> float:
    """Overfit the model; the last loss."""
    import torch

    chance = random.Random(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    model.train()
    last = 0.0
    for _ in range(STEPS):
        optimizer.zero_grad()
        last = 0.0
        for has_tool in (False, True):  # apart, for those with the tool are longer
            loss = loss_of(model, tokenizer, [example(tokenizer, chance, has_tool) for _ in range(BATCH // 2)])
            loss.backward()
            last = max(last, float(loss.detach()))
        optimizer.step()
    return last


def main() -> None:
    folder = Path(sys.argv[1])
    import torch

    torch.manual_seed(0)
    torch.set_num_threads(1)  # so small a model only loses by more, above all on a busy machine
    tokenizer = make_tokenizer()
    model = make_model(tokenizer)
    loss = train(model, tokenizer)
    if loss > 0.01:
        sys.exit(f"error: the tiny Qwen3 did not learn its answers (loss {loss:.3f})")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    print(f"{sum(weight.numel() for weight in model.parameters()):,} parameters, loss {loss:.5f}")


if __name__ == "__main__":
    # transformers imports torchvision, which needs what the launcher does at import for the CPU engine.
    os.environ["DRAFTMILL_ENGINE"] = "sglang-cpu"
    SHIMS = runpy.run_path(str(Path(__file__).parents[2] / "workflow_scripts" / "serving" / "sglang_server.py"))
    main()
