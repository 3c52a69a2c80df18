"""A project whose servers are the real SGLang on the CPU."""

from pathlib import Path
from typing import Any

from tests.standin.project import Project
from workflow_scripts import files
from workflow_scripts.run import Run

SECONDS = 600.0  # that a run with the real SGLang may take on a busy machine


def real(folder: Path, model_path: str, name: str) -> Project:
    """A project in `folder` whose servers are the real SGLang."""
    project = Project(folder)
    project.home = files.cache_home()
    questions = ["What is the capital of France?", "What is 2 plus 3?", "Name a colour.", "Say hello.", "What is ice?"]
    project.write_rows("questions", [{"prompt": text, "response": "?"} for text in questions])
    tool = {"name": "weather", "description": "Tells it.", "parameters": {"type": "object", "properties": {}}}
    chats = [
        {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": text}], "tools": [tool]}
        for text in ("What is the weather in Rome?", "What is a cat?", "Why is the sky blue?", "Count to five.")
    ]
    project.write_rows("chats", chats)
    project.config |= {
        "name": name,
        "chunks": {"count": 2},
        "model": {"path": model_path},
        "sampling": {"temperature": 0.0, "max_tokens": 24},
    }
    project.config["limits"] |= {"stall": 120}
    project.config["servers"] |= {"start_timeout": 400, "args": {"max-running-requests": 8, "context-length": 1024}}
    return project


def completions(run: Run) -> list[dict[str, Any]]:
    return [row for chunk in run.chunks() for row in files.read_jsonl_zst(run.completions(chunk))]
