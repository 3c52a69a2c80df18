"""The records of every file, one place. Plain dicts as read and written, named for the type checker."""

from typing import Any, Literal, NotRequired, TypedDict

Role = Literal["system", "user", "assistant", "tool"]

# One class a turn, in this precedence.
TurnClass = Literal["aborted", "tool_call", "cut_in_thinking", "cut_in_answer", "repetition", "empty", "complete"]


# What is odd about a turn, beside its class:
Mark = Literal[
    "call_in_thinking",  # a tool call inside the thoughts
    "cut_call",  # max_tokens cut it inside a call
    "empty_thinking",  # thoughts were opened and closed, and hold nothing
    "leaked_thinking",  # the answer's text holds a tag of thoughts
    "no_call",  # recorded results are left here: the model answered without these calls
    "no_thinking",  # asked to think, it did not
    "other_arguments",  # a replayed result is that of a recorded call with other arguments
    "other_text",  # the response ids do not decode to what is stored of them
    "unclosed_thinking",  # thoughts without an end, though nothing cut them
    "unopened_thinking",  # an end of thoughts without a beginning
    "unread_call",  # the answer's text holds a call that the server's parser did not read
]

# Why a conversation has no further turn.
Ended = Literal[
    "complete",  # every turn was made
    "tool_call",  # the last turn calls tools, and no recorded result fits
    "broken_turn",  # the last turn is cut in its thoughts or in a call, empty, or repeats itself
    "context_full",  # the next request does not fit into the context
    "refused",  # the template refuses the next request
]


class ToolFunction(TypedDict):
    """A call's name and its arguments as a JSON string, as in the OpenAI chat API."""

    name: str
    arguments: str


class ToolCall(TypedDict):
    """One call of a tool by an assistant turn."""

    id: str
    type: Literal["function"]
    function: ToolFunction


class Message(TypedDict):
    """One turn of a conversation. Content is text."""

    role: Role
    content: str
    reasoning_content: NotRequired[str]
    tool_calls: NotRequired[list[ToolCall]]
    tool_call_id: NotRequired[str]
    name: NotRequired[str]


class Prompt(TypedDict):
    """A conversation to be answered: a row of results/RUN/prompts/CHUNK.jsonl.zst.

    `prompt_id` and `first_id` are hex sha256; `source_row` counts the source's rows from 0, over all its files.
    """

    prompt_id: str
    first_id: str
    source: str
    source_id: str
    source_row: int
    messages: list[Message]
    tools: list[dict[str, Any]] | None
    meta: dict[str, Any]


class Usage(TypedDict):
    """Token counts of a turn."""

    prompt_tokens: int
    completion_tokens: int


Turn = TypedDict(
    "Turn",
    {
        "finish_reason": str,
        "class": TurnClass,
        "marks": list[Mark],
        "prompt_token_ids": list[int],  # what the server's template made of the history
        "shared": NotRequired[int],  # in journals only, see completions/packing.py
        "response_token_ids": list[int],  # what the model said, the end token included
        "usage": Usage,
        "sampling": dict[str, Any],  # as it was sent, the seed included
        "seed_honoured": bool,  # only under deterministic inference does the seed decide anything
        "server": str,
        "attempts": int,
        "seconds": float,
    },
)
Turn.__doc__ = "One regenerated assistant turn, token for token as the server saw and said it."


class Completion(Prompt):
    """A prompt answered: a row of results/RUN/completions/CHUNK.jsonl.zst.

    `messages` is the history that was made: what users said and tools replied, and every new assistant turn, of which
    turns[k] is the k-th. `ended_reason` is the server's own word where the next turn was refused.
    """

    sample: int
    turns: list[Turn]
    ended: Ended
    ended_reason: NotRequired[str]


Failure = TypedDict(
    "Failure",
    {
        "prompt_id": str,
        "sample": int,
        "source": str,
        "class": str,
        "reason": str,
        "final": bool,
        "attempts": int,
        "messages": NotRequired[list[Message]],  # where a later turn failed: the history made until then
        "turns": NotRequired[list[Turn]],  # and its turns
    },
)
Failure.__doc__ = "A prompt that ended without a completion: a row of CHUNK.failures.jsonl.zst."


class Reject(TypedDict):
    """A source's row that is no prompt: a row of rejects.jsonl.zst. `row` counts the file's rows from 0."""

    file: str
    row: int
    reason: str
    excerpt: str


class Fingerprint(TypedDict):
    """What made a completion. `content` decides what may be mixed; `speed` parts may differ and are listed."""

    content: dict[str, Any]
    speed: list[dict[str, Any]]


class FileEntry(TypedDict):
    """A file of a chunk, by content."""

    bytes: int
    sha256: str
    rows: int


class SourceCounts(TypedDict):
    """What a chunk has of one source. Lengths are counts by the bins of completions/histogram.py, a turn each."""

    completions: int
    prompt_tokens: int
    output_tokens: int
    prompt_lengths: dict[str, int]
    output_lengths: dict[str, dict[str, int]]  # by class


class Sidecar(TypedDict):
    """results/RUN/completions/CHUNK.json, the last file of a chunk to be written."""

    chunk: str
    prompts_sha256: str
    keys_sha256: str  # of every (prompt_id, sample) in completions and failures together, in manifest order
    completions: FileEntry
    failures: FileEntry
    prompt_tokens: int
    output_tokens: int
    classes: dict[str, int]
    marks: dict[str, int]
    ended: dict[str, dict[str, int]]  # by source
    refused: dict[str, dict[str, int]]  # by source: the template's words, where it refused a later turn
    failure_classes: dict[str, int]
    sources: dict[str, SourceCounts]
    fingerprint: Fingerprint


class PublishedObject(TypedDict):
    """One object in the store. `path` is relative to results/RUN; `crc64nvme` is base64, as S3 writes it."""

    path: str
    key: str
    bytes: int
    sha256: str
    crc64nvme: str
    rows: int | None


class Receipt(TypedDict):
    """results/RUN/published/HASH/NAME.json: what one publishing job saw verified in the store."""

    objects: list[PublishedObject]
