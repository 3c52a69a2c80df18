"""The target model: its files, whether it fits, and what its chat template can do."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from workflow_scripts.config import Config
from workflow_scripts.config.generation import HUB_ID
from workflow_scripts.doctor import host
from workflow_scripts.doctor.findings import Finding, caught, errors, notes, warnings
from workflow_scripts.errors import PlainError
from workflow_scripts.machine import Machine
from workflow_scripts.prompts import tokenizer
from workflow_scripts.serving import gpu_flags, gpu_plan, model_facts
from workflow_scripts.serving.model_facts import ModelFacts

THINKING = ("enable_thinking", "thinking")


@dataclass(frozen=True)
class Found:
    """What is known of the model, and what was found; no facts where its config can't be had."""

    facts: ModelFacts | None
    findings: list[Finding]


def look(config: Config, *, ask: bool) -> Found:
    """The model as it lies here or, where it must be downloaded and `ask` allows it, as the hub tells of it."""
    from workflow_scripts.serving import model  # its hub client takes a second

    named = config.model.path
    if named.startswith(model.EMBEDDED):
        return Found(None, [])
    folder = Path(named)
    if folder.is_dir():
        found = caught("model", lambda: model.checked(folder, named))
        if not (folder / "config.json").is_file():
            return Found(None, found)
        return Found(_read(folder, config), found)
    if not HUB_ID.fullmatch(named):
        return Found(None, [])  # the plan has told it
    cached = model.cached(named, config.model.revision)
    if cached is not None:
        return Found(_read(cached, config), [])
    if not ask:
        return Found(None, [])
    try:
        commit = model.commit(named, config.model.revision, "model.path")
        wanted, there = model.download_bytes(named, commit)
        side = model.fetch_files(named, commit, tokenizer.FILES, "model.path")
    except PlainError as error:
        return Found(None, errors("model", str(error)))
    left = (wanted - there) / 1e6
    found = host.room(f"downloading {named}", model.cache_of(named), left)
    found = found or notes("model", f"{named} is downloaded first: {wanted / 1e9:,.1f} GB")
    facts = _read(side, config, wanted)
    return Found(facts, found)


def _read(folder: Path, config: Config, weights: int | None = None) -> ModelFacts:
    own = tokenizer.template_text(config) if _is_file(config) else None
    facts = model_facts.read(folder, own)
    return facts if weights is None else replace(facts, weights=weights)


def _is_file(config: Config) -> bool:
    named = config.servers.args.get("chat-template")
    return isinstance(named, str) and named.endswith(".jinja") and Path(named).is_file()


def fits(config: Config, facts: ModelFacts, machine: Machine) -> list[Finding]:
    """Whether the model can run on the GPUs of each kind of server."""
    if config.servers.engine != "sglang" or not machine.devices:
        return []
    lines: list[str] = []
    for number in range(gpu_plan.server_count(config, len(machine.devices))):
        devices = gpu_plan.devices_of(number, config, machine)
        if len(devices) == config.servers.gpus_per_server:
            lines += gpu_plan.model_problems(config, facts, devices)
    return errors("model", *dict.fromkeys(lines))


def flags(config: Config, facts: ModelFacts, machine: Machine) -> dict[str, list[Any]]:
    """The flags that the servers are given for their GPUs and the model, with the values of all of them."""
    found: dict[str, list[Any]] = {}
    if config.servers.engine == "sglang":
        for device in machine.devices:
            for name, value in gpu_flags.choose(config, facts, device).flags.items():
                found[name] = [*found.get(name, []), *([] if value in found.get(name, []) else [value])]
    return found


def template(config: Config, facts: ModelFacts) -> list[Finding]:
    """Whether the chat template can do what the config asks of it."""
    text = facts.template
    if text is None:
        return warnings(
            "template",
            "the model has no chat template: SGLang takes a plain one; name one as servers.args.chat-template",
        )
    found = []
    if config.sampling.thinking is not None and not any(word in text for word in THINKING):
        found += warnings(
            "template",
            "sampling.thinking is set, and the chat template knows no enable_thinking: it changes nothing; leave it "
            "out",
        )
    thinks = "<think>" in text and config.sampling.thinking is not False
    parser = "reasoning-parser" in config.servers.args and config.servers.args["reasoning-parser"] is None
    if thinks and parser:
        found += warnings(
            "template",
            "the model can think, and servers.args.reasoning-parser is null: thinking becomes part of the answer; name "
            "a parser",
        )
    tools = any(source.shape == "tools_query_answers" or source.columns.tools for source in config.sources.values())
    if tools and "tools" not in text:
        found += warnings(
            "template",
            "a source has tools, and the chat template takes none: the model is asked without them; choose a model "
            "that takes tools, or leave the source out",
        )
    return found


def of_hub(named: str) -> bool:
    """Whether a model or tokenizer is the hub's, and not here."""
    return HUB_ID.fullmatch(named) is not None and not Path(named).is_dir()


def model_to_ask(config: Config) -> bool:
    """Whether the model's start asks the hub: for its files, or what commit a branch is at."""
    from workflow_scripts.serving import model

    named, revision = config.model.path, config.model.revision
    pinned = revision is not None and model.COMMIT.fullmatch(revision) is not None
    return of_hub(named) and not (pinned and model.cached(named, revision) is not None)


def tokenizer_to_ask(config: Config) -> bool:
    """Whether prompts are counted by a tokenizer of the hub."""
    return tokenizer.needed(config) and of_hub(config.model.tokenizer or config.model.path)


def tokenizer_there(config: Config, *, ask: bool) -> list[Finding]:
    """Whether prompts can be counted, where they must be."""
    if not tokenizer.needed(config) or (not ask and tokenizer_to_ask(config)):
        return []
    return caught("tokenizer", lambda: tokenizer.lock_tokenizer(config))
