"""Conversations as text, for trainers that render and tokenize themselves; their masks are their own.

One line a conversation, as SpecForge takes it: `id`, `conversations` of {role, content, ...}, `tools` as a JSON string.
It holds the turns that are training rows, up to the first that is not.
"""

from collections.abc import Mapping
from typing import Any

import orjson

from workflow_scripts.training.shards import Origin


def conversation(answered: Mapping[str, Any], turns: list[int], origin: Origin) -> dict[str, Any] | None:
    """The line of a completion whose `turns`, by number, are rows; None if its first is none."""
    leading = next((at for at, turn in enumerate(turns) if at != turn), len(turns))
    if not leading:
        return None
    places = [at for at, message in enumerate(answered["messages"]) if message["role"] == "assistant"]
    return {
        "id": f"{answered['prompt_id']}-{answered['sample']}",
        "conversations": answered["messages"][: places[leading - 1] + 1],
        "tools": orjson.dumps(answered["tools"] or []).decode(),
        "source": answered["source"],
        "on_policy": origin.on_policy,
        "fingerprint": origin.fingerprint,
    }
