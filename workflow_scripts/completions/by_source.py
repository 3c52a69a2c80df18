"""What completions hold of each source: counts, and lengths in bins, so that nobody reads them all for a chart."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

from workflow_scripts.completions.histogram import bin_of
from workflow_scripts.records import Completion, SourceCounts


class BySource:
    """Counts completions as they come."""

    def __init__(self) -> None:
        self._counts: dict[str, SourceCounts] = {}

    def add(self, completion: Completion) -> None:
        counts = self._of(completion["source"])
        counts["completions"] += 1
        for turn in completion["turns"]:
            prompt, output = turn["usage"]["prompt_tokens"], turn["usage"]["completion_tokens"]
            counts["prompt_tokens"] += prompt
            counts["output_tokens"] += output
            counts["prompt_lengths"][bin_of(prompt)] += 1
            counts["output_lengths"][turn["class"]][bin_of(output)] += 1

    def add_counts(self, sources: Mapping[str, SourceCounts]) -> None:
        """Add what a sidecar has counted."""
        for name, more in sources.items():
            counts = self._of(name)
            counts["completions"] += more["completions"]
            counts["prompt_tokens"] += more["prompt_tokens"]
            counts["output_tokens"] += more["output_tokens"]
            _add(counts["prompt_lengths"], more["prompt_lengths"].items())
            for kind, lengths in more["output_lengths"].items():
                _add(counts["output_lengths"][kind], lengths.items())

    def counts(self) -> dict[str, SourceCounts]:
        """The counts, sources and classes in the alphabet's order, lengths in theirs."""
        return {
            name: {
                **counts,
                "prompt_lengths": _in_order(counts["prompt_lengths"]),
                "output_lengths": {
                    kind: _in_order(lengths) for kind, lengths in sorted(counts["output_lengths"].items())
                },
            }
            for name, counts in sorted(self._counts.items())
        }

    def _of(self, source: str) -> SourceCounts:
        if source not in self._counts:
            self._counts[source] = {
                "completions": 0,
                "prompt_tokens": 0,
                "output_tokens": 0,
                "prompt_lengths": Counter(),
                "output_lengths": defaultdict(Counter),
            }
        return self._counts[source]


def _add(to: dict[str, int], items: Iterable[tuple[str, int]]) -> None:
    for name, count in items:
        to[name] = to.get(name, 0) + count


def _in_order(lengths: dict[str, int]) -> dict[str, int]:
    return dict(sorted(lengths.items(), key=lambda item: int(item[0])))
