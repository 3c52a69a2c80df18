"""Write what trainers read with torch.load, from the .npy files beside: `PYTHON -P torch_files.py FOLDER SIZE`.

PYTHON is any with torch and numpy, such as the server environment's; this file stands alone. In FOLDER, token_freq.npy,
d2t-SIZE.npy and t2d-SIZE.npy become

    token_freq.pt            {id: count} of the ids that occur: speculators' --token-freq-path
    vocab_mapping-SIZE.pt    {"d2t", "t2d"}: SpecForge's model.vocab_mapping_path
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch


def save(value: Any, path: Path) -> None:
    """Whole or absent."""
    tmp = path.with_name(f".{path.name}.tmp")
    with tmp.open("wb") as out:  # a name would be written into the file
        torch.save(value, out)
    tmp.replace(path)


def main() -> None:
    folder, size = Path(sys.argv[1]), sys.argv[2]
    counts = np.load(folder / "token_freq.npy", allow_pickle=False)
    save({int(token): int(counts[token]) for token in np.flatnonzero(counts)}, folder / "token_freq.pt")
    names = ("d2t", "t2d")
    arrays = {name: np.load(folder / f"{name}-{size}.npy", allow_pickle=False) for name in names}
    save({name: torch.from_numpy(array) for name, array in arrays.items()}, folder / f"vocab_mapping-{size}.pt")


if __name__ == "__main__":
    main()
