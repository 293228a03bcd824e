"""Completes the verbs, flags and config fields of tfrank by Tab in a shell.

    tfrank completion bash > ~/.local/share/bash-completion/completions/tfrank
    tfrank completion fish > ~/.config/fish/completions/tfrank.fish
    tfrank completion zsh > ~/.tfrank-completion   # and in ~/.zshrc: source ~/.tfrank-completion

It takes effect in a new shell. --help of a verb explains its flags.
"""

import pathlib
import re
import sys
from collections.abc import Mapping, Sequence

from tfrank.common.commands import HELP

# Where the flags of a verb are, if not in its module.
_FLAGS = {"train": "tfrank.run.train", "eval": "tfrank.run.evaluate", "scale": "tfrank.scale.command"}
_BASH = """_tfrank() {{
  local words="" word="${{COMP_WORDS[COMP_CWORD]}}"
  case "${{COMP_WORDS[1]}}" in
{cases}
  esac
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W "{verbs}" -- "$word"))
    COMPREPLY=("${{COMPREPLY[@]/%/ }}")
  elif [[ "$word" == -* ]]; then
    COMPREPLY=($(compgen -W "$words" -- "$word"))
  fi
}}
complete -o default -o nospace -F _tfrank tfrank
"""


def script(shell: str, flags_of: Mapping[str, Sequence[str]]) -> str:
    """Returns the program that completes a command line of tfrank.

    Args:
        shell: "bash", "zsh" or "fish".
        flags_of: the flags of each verb. They end with = if they take a value.

    >>> print(script("fish", {"serve": ["--demo", "--port="]}), end="")
    complete -c tfrank -n __fish_use_subcommand -f -a serve
    complete -c tfrank -n '__fish_seen_subcommand_from serve' -a '--demo --port='
    """
    if shell == "fish":
        lines = [f"complete -c tfrank -n __fish_use_subcommand -f -a {verb}" for verb in flags_of]
        for verb, flags in flags_of.items():
            lines.append(f"complete -c tfrank -n '__fish_seen_subcommand_from {verb}' -a '{' '.join(flags)}'")
        return "\n".join(lines) + "\n"
    cases = "\n".join(f'    {verb}) words="{" ".join(flags)}" ;;' for verb, flags in flags_of.items())
    bash = _BASH.format(cases=cases, verbs=" ".join(flags_of))
    return f"autoload -U +X bashcompinit && bashcompinit\n{bash}" if shell == "zsh" else bash


def flags_of_verbs() -> dict[str, list[str]]:
    """Returns the flags of each verb."""
    from tfrank.__main__ import VERBS

    return {name: _flags_in(_FLAGS.get(name, verb.module)) for name, verb in VERBS.items()}


def _flags_in(module: str) -> list[str]:
    """Returns the flags that a module defines, from its text: importing it takes seconds."""
    path = pathlib.Path(__file__).parent.joinpath(*module.split(".")[1:]).with_suffix(".py")
    found = re.findall(r'DEFINE_(\w+)\(\s*"(\w+)"', path.read_text())
    flags = [f"--{name}" if kind == "bool" else f"--{name}=" for kind, name in found if kind != "alias"]
    return [*flags, *_config_flags()] if "--config=" in flags else flags


def _config_flags() -> list[str]:
    from tfrank.configs import default, fields

    return [f"--config.{field.path}=" for field in fields.fields_of(default.get_config())]


def command() -> None:
    """The command tfrank completion."""
    words = sys.argv[1:]
    if HELP & set(words):
        print(__doc__)
    elif words in (["bash"], ["zsh"], ["fish"]):
        print(script(words[0], flags_of_verbs()), end="")
    else:
        sys.exit("Error: Give the shell: tfrank completion bash, or zsh, or fish.")
