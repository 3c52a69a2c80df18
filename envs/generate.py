"""Write what follows from pyproject.toml: envs/pipeline.yaml, and the pins of the whole closure for uv.

`python envs/generate.py` writes pipeline.yaml. `uv export --all-groups --no-emit-project --no-header --no-hashes |
python envs/generate.py --pins` also replaces `constraint-dependencies`, after a dependency was changed.
"""

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def pipeline_yaml(pyproject: str) -> str:
    """The pipeline's environment as conda reads it; `snakemake --lint` wants each rule to name one."""
    project = tomllib.loads(pyproject)["project"]
    lines = [
        "# Generated from pyproject.toml by envs/generate.py.",
        "channels: [conda-forge, nodefaults]",
        "dependencies:",
        f'  - "python {project["requires-python"]}"',
        "  - pip",
        "  - pip:",
        *(f'      - "{requirement}"' for requirement in project["dependencies"]),
    ]
    return "\n".join(lines) + "\n"


def with_pins(pyproject: str, exported: str) -> str:
    """pyproject.toml with `constraint-dependencies` as `uv export` resolved them: names and versions, no addresses."""
    pins = [line.strip() for line in exported.splitlines() if "==" in line and not line.lstrip().startswith("#")]
    block = "constraint-dependencies = [\n" + "".join(f'    "{pin}",\n' for pin in pins) + "]\n"
    return re.sub(r"constraint-dependencies = \[\n.*?^\]\n", lambda _: block, pyproject, flags=re.S | re.M)


if __name__ == "__main__":
    path = ROOT / "pyproject.toml"
    if sys.argv[1:] == ["--pins"]:
        path.write_text(with_pins(path.read_text(), sys.stdin.read()))
    (ROOT / "envs" / "pipeline.yaml").write_text(pipeline_yaml(path.read_text()))
