"""`tune`: which flags of the servers are tried on the run's own prompts, and for how long."""

from typing import Annotated

from pydantic import Field, field_validator

from workflow_scripts.config.fields import Count, Section, Text
from workflow_scripts.config.generation import Arg, Args, Flag
from workflow_scripts.serving.flags import SPEED_FLAGS


class Candidate(Section):
    """Flags that are laid over `servers.args`."""

    name: Text | None = Field(None, description="for the table; null: the flags themselves")
    args: Args = Field(min_length=1, description="SGLang's flags, those of speed only; null leaves one out")

    @field_validator("args")
    @classmethod
    def _speed_only(cls, args: dict[str, Arg]) -> dict[str, Arg]:
        for name in args:
            if name not in SPEED_FLAGS:
                raise ValueError(
                    f"{name!r} decides what is answered (or is not known to be a flag of speed), and tuning changes "
                    f"no answers: set it in servers.args, and tune that"
                )
        return args


class Tune(Section):
    """What `snakemake tune` tries."""

    usual: Flag = Field(True, description="try Draftmill's own list too; false: only `candidates`")
    candidates: list[Candidate] = Field(default_factory=list, description="flags to try: {name, args}")
    prompts: Count = Field(5000, description="prompts of the sample at most, by source and length as in the run")
    seconds: Annotated[float, Field(gt=0)] = Field(
        60, description="seconds of steady work that are measured; twice that in each further round"
    )
    rounds: Count = Field(3, description="rounds at most: all candidates, then the better half of those that are close")
