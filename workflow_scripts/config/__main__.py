"""`python -m workflow_scripts.config` writes config/schema.json."""

import argparse
from pathlib import Path

from workflow_scripts import files
from workflow_scripts.config import schema


def main() -> None:
    """Write config/schema.json."""
    parser = argparse.ArgumentParser(description="Write the JSON Schema of the config, from its types.")
    parser.add_argument("path", type=Path, nargs="?", default=Path("config/schema.json"), help="where to write it")
    files.write_json(parser.parse_args().path, schema())


if __name__ == "__main__":
    main()
