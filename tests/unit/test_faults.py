"""The table of errors in the docs is the one that the client goes by."""

import re
from pathlib import Path

from workflow_scripts.completions.faults import POLICIES

DOCS = Path(__file__).parents[2] / "docs" / "faults.md"


def test_the_docs_hold_every_policy() -> None:
    rows = re.findall(r"^\| `(\w+)` \| .* \| (\d+|not counted) \| (.*) \|$", DOCS.read_text(), flags=re.MULTILINE)
    told = {kind: (tries, then.split(";")[0]) for kind, tries, then in rows}
    assert told == {
        kind: (str(policy.tries) if policy.charged else "not counted", ends(policy.final, policy.charged))
        for kind, policy in POLICIES.items()
    }


def ends(final: bool, charged: bool) -> str:
    return ("final" if final else "open") if charged else "asked again"
