"""The target model as an export must know it: what made the completions, and how many token ids there are."""

from pathlib import Path
from typing import Any

from workflow_scripts import files
from workflow_scripts.completions.fingerprint import differing
from workflow_scripts.config.generation import HUB_ID
from workflow_scripts.errors import PlainError
from workflow_scripts.identity import ContentHashes
from workflow_scripts.publishing.digests import content_hash
from workflow_scripts.records import Sidecar
from workflow_scripts.run import Run
from workflow_scripts.serving import launch

FILES = ("config.json", "tokenizer.json")


def fingerprint(run: Run, chunks: list[str]) -> dict[str, Any]:
    """The content part of what made the completions of `chunks`; empty if none was asked. PlainError for two."""
    first: Sidecar | None = None
    for chunk in chunks:
        sidecar: Sidecar = files.read_json(run.sidecar(chunk), "fingerprint")
        content = sidecar["fingerprint"]["content"]
        if first is None and content:
            first = sidecar
        if first and content and (lines := differing(first["fingerprint"]["content"], content)):
            raise PlainError(
                f"chunks {first['chunk']} and {chunk} were not made by the same model in the same way, and an export "
                f"mixes no two:\n{lines}\nDelete the files of the chunk that is wrong to make it again"
            )
    return first["fingerprint"]["content"] if first else {}


def content_id(content: dict[str, Any]) -> str:
    """The fingerprint of a row: the hex sha256 of the content part."""
    return content_hash({"content": content, "speed": []})


def folder(run: Run, *, fetch: bool = False) -> Path | None:
    """The target's folder with its config.json, if it is here; with `fetch`, a model of the hub is asked for its own.

    None where it can't be had without asking, or, for servers that run elsewhere, at all.
    """
    import huggingface_hub  # takes long

    from workflow_scripts.serving import model

    named, revision = run.config.model.path, run.config.model.revision or "main"
    try:
        if Path(named).is_dir():
            found = Path(named)
        elif named.startswith(model.EMBEDDED):
            found = model.ensure(named, None, None)
        elif not HUB_ID.fullmatch(named):
            return None
        elif isinstance(cached := huggingface_hub.try_to_load_from_cache(named, FILES[0], revision=revision), str):
            found = Path(cached).parent
        elif fetch:
            found = model.fetch_files(named, revision, FILES, "model.path")
        else:
            return None
    except PlainError:
        if fetch:
            raise
        return None
    return found if (found / "config.json").is_file() else None


def vocabulary(run: Run, *, needed: bool) -> int | None:
    """Ids are below it; None where nothing here says so. PlainError if it is `needed`."""
    found = folder(run, fetch=needed)
    size = None if found is None else launch.vocabulary(found)
    if size is None and needed:
        raise PlainError(
            f"training.draft_vocabulary: how many token ids {run.config.model.path} has is not known here; name the "
            f"folder of the model as model.path, or leave draft_vocabulary out"
        )
    return size


def check_tokenizer(run: Run, content: dict[str, Any]) -> None:
    """PlainError if the tokenizer that lies here is not the one that the completions were made with."""
    made = content.get("model", {}).get("files", {}).get("tokenizer.json")
    found = folder(run)
    path = None if found is None else launch.tokenizer_json(found)
    if made is None or path is None:
        return
    here = [path.stat().st_size, ContentHashes().of(path)]
    if here != list(made):
        raise PlainError(
            f"{path} is not the tokenizer that the completions were made with (sha256 {here[1]}, not {made[1]}): the "
            f"token ids of rows would mean something else. Put the old one back"
        )
