"""prdp --completion: commands and options completed by a shell, from what the parser knows."""

import argparse
import shlex
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from jobs.options import Parser, parser_with


@dataclass(frozen=True)
class Place:
    """A command or act by its words, such as `prdp ledger show`, and what may follow them."""

    path: str
    acts: dict[str, str]  # command, act or other choice → what it does
    options: tuple[argparse.Action, ...]

    @property
    def names(self) -> list[str]:
        """The options written in full."""
        return [name for option in self.options for name in option.option_strings if name.startswith("--")]


def completion(shell: str) -> str:
    """Return the script that a shell reads."""
    return WRITERS[shell](list(places(parser_with(None))))


def places(parser: Parser) -> Iterator[Place]:
    """Return a parser's place, then those of its commands or acts."""
    (within,) = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)] or (None,)
    choices = [choice for action in parser._actions if not action.option_strings for choice in action.choices or ()]
    summaries = {choice.dest: choice.help or "" for choice in within._choices_actions} if within else {}
    summaries = {choice: summaries.get(choice, "") for choice in choices}
    yield Place(parser.prog, summaries, tuple(action for action in parser._actions if action.option_strings))
    for below in within.choices.values() if within else ():
        yield from places(below)


def _bash(places: list[Place]) -> str:
    valued = {
        f"{place.path} {name}": list(option.choices or ())
        for place in places
        for option in place.options
        for name in option.option_strings
        if option.nargs != 0
    }
    return "\n".join(
        [
            "_prdp() {",
            "    local at=prdp offered= flags= word here=${COMP_WORDS[COMP_CWORD]}",
            '    for word in "${COMP_WORDS[@]:1:$((COMP_CWORD - 1))}"; do',
            f'        case "$at $word" in {_any(place.path for place in places)}) at="$at $word" ;; esac',
            "    done",
            '    case "$at ${COMP_WORDS[COMP_CWORD-1]}" in',
            *(f"    {_any([option])}) {_set('offered', choices)} ;;" for option, choices in valued.items() if choices),
            f"    {_any(option for option, choices in valued.items() if not choices)}) ;;",  # the shell offers files
            '    *) case "$at" in',
            *(
                f"    {_any([each.path])}) {_set('offered', each.acts)} {_set('flags', each.names)} ;;"
                for each in places
            ),
            "    esac ;;",
            "    esac",
            "    [[ $here == -* ]] && offered=$flags",
            '    COMPREPLY=($(compgen -W "$offered" -- "$here"))',
            "}",
            "complete -o default -F _prdp prdp",
        ]
    )


def _any(words: Iterable[str]) -> str:
    return "|".join(map(shlex.quote, words))


def _set(variable: str, words: Iterable[str]) -> str:
    return f"{variable}={shlex.quote(' '.join(words))}"


def _zsh(places: list[Place]) -> str:
    return f"autoload -U +X compinit bashcompinit && compinit && bashcompinit\n{_bash(places)}"


def _fish(places: list[Place]) -> str:
    lines = [
        "function __prdp_at",
        "    set -l path prdp",
        "    for word in (commandline -opc)[2..]",
        f'        contains -- "$path $word" {shlex.join(place.path for place in places)}; and set path "$path $word"',
        "    end",
        '    test "$path" = "$argv[1]"',
        "end",
    ]
    for place in places:
        here = f"complete -c prdp -n {shlex.quote(f'__prdp_at {shlex.quote(place.path)}')}"
        lines += [f"{here} -f -a {act} -d {_quoted(does)}" for act, does in place.acts.items()]
        for option in place.options:
            takes = f" -x -a {shlex.quote(' '.join(option.choices))}" if option.choices else " -r"
            lines += [
                f"{here} -l {name.lstrip('-')}{takes if option.nargs != 0 else ''} -d {_quoted(option.help or '')}"
                for name in option.option_strings
                if name.startswith("--")
            ]
    return "\n".join(lines)


def _quoted(text: str) -> str:
    """Return text between single quotes, as fish reads them."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'").replace("%%", "%") + "'"


WRITERS: dict[str, Callable[[list[Place]], str]] = {"bash": _bash, "zsh": _zsh, "fish": _fish}
