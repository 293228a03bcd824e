"""Runs all tests but those marked slow, in parts, each in a fresh process; three parts at once.

    python -m tests
    python -m tests --of tfrank/data/index.py [more files]   # those of these files alone, see `finder`

TensorFlow keeps every program that XLA compiles: a process that ran all tests would take 8 GB. What one
process has compiled, the others read from a folder. Arguments go to pytest.
"""

import concurrent.futures
import itertools
import os
import subprocess
import sys
import tempfile

from tests import finder

# In an order in which the last three end at nearly the same time.
PARTS = {
    "losses": ["tests/losses", "--ignore=tests/losses/core", "--ignore=tests/losses/proxies"],
    "all others": ["tests"],
    "training": ["tests/training"],
    "data and evaluation": ["tests/data", "tests/evaluation", "tests/scale", "tests/search"],
    "losses, core and proxies": ["tests/losses/core", "tests/losses/proxies"],
    "models": ["tests/models"],
}
PARTS["all others"] += [
    f"--ignore={path}" for paths in PARTS.values() for path in paths if path.startswith("tests/")
]
AT_ONCE = 3  # A tenth quicker than two at once on two cores, since parts wait.
NO_TESTS = 5  # pytest's exit code if it finds none
SHARED_PROGRAMS = "--tf_xla_persistent_cache_device_types=CPU --tf_xla_persistent_cache_directory="


def run(part: list[str], arguments: list[str], programs: str) -> tuple[bool, str]:
    """Runs the tests of a part; returns whether all passed, and what pytest printed."""
    command = [sys.executable, "-m", "pytest", "-m", "not slow", *part, *arguments]
    environment = {"TF_XLA_FLAGS": SHARED_PROGRAMS + programs, **os.environ}
    # Where it is set, each of the many processes would compile all modules again.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    done = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    return done.returncode in (0, NO_TESTS), done.stdout


def parts_of(files: list[str]) -> dict[str, list[str]]:
    """Returns the test files of some files of tfrank by their folders, each of which is a part."""
    parts: dict[str, list[str]] = {}
    for path in finder.files_that_test(files):
        parts.setdefault(os.path.dirname(path), []).append(path)
    return parts


def main(arguments: list[str]) -> int:
    """Runs every part, also after one that fails; returns 1 if one failed, else 0."""
    parts = PARTS
    if arguments[:1] == ["--of"]:
        files = list(itertools.takewhile(lambda word: not word.startswith("-"), arguments[1:]))
        parts, arguments = parts_of(files), arguments[1 + len(files) :]
        print("\n".join(itertools.chain(*parts.values())))
    print(f"{len(parts)} parts, {AT_ONCE} at once; each is printed when it has ended.", flush=True)
    failed = []
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as programs,
        concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool,
    ):
        names = {pool.submit(run, part, arguments, programs): name for name, part in parts.items()}
        for done in concurrent.futures.as_completed(names):
            name, (passed, printed) = names[done], done.result()
            print(f"\nTests of {name}\n{printed}", flush=True)
            failed += [] if passed else [name]
    print(f"Failed: tests of {', '.join(failed)}." if failed else "All parts passed.")
    return int(bool(failed))


if __name__ == "__main__":
    os.chdir(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    try:
        sys.exit(main(sys.argv[1:]))
    except FileNotFoundError as error:
        sys.exit(str(error))
