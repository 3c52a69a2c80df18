"""`limits`: how long the engine waits, and what it takes for hopeless. Nothing here changes what is made."""

from typing import Annotated

from pydantic import Field

from workflow_scripts.config.fields import Section

Seconds = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(gt=0, le=1)]


class Limits(Section):
    """Patience and alarms."""

    stall: Annotated[float, Field(gt=0)] = Field(
        900, description="seconds that a server may have requests in flight and make no token; then it is started anew"
    )
    retry_wait: Seconds = Field(1, description="seconds before a request is tried again; doubled, to 30 times")
    restart_wait: Seconds = Field(5, description="seconds before a server that died starts again; doubled, to 64 times")
    restarts_per_hour: Annotated[int, Field(ge=0, strict=True)] = Field(
        6, description="a server that dies more often is out of use for the rest of the run"
    )
    failed: Share = Field(0.2, description="the share of all prompts that may fail in one start; more ends the run")
    degenerate: Share = Field(
        0.5, description="the share of a server's last turns that may be empty or repeat themselves; more ends the run"
    )
    recycle_hours: Annotated[float, Field(gt=0)] | None = Field(
        None, description="start a server anew, between chunks, when it is so old; null: never"
    )
    recycle_gigabytes: Annotated[float, Field(gt=0)] | None = Field(
        None, description="the same when its processes' memory grew by so much since its first chunk"
    )
