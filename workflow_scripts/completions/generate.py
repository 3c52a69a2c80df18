"""A chunk of prompts becomes a chunk of completions, answered by a leased server, resumed from its journal.

A redrive (redrive.py) is one more chunk.
"""

from pathlib import Path

from workflow_scripts import files
from workflow_scripts.completions import redrive
from workflow_scripts.completions.finish import ChunkJournal, expected_keys, finish
from workflow_scripts.completions.work import Work
from workflow_scripts.errors import PlainError
from workflow_scripts.files import Journal, Locked
from workflow_scripts.jobs import say
from workflow_scripts.publishing.restore import restore_chunk
from workflow_scripts.records import Prompt
from workflow_scripts.run import Run, is_redrive


def generate(run: Run, chunk: str) -> int:
    """Make a chunk's three files: fetched if the bucket has them, else from its journal and the servers.

    Returns the output tokens that were made here.

    Raises PlainError, and publishes nothing, while any prompt is neither answered nor failed for good.
    """
    if restore_chunk(run, chunk):
        say(f"chunk {chunk}: fetched from the bucket and verified")
        return 0
    path = prompts_file(run, chunk)
    prompts: list[Prompt] = list(files.read_jsonl_zst(path))
    keys = redrive.owed(run, chunk) if is_redrive(chunk) else expected_keys(prompts, run.config.sampling.n)
    try:
        with Journal(run.journal(chunk)) as file:
            journal = ChunkJournal(file, files.sha256_file(path), keys)
            if journal.missing():
                by_id = {prompt["prompt_id"]: prompt for prompt in prompts}
                Work(run, chunk, journal, by_id).do()
            sidecar = finish(run, chunk, journal)
    except Locked as error:
        raise PlainError(f"chunk {chunk}: another process writes its journal ({error}); it must end first") from error
    failed = f", {sidecar['failures']['rows']} failed" if sidecar["failures"]["rows"] else ""
    say(f"chunk {chunk}: {sidecar['completions']['rows']:,} completions, {sidecar['output_tokens']:,} tokens{failed}")
    return sidecar["output_tokens"]


def prompts_file(run: Run, chunk: str) -> Path:
    """A chunk's prompts file, made again from the manifest if it is gone; of a redrive, from what failed."""
    path = run.prompts(chunk)
    if is_redrive(chunk):
        return redrive.write_prompts(run, chunk)
    if not path.exists():
        from workflow_scripts.prompts.split import write_chunks  # polars takes a while to import, and is rarely needed

        say(f"chunk {chunk}: its prompts file is gone; made again from the manifest")
        write_chunks(run, [chunk])
    return path
