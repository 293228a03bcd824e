"""Tab in a shell completes the verbs and flags that there are."""

import subprocess

import pytest

from tests.command_lines import run
from tests.test_house import PROGRAMS, flags_of
from tfrank.__main__ import VERBS
from tfrank.completion import flags_of_verbs, script

FLAGS = flags_of_verbs()

# What bash does at Tab: it calls the function that `complete` names, with the words and where the cursor is.
TAB = """
source /dev/stdin
name=$(complete -p tfrank | sed 's/.*-F \\([^ ]*\\) .*/\\1/')
COMP_WORDS=(tfrank "$@"); COMP_CWORD=$#
$name tfrank "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"
printf '%s\\n' "${COMPREPLY[@]}"
"""


def completed(*words):
    """What bash offers for the last word, in a real bash."""
    done = subprocess.run(
        ["bash", "--norc", "-c", TAB, "bash", *words],
        input=script("bash", FLAGS),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["s"], ["sweep ", "serve ", "scale "]),
        (["serve", "--d"], ["--demo"]),
        (["index", "--min"], ["--min_similarity="]),
        (["index", "duplicates", "--index_dir", "=", "x", "--trust"], ["--trust_model"]),
        (["eval", "--se"], ["--search="]),
        (["train", "--config.train.st"], ["--config.train.steps="]),
        (["index", "--config"], [""]),
        (["index", "--images", "=", "ph"], [""]),
        (["unknown", "--"], [""]),
    ],
)
def test_bash_completes_verbs_flags_and_fields_and_leaves_files_to_itself(words, offered):
    found = completed(*words)
    assert set(offered) <= set(found) and (len(words) > 1 or found == offered)


def test_every_verb_has_the_flags_that_its_module_defines():
    assert list(FLAGS) == list(VERBS) and FLAGS["completion"] == []
    own = [
        {flag.strip("-=") for flag in flags if "--config." not in flag} for flags in FLAGS.values() if flags
    ]
    assert sorted(map(sorted, own)) == sorted(sorted(flags_of(program)) for program in PROGRAMS)


def test_the_command_prints_the_script_of_a_shell():
    for shell in ("bash", "zsh", "fish"):
        assert run("-m", "tfrank", "completion", shell) == (0, script(shell, FLAGS), "")
    status, printed, errors = run("-m", "tfrank", "completion", "csh")
    assert (status, printed) == (1, "") and errors.startswith("Error: Give the shell: ")
