"""Runs the test programs that `cargo test --no-run --message-format=json` has built, several at once.

    cargo test --no-run --message-format=json | python3 run_tests.py [PROGRAMS AT ONCE]

Most tests of scenarios wait: for the next look at the GPUs, for a watch to end. One program after the other leaves the
processor idle. A program that fails has its output printed, and the others still run to their end.
"""

import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path


def programs():
    """Name, path and directory of each test program."""
    for line in sys.stdin:
        message = json.loads(line)
        if message.get("reason") == "compiler-artifact" and message["profile"]["test"] and message["executable"]:
            directory = Path(message["manifest_path"]).parent
            package = directory.name if directory != Path.cwd() else "plugin"
            yield f"{package} {message['target']['name']}", message["executable"], directory


def run(path, directory):
    """Whether the program succeeded, what it printed, and how many seconds it took."""
    start = time.monotonic()
    done = subprocess.run(
        [path, "--quiet"], cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    )
    return done.returncode == 0, done.stdout, time.monotonic() - start


def main():
    at_once = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    # The largest first: they tend to take longest, and the end should not wait for one of them alone.
    todo = sorted(programs(), key=lambda program: -Path(program[1]).stat().st_size)
    if not todo:
        sys.exit("there is no test program: was it `cargo test --no-run --message-format=json`?")
    failed = []
    with ThreadPoolExecutor(at_once) as pool:
        running = {pool.submit(run, path, directory): name for name, path, directory in todo}
        for done in as_completed(running):
            name, (passed, output, seconds) = running[done], done.result()
            results = [line for line in output.splitlines() if line.startswith("test result:")]
            summary = results[-1].split(";")[0].removeprefix("test result: ") if results else "no result"
            print(f"{name}: {summary} in {seconds:.0f} s", flush=True)
            if not passed:
                failed.append(name)
                print(output, flush=True)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
