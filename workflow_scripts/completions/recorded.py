"""What a recorded conversation holds for its new turns: what users say next, and the results of tools."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import orjson

from workflow_scripts.records import Message, ToolCall


class Result(NamedTuple):
    """A recorded result, and the call that it was the result of; no name where the call can't be told."""

    name: str | None
    arguments: Any  # parsed and canonical; the text where it is no JSON
    message: Message


@dataclass
class Stretch:
    """The messages that ask for assistant turns, and the results that were recorded before others asked again."""

    asks: list[Message] = field(default_factory=list)
    results: list[Result] = field(default_factory=list)

    def replay(self, calls: list[ToolCall]) -> "list[tuple[Message, bool]] | None":
        """For each call its result, under the call's own id, and whether the arguments were the recorded ones too.

        None where a call has no result of its name left: then none is used up. Each result is replayed once. Calls with
        the recorded arguments choose first; the others get what is left of their name, in the recorded order.
        """
        wanted = [(call["function"]["name"], arguments(call["function"]["arguments"])) for call in calls]
        chosen: dict[int, int] = {}  # of each call, the result
        for exact in (True, False):
            for at, (name, given) in enumerate(wanted):
                if at not in chosen:
                    for number, result in enumerate(self.results):
                        fits = result.name == name and (not exact or result.arguments == given)
                        if fits and number not in chosen.values():
                            chosen[at] = number
                            break
        if len(chosen) < len(calls):
            return None
        replayed: list[tuple[Message, bool]] = []
        for at, call in enumerate(calls):
            result = self.results[chosen[at]]
            replayed.append(({**result.message, "tool_call_id": call["id"]}, result.arguments == wanted[at][1]))
        self.results = [result for number, result in enumerate(self.results) if number not in chosen.values()]
        return replayed


def stretches(messages: list[Message]) -> list[Stretch]:
    """A conversation, cut where others speak after the assistant; its recorded answers are left out.

    The first stretch asks with all that comes before the first assistant turn.
    """
    found = [Stretch()]
    calls: dict[str, ToolCall] = {}
    answered = False  # the last stretch has an assistant turn
    for message in messages:
        if message["role"] == "assistant":
            calls |= {call["id"]: call for call in message.get("tool_calls", ())}  # ids may come again: the last counts
            answered = True
        elif message["role"] == "tool" and (answered or len(found) > 1):
            # One that comes after the user spoke again is the last stretch's all the same.
            found[-1 if answered else -2].results.append(_result(message, calls))
        else:
            if answered:
                found.append(Stretch())
                answered = False
            found[-1].asks.append(message)
    return found


def _result(message: Message, calls: dict[str, ToolCall]) -> Result:
    call = calls.get(message.get("tool_call_id", ""))
    if call is None:
        return Result(message.get("name"), None, message)
    return Result(call["function"]["name"], arguments(call["function"]["arguments"]), message)


def arguments(text: str) -> Any:
    """A call's arguments as they are compared: parsed JSON, where 1 is 1.0 and is not true."""
    try:
        return _canonical(orjson.loads(text))
    except orjson.JSONDecodeError:
        return text


def _canonical(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _canonical(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_canonical(item) for item in value]
    if isinstance(value, bool):
        return ("true",) if value else ("false",)  # which equals no number
    return value
