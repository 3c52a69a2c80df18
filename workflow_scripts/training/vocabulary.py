"""Which tokens a drafter is trained to say: counted over supervised tokens, and mapped to a draft vocabulary.

The files are those that trainers read. speculators (train/cli.py of 0.9.0): `d2t-N.npy`, int64 of N, what is to be
added to a draft id to get the target's; `t2d-N.npy`, bool of the target's vocabulary, whether an id is in the draft's;
or the counts, `token_freq.pt`. SpecForge (modeling/draft/base.py of 0.2.0): the same tensors as `vocab_mapping-N.pt`.
The .pt files are written by torch from the .npy files (torch_files.py).
"""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workflow_scripts import files
from workflow_scripts.errors import PlainError
from workflow_scripts.training.rows import Row

SIZES = (8192, 16384, 32768, 65536)  # whose coverage is told beside the asked one's
IDS_AT_ONCE = 2_000_000


class Frequencies:
    """How often each token id of the target's vocabulary is supervised."""

    def __init__(self, vocabulary: int) -> None:
        self.counts = np.zeros(vocabulary, dtype=np.int64)
        self._waiting: list[NDArray[np.int32]] = []
        self._held = 0

    def add(self, row: Row) -> None:
        """Count a row's supervised tokens; `flush` before the counts are read."""
        supervised = row.ids[row.prompt :]
        self._waiting.append(supervised)
        self._held += len(supervised)
        if self._held >= IDS_AT_ONCE:
            self.flush()

    def flush(self) -> None:
        if self._waiting:
            self.counts += np.bincount(np.concatenate(self._waiting), minlength=len(self.counts))
        self._waiting, self._held = [], 0


def chosen(counts: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """The `size` ids that are supervised most, in ascending order; of equal counts, the lowest ids."""
    return np.sort(np.argsort(-counts, kind="stable")[:size])


def mapping(counts: NDArray[np.int64], size: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """d2t of (size,) and t2d of (vocabulary,)."""
    ids = chosen(counts, size)
    t2d = np.zeros(len(counts), dtype=np.bool_)
    t2d[ids] = True
    return ids - np.arange(size, dtype=np.int64), t2d


def coverage(counts: NDArray[np.int64], size: int) -> float:
    """The share of supervised tokens that a draft vocabulary of `size` ids can say."""
    total = int(counts.sum())
    return round(int(counts[chosen(counts, size)].sum()) / total, 6) if total else 0.0


def check_size(size: int, vocabulary: int) -> None:
    """PlainError for a draft vocabulary larger than the target's."""
    if size > vocabulary:
        raise PlainError(f"training.draft_vocabulary: {size:,} is more than the {vocabulary:,} ids of the target's own")


def torch_names(size: int) -> list[str]:
    """The files that torch_files.py writes."""
    return ["token_freq.pt", f"vocab_mapping-{size}.pt"]


def write(frequencies: Frequencies, size: int, folder: Path) -> tuple[list[Path], dict[str, Any]]:
    """The .npy files in `folder`, and what training.json says of them."""
    frequencies.flush()
    counts = frequencies.counts
    d2t, t2d = mapping(counts, size)
    arrays = {f"d2t-{size}.npy": d2t, f"t2d-{size}.npy": t2d, "token_freq.npy": counts}
    paths = []
    for name, array in arrays.items():
        paths.append(folder / name)
        with files.atomic_path(paths[-1]) as tmp, tmp.open("wb") as out:
            np.save(out, array)
    sizes = sorted({size, *(other for other in SIZES if other < len(counts))})
    return paths, {
        "size": size,
        "target_vocabulary": len(counts),
        "different_tokens": int(np.count_nonzero(counts)),
        "coverage": {str(each): coverage(counts, each) for each in sizes},
    }
