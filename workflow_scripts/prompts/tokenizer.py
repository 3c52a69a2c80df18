"""The target's own tokenizer and chat template, without the model: which files, looked up once, and loaded.

They are transformers' classes, which SGLang uses too; no code of a repository is ever run. lock.json binds them as
{"from": FOLDER, "files": [{name, bytes, sha256}]} or {"from": HUB_ID, "revision": COMMIT}; with a template of the
servers' own, its sha256 as "template".
"""

import hashlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workflow_scripts.config import Config
from workflow_scripts.config.generation import HUB_ID
from workflow_scripts.errors import PlainError
from workflow_scripts.identity import ContentHashes
from workflow_scripts.prompts.inputs import Input

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

FILES = (
    "config.json",  # names the tokenizer's class where tokenizer_config.json does not
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "*.model",
    "*.tiktoken",
    "chat_template.jinja",
    "chat_template.json",
    "additional_chat_templates/*.jinja",
)
EMBEDDED = "embedded:"


def context_length(config: Config) -> int | None:
    """Tokens that a prompt and its answer may have together; None where the config leaves it to the model."""
    context = config.servers.args.get("context-length")
    if isinstance(context, str) and context.isdecimal():  # "8192", as SGLang takes it too
        return int(context)
    return context if isinstance(context, int) and not isinstance(context, bool) else None


def needed(config: Config) -> bool:
    """Whether the run rests on a tokenizer, so that one that can't be had is a mistake."""
    of_turns = config.prompts.turns == "all" and not config.model.path.startswith(EMBEDDED)
    asked = config.prompts.max_prompt_tokens is not None or config.model.tokenizer is not None
    return asked or of_turns or config.training.answers == "recorded"


def lock_tokenizer(config: Config) -> Input | None:
    """The tokenizer that counts the run's prompts; None if nothing is counted.

    They are counted for `max_prompt_tokens`, for a `model.tokenizer`, for `turns: all`, by which the turns are checked,
    and for a context length; for the last only where the tokenizer can be had: otherwise a line says why not, and the
    servers find what is too long. The embedded model's tokenizer is made with the model: nothing but the first two asks
    for it.
    """
    named = config.model.tokenizer or config.model.path
    asked = needed(config)
    if named == "none" or not (asked or (context_length(config) is not None and not named.startswith(EMBEDDED))):
        return None
    try:
        return look_up(config)
    except PlainError as error:
        if asked:
            raise
        print(f"prompts are not counted: {error}", file=sys.stderr)
        return None


def look_up(config: Config) -> Input:
    """The run's tokenizer as lock.json records it. PlainError if it can't be had."""
    template = template_text(config)
    named = config.model.tokenizer or config.model.path
    return _found(config, named) | ({} if template is None else {"template": _sha256(template)})


def _found(config: Config, named: str) -> Input:
    from workflow_scripts.serving import model  # its hub client takes a second that a plan doesn't need

    key = "path" if config.model.tokenizer is None else "tokenizer"
    if not HUB_ID.fullmatch(named) or Path(named).is_dir():
        folder = _folder(named, key)
        return {"from": named, "files": _files(folder, ContentHashes())}
    revision = config.model.revision if key == "path" else None
    return {"from": named, "revision": model.commit(named, revision, f"model.{key}")}


def _folder(named: str, key: str) -> Path:
    """A local folder with a tokenizer in it."""
    from workflow_scripts.serving import model

    if named.startswith(EMBEDDED):
        try:
            return model.ensure(named, None, None)
        except PlainError as error:
            raise PlainError(
                f"the tokenizer of {named} is made with the model, when its first server starts; leave out "
                f"prompts.max_prompt_tokens, or name a tokenizer: model.tokenizer"
            ) from error
    folder = Path(named)
    if not folder.is_dir():
        raise PlainError(f"model.{key}: {named} is no folder here, and no hub id (organization/name)")
    if not _files(folder, ContentHashes()):
        raise PlainError(f"model.{key}: {named} holds no tokenizer (tokenizer.json, tokenizer_config.json, ...)")
    return folder


def _files(folder: Path, hashes: ContentHashes) -> list[dict[str, Any]]:
    wanted = sorted(
        path.relative_to(folder).as_posix() for pattern in FILES for path in folder.glob(pattern) if path.is_file()
    )
    if set(wanted) <= {"config.json"}:
        return []
    return [
        {"name": name, "bytes": (folder / name).stat().st_size, "sha256": hashes.of(folder / name)} for name in wanted
    ]


def at_hand(config: Config, recorded: Input | None) -> "PreTrainedTokenizerBase | None":
    """The run's tokenizer, if it was recorded or lies here already; nothing is looked up for it."""
    named = config.model.tokenizer or config.model.path
    if named == "none":
        return None
    if recorded is None:
        if not (named.startswith(EMBEDDED) or Path(named).is_dir()):
            return None
        key = "path" if config.model.tokenizer is None else "tokenizer"
        found = _files(_folder(named, key), ContentHashes())
        if not any(entry["name"].startswith(("tokenizer_config", "chat_template")) for entry in found):
            return None  # it has no template; to load transformers for that takes seconds
        recorded = {"from": named, "files": found}
    return load(config, recorded)[0]


def load(config: Config, recorded: Input) -> tuple["PreTrainedTokenizerBase", list[dict[str, Any]]]:
    """The recorded tokenizer with its chat template, and its files by content. PlainError if it can't be had."""
    named = config.model.tokenizer or config.model.path
    key = "path" if config.model.tokenizer is None else "tokenizer"
    if "revision" in recorded:
        from workflow_scripts.serving import model

        folder = model.fetch_files(named, recorded["revision"], FILES, f"model.{key}")
        found = _files(folder, ContentHashes())
    else:
        folder = _folder(named, key)
        found = _files(folder, ContentHashes())
        if found != recorded["files"]:
            raise PlainError(
                f"model.{key}: the tokenizer in {named} has changed since this run began. Put the old one back, or run "
                f"the same line again: with the new one it starts a new run"
            )
    template = template_text(config)
    if template is not None and _sha256(template) != recorded.get("template"):
        raise PlainError(
            f"servers.args.chat-template: {config.servers.args['chat-template']} has changed since this run began. Put "
            f"the old one back, or run the same line again: with the new one it starts a new run"
        )
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")  # that there is no PyTorch, which is not needed
    from transformers import AutoTokenizer

    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            folder, trust_remote_code=False, local_files_only=True
        )
    except Exception as error:  # whatever a file that is none makes of the library
        raise PlainError(
            f"model.{key}: the tokenizer of {named} can't be loaded ({one_line(error)}); name another as "
            f"model.tokenizer, or `none`"
        ) from error
    if template is not None:
        tokenizer.chat_template = template
    if not tokenizer.chat_template:
        raise PlainError(
            f"model.{key}: the tokenizer of {named} has no chat template; name one as servers.args.chat-template, or "
            f"another tokenizer as model.tokenizer"
        )
    return tokenizer, found


def template_text(config: Config) -> str | None:
    """The chat template that the servers are given instead of the tokenizer's own; None if they are given none."""
    named = config.servers.args.get("chat-template")
    if not isinstance(named, str):
        return None
    path = Path(named)
    if path.suffix != ".jinja" or not path.is_file():
        raise PlainError(
            f"servers.args.chat-template: {named} is no .jinja file here, so that prompts can't be counted by it"
        )
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise PlainError(f"servers.args.chat-template: {named} is not UTF-8 text ({error.reason})") from error


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def one_line(error: Exception) -> str:
    """What an error of others says, short."""
    return " ".join(str(error).split())[:300]
