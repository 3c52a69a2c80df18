"""What a run does now, from any terminal: by its files and what its servers tell. It takes no part in the run."""

import argparse
import os
import shutil
import signal
import sys
import time
from pathlib import Path

import orjson

from workflow_scripts.jobs import run_job
from workflow_scripts.reporting.opening import open_run
from workflow_scripts.reporting.screen import lines
from workflow_scripts.reporting.snapshot import LIVE, Watched

HIDE, SHOW = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"  # the terminal's other screen, and back
HOME, TO_LINE_END, TO_SCREEN_END = "\x1b[H", "\x1b[K", "\x1b[J"


def watch(watched: Watched, every: float) -> None:
    """Draw the run until it ends or somebody has seen enough; what was seen last stays in the terminal."""
    seen = watched.snapshot()
    if seen["state"] in LIVE:
        sys.stdout.write(HIDE)
        try:
            while seen["state"] in LIVE:
                size = shutil.get_terminal_size()
                sys.stdout.write(HOME + _fitted(lines(seen, size.columns), size.lines) + TO_SCREEN_END)
                sys.stdout.flush()
                time.sleep(every)
                seen = watched.snapshot()
        except KeyboardInterrupt:
            pass
        finally:
            sys.stdout.write(SHOW)
            sys.stdout.flush()
    print("\n".join(lines(seen, shutil.get_terminal_size().columns)))


def _fitted(text: list[str], height: int) -> str:
    """The lines that a window has room for."""
    if len(text) > height - 1:
        text = [*text[: height - 2], f"... {len(text) - height + 2} more lines in a taller window, or with --once"]
    return (TO_LINE_END + "\r\n").join([*text, ""])


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m workflow_scripts.reporting.watch", description="Watch a run from any terminal. Ctrl-C leaves."
    )
    parser.add_argument("run", type=Path, nargs="?", help="results/RUN; without it, the run started last")
    parser.add_argument("--once", action="store_true", help="print it once")
    parser.add_argument("--json", action="store_true", help="as JSON, once (reporting/snapshot.py tells the keys)")
    parser.add_argument("--every", type=float, default=2.0, help="seconds between two looks (2)")
    args = parser.parse_args()
    watched = Watched(open_run(args.run))
    if args.json:
        print(orjson.dumps(watched.snapshot(), option=orjson.OPT_INDENT_2).decode())
    elif args.once or not sys.stdout.isatty() or os.environ.get("TERM") == "dumb":
        print("\n".join(lines(watched.snapshot(), shutil.get_terminal_size().columns)))
    else:
        watch(watched, max(0.2, args.every))


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head` is no mistake
    run_job(main)
