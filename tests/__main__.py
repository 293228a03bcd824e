"""Runs all tests but those marked slow, in parts, each in two fresh processes.

    python -m tests

TensorFlow keeps every program that XLA compiles: a process that ran all tests would take 8 GB. Arguments go
to pytest.
"""

import os
import subprocess
import sys

PARTS = {
    "losses, core": ["tests/losses/core"],
    "losses": ["tests/losses", "--ignore=tests/losses/core"],
    "models and training": ["tests/models", "tests/training"],
    "all others": ["tests", "--ignore=tests/losses", "--ignore=tests/models", "--ignore=tests/training"],
}
NO_TESTS = 5  # pytest's exit code if it finds none


def main(arguments: list[str]) -> int:
    """Runs every part, also after one that fails; returns 1 if one failed, else 0."""
    command = [sys.executable, "-m", "pytest", "-n", "2", "--dist", "loadfile", "-m", "not slow"]
    # Where it is set, each of the many processes would compile all modules again.
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    failed = []
    for name, paths in PARTS.items():
        print(f"\nTests of {name}", flush=True)
        done = subprocess.run([*command, *paths, *arguments], env=environment, check=False)
        if done.returncode not in (0, NO_TESTS):
            failed.append(name)
    print(f"\nFailed: tests of {', '.join(failed)}." if failed else "\nAll parts passed.")
    return int(bool(failed))


if __name__ == "__main__":
    os.chdir(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    sys.exit(main(sys.argv[1:]))
