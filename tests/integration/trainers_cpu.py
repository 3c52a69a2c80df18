"""What the trainers make of an export, by their own code: `PYTHON -P trainers_cpu.py REPORT EXPORT MODEL SIZE`.

PYTHON is the trainers' environment's; SIZE is that of the draft vocabulary. In REPORT, as JSON:

    parquet      rows of datasets.load_dataset
    arrow        rows that `speculators prepare-data` wrote from the JSON lines, and its token frequencies
    specforge    payloads of SpecForge's prepare_prompt_tasks, and the batches of its collator
    texts        SpecForge's own rendering of the conversations: ids and masks
    mappings     d2t and t2d as speculators and SpecForge load them, and as speculators makes them of the frequencies
    logprobs     of each Parquet row, the target's log-probability of each of its tokens but the first
    losses       of twenty training steps of a tiny eagle3 and a tiny dflash drafter

After speculators' train/cli.py (0.9.0), of which the parts that want an accelerator are left out.
"""

import json
import os
import runpy
import sys
from pathlib import Path
from typing import Any

SHIMS = Path(__file__).parents[2] / "workflow_scripts" / "serving" / "sglang_server.py"
WINDOW = 512
AUX = (0, 1, 2)  # the hidden states that drafters are given; the last, once more, is the target's own
STEPS = 20


def parquet(export: Path) -> list[dict[str, Any]]:
    from datasets import load_dataset

    rows: list[dict[str, Any]] = load_dataset(
        "parquet", data_files=str(export / "train-*.parquet"), split="train", cache_dir="cache"
    ).to_list()
    return rows


def prepared(export: Path, model: Path) -> dict[str, Any]:
    """`speculators prepare-data` on the folder of JSON lines."""
    import torch
    from datasets import load_from_disk
    from speculators.__main__ import app

    arguments = ["--model", model, "--data", export / "jsonl" / "train", "--output", "arrow", "--seq-length", WINDOW]
    arguments += ["--num-preprocessing-workers", 1, "--no-skip-token-freq"]
    app(["prepare-data", *map(str, arguments)], standalone_mode=False)
    made = load_from_disk("arrow").with_format(None)
    counts = torch.load("arrow/token_freq.pt", weights_only=True)
    return {"rows": made.to_list(), "frequencies": counts}


def specforge(export: Path, tokenizer: Any) -> dict[str, Any]:
    import torch
    from specforge.data.prompt_builder import prepare_prompt_tasks
    from specforge.data.utils import DataCollatorWithPadding

    options: dict[str, Any] = {"max_length": WINDOW, "is_preformatted": False, "train_only_last_turn": False}
    options |= {"cache_dir": None, "cache_key": None, "num_proc": 1}
    tasks = prepare_prompt_tasks(export / "jsonl" / "train" / "00000.jsonl", None, chat_template=None, **options)
    payloads = [task["payload"] for task in tasks]
    items = [
        {
            "input_ids": torch.tensor([payload["input_ids"]]),
            "attention_mask": torch.ones(1, len(payload["input_ids"]), dtype=torch.long),
            "loss_mask": torch.tensor([payload["loss_mask"]]),
        }
        for payload in payloads
    ]
    collate = DataCollatorWithPadding()
    batches = [collate(items[at : at + 4]) for at in range(0, len(items), 4)]
    names = ("input_ids", "attention_mask", "loss_mask")
    talks = prepare_prompt_tasks(
        export / "conversations" / "train" / "00000.jsonl", tokenizer, chat_template="qwen", **options
    )
    return {
        "payloads": payloads,
        "batches": [{name: batch[name].tolist() for name in names} for batch in batches],
        "texts": [talk["payload"] for talk in talks],
    }


def mappings(export: Path, size: int, vocabulary: int) -> dict[str, Any]:
    import torch
    from speculators.train.cli import _load_mappings
    from speculators.train.vocab_mapping import build_vocab_mappings_from_distribution

    loaded = _load_mappings(export / f"d2t-{size}.npy", export / f"t2d-{size}.npy", size)[:2]
    counts = torch.load(export / "token_freq.pt", weights_only=True)
    own = build_vocab_mappings_from_distribution(counts, size, vocabulary)
    pair = torch.load(export / f"vocab_mapping-{size}.pt", weights_only=True)
    every = {"speculators": loaded, "own": own, "specforge": (pair["d2t"], pair["t2d"])}
    return {"frequencies": counts, **{name: [one.tolist() for one in both] for name, both in every.items()}}


def logprobs(model: Any, rows: list[dict[str, Any]]) -> list[list[float]]:
    import torch

    found = []
    for row in rows:
        ids = torch.tensor(row["input_ids"])
        with torch.no_grad():
            said = model(ids[None]).logits[0].float().log_softmax(-1)
        found.append(said[:-1].gather(1, ids[1:, None])[:, 0].tolist())
    return found


def save_hidden_states(model: Any) -> None:
    """Of each Arrow row, as a file of hs_connectors: [tokens, states, hidden]."""
    import torch
    from datasets import load_from_disk
    from safetensors.torch import save_file

    Path("hidden").mkdir()
    for at, row in enumerate(load_from_disk("arrow")):
        with torch.no_grad():
            states = model(row["input_ids"][None], output_hidden_states=True).hidden_states
        stacked = torch.stack([states[layer][0] for layer in (*AUX, AUX[-1])], 1).contiguous()
        save_file({"hidden_states": stacked, "token_ids": row["input_ids"]}, f"hidden/hs_{at}.safetensors")


def train(kind: str, model: Path, export: Path, size: int) -> list[float]:
    """Twenty steps through speculators' data and model classes; the loss of each."""
    import numpy as np
    import torch
    from hs_connectors import FileTransfer
    from speculators.models.dflash.core import DFlashDraftModel
    from speculators.models.eagle3.core import Eagle3DraftModel
    from speculators.models.eagle3.data import shift_batch
    from speculators.train.data import ArrowDataset, CollateFn
    from torch.utils.data import DataLoader
    from transformers import AutoConfig, LlamaConfig, Qwen3Config

    torch.manual_seed(0)
    target = AutoConfig.from_pretrained(model)
    shape = {"vocab_size": target.vocab_size, "hidden_size": target.hidden_size, "intermediate_size": 256}
    shape |= {"num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}
    shared: dict[str, Any] = {"verifier_name_or_path": str(model), "target_layer_ids": list(AUX)}
    shared |= {"draft_attn_impl": "sdpa", "norm_before_residual": True, "loss_implementation": "eager"}
    if kind == "eagle3":
        # Over the draft vocabulary of the export.
        d2t, t2d = (torch.from_numpy(np.load(export / f"{name}-{size}.npy")) for name in ("d2t", "t2d"))
        options = shared | {"draft_vocab_size": size, "ttt_steps": 2}
        drafter = Eagle3DraftModel.from_training_args(LlamaConfig(**shape), t2d=t2d, d2t=d2t, **options)
        drafter.load_vocab_mappings(t2d, d2t)
        drafter.load_verifier_weights()
        options, _ = Eagle3DraftModel.get_trainer_kwargs(
            loss_fn="kl_div", loss_implementation="eager", ttt_steps=2, ttt_step_loss_decay=1.0
        )
    else:
        options = shared | {"draft_vocab_size": target.vocab_size, "block_size": 4, "max_anchors": 32}
        options |= {"mask_token_id": target.vocab_size - 1, "loss_fn": "ce", "num_layers": 1}
        options |= {"dflash_decay_gamma": 4.0, "per_position_loss_weight": "fixed-exp-decay", "dpace_alpha": 0.5}
        drafter = DFlashDraftModel.from_training_args(Qwen3Config(**shape), t2d=None, d2t=None, **options)
        options, _ = DFlashDraftModel.get_trainer_kwargs(**options)
    drafter = drafter.float()
    rows = ArrowDataset(
        max_len=WINDOW,
        datapath="arrow",
        transfer=FileTransfer(Path("hidden")),
        on_missing="raise",
        hidden_states_dtype=torch.float32,
    )
    collate = CollateFn(
        max_len=WINDOW,
        hidden_size=target.hidden_size,
        num_target_layers=len(AUX),
        dtype=torch.float32,
        **({"preprocess": shift_batch} if kind == "eagle3" else {}),
    )
    loader = DataLoader(rows, batch_size=4, collate_fn=collate)
    optimizer = torch.optim.AdamW([weight for weight in drafter.parameters() if weight.requires_grad], lr=1e-3)
    losses: list[float] = []
    while len(losses) < STEPS:
        for batch in loader:
            batch.pop("error_records", None)
            loss = drafter(**batch, **options)[1]
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
    return losses[:STEPS]


def main() -> None:
    report, export, folder, size = Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4])
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(folder).float().eval()
    rows = parquet(export)
    made = {
        "parquet": rows,
        "arrow": prepared(export, folder),
        "specforge": specforge(export, AutoTokenizer.from_pretrained(folder)),
        "mappings": mappings(export, size, model.config.vocab_size),
        "logprobs": logprobs(model, rows),
    }
    save_hidden_states(model)
    made["losses"] = {kind: train(kind, folder, export, size) for kind in ("eagle3", "dflash")}
    report.write_text(json.dumps(made))


if __name__ == "__main__":
    # transformers imports torchvision, which needs what the launcher does at import for the CPU engine.
    os.environ["DRAFTMILL_ENGINE"] = "sglang-cpu"
    KEEP_ALIVE = runpy.run_path(str(SHIMS))
    main()
