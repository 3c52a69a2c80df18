"""The turn policy: which request comes next in a conversation, what a reply makes of it, and when it is over.

Each assistant turn is made on top of the new ones before it. A turn without calls is followed by what the users said
next in the recorded conversation; recorded answers are passed over. A turn with calls is followed by the recorded
results that fit them (recorded.py), and nothing is executed. It is over when nothing is left to answer, and before that

- where calls have no recorded result that fits (`tool_call`);
- after a turn that nothing can be built on: cut while it thought or inside a call, empty, repeating itself
  (`broken_turn`); an answer that was cut is one that the user went on from;
- where the next request no longer fits into the context, or is refused by the template.

What was made until then is a completion. Where a turn fails for good otherwise, the prompt fails.
"""

from typing import Any, cast

from workflow_scripts.completions import packing, replies
from workflow_scripts.completions.faults import Fault
from workflow_scripts.completions.recorded import stretches
from workflow_scripts.completions.replies import Answerer
from workflow_scripts.completions.sampling import seed, settings
from workflow_scripts.config import Sampling
from workflow_scripts.records import Completion, Ended, Message, Prompt, Turn

BROKEN = ("cut_in_thinking", "repetition", "empty")
ENDS: dict[str, Ended] = {"too_long": "context_full", "refused": "refused"}


class Conversation:
    """A conversation in the making: `messages` is its history so far, `turns` are the new ones, packed, in memory only.

    It does no I/O: `request` gives the next body until `ended` says why there is none, `take` the reply to it.
    """

    def __init__(self, prompt: Prompt, sample: int, sampling: Sampling) -> None:
        self.prompt = prompt
        self.sample = sample
        self.turns: list[Turn] = []
        self._last: Turn | None = None  # not packed
        self.ended: Ended | None = None
        self._reason: str | None = None
        self._sampling = sampling
        self._settings = settings(sampling, prompt, sample)
        self._here, *self._left = stretches(prompt["messages"])
        self.messages: list[Message] = list(self._here.asks)

    def request(self, model: str, rid: str) -> dict[str, Any]:
        """The body of POST /v1/chat/completions; with `return_token_ids` SGLang adds the exact ids to the choice.

        The history goes back as it came, with its reasoning and its calls: what of it the model sees again is for the
        server's template to say.
        """
        body = {"model": model, "messages": self.messages, "rid": rid, "return_token_ids": True, **self._this_turn()}
        if self.prompt["tools"]:
            body["tools"] = self.prompt["tools"]
        return body

    def _this_turn(self) -> dict[str, Any]:
        return {**self._settings, "seed": seed(self._sampling, self.sample, len(self.turns))}

    def take(self, reply: Any, rid: str, who: Answerer, attempts: int, seconds: float) -> None:
        """Go on by the reply to the last request. Raises Fault, and changes nothing, if it is none."""
        message, turn = replies.read(reply, rid, self._this_turn(), who, attempts, seconds)
        packed = packing.pack(turn, self._last)
        self._last = turn
        calls = message.get("tool_calls")
        self.messages = [*self.messages, message]
        self.turns.append(packed)
        if not calls:
            if self._here.results:
                turn["marks"].append("no_call")
            self._listen(turn)
        elif turn["finish_reason"] == "length":
            turn["marks"].append("cut_call")
            self.ended = "broken_turn"
        elif (replayed := self._here.replay(calls)) is None:
            self.ended = "tool_call"
        else:
            self.messages = [*self.messages, *(result for result, _ in replayed)]
            if not all(same for _, same in replayed):
                turn["marks"].append("other_arguments")

    def _listen(self, turn: Turn) -> None:
        """Let the users go on, if they do and the turn can be built on."""
        if not self._left:
            self.ended = "complete"
        elif turn["class"] in BROKEN:
            self.ended = "broken_turn"
        else:
            self._here = self._left.pop(0)
            self.messages = [*self.messages, *self._here.asks]

    def stop(self, fault: Fault) -> bool:
        """End it where its own next request can't be answered; whether it is then a completion.

        Any other fault is none of the conversation's: its prompt fails, to be asked again.
        """
        if not self.turns or fault.kind not in ENDS:
            return False
        self.ended = ENDS[fault.kind]
        self._reason = fault.reason
        return True

    def answered(self) -> list[Message]:
        """The history up to its last new turn. What nobody answered is no part of it."""
        last = max(at for at, message in enumerate(self.messages) if message["role"] == "assistant")
        return self.messages[: last + 1]

    def completion(self) -> Completion:
        """What is kept of a conversation that has ended, its turns packed."""
        assert self.ended is not None
        kept = {**self.prompt, "messages": self.answered(), "sample": self.sample, "turns": self.turns}
        why = {"ended": self.ended} if self._reason is None else {"ended": self.ended, "ended_reason": self._reason}
        return cast(Completion, kept | why)
