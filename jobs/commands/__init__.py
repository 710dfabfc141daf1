"""The commands, in families whose modules are imported only when one of theirs is called; old names; how they speak.

ACTS of a module has each command's `Act` (jobs/options.py): the function of prdp whose declared parameters are its
options, a call, what shows the result where its own text is not enough; or the acts below it.
"""

import io
import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import IO, Any, NamedTuple

from pipeline.base.errors import PlanError, PrdpError, in_a_line
from pipeline.base.log import pasted
from pipeline.base.plain import GREEN, RED, WIDTH, YELLOW, escaped, painted, wrapped

COMMANDS = {  # name → what it does, in one line
    "generate": "write synthetic microdata, their domain and a plan to start with",
    "explain": "show what a plan promises; reads no microdata",
    "calibrate": "find the scales of a plan, a draft or a mechanism from an accuracy or loss; reads no microdata",
    "try": "try a whole plan on synthetic microdata: drawn errors, losses, a page to play with",
    "study": "compare mechanisms, plans and noise on public or synthetic figures; design noise; convert losses",
    "prepare": "check, type and sort microdata once for repeated releases; confidential",
    "check": "look at the microdata before a release, in a private report; confidential",
    "release": "release a plan's tables, or continue where a run stopped",
    "diagnose": "losses of the actual records, and errors against the true totals; confidential",
    "verify": "check that a release's files match its manifest; for everyone",
    "reconcile": "estimates of published tables that add up; for everyone",
    "derive": "ratios, shares and change of published totals, with their errors; for everyone",
    "product": "make the files that users load, of published releases; for everyone",
    "export": "write published or reconciled tables in another format, or as a public site; for everyone",
    "ledger": "budgets, approvals and losses spent; for disclosure officers",
    "doctor": "what is wrong with this machine and its ledger, and how to mend it",
}
HOMES = {
    **dict.fromkeys(("generate", "explain", "calibrate", "try", "study"), "before_release"),
    **dict.fromkeys(("prepare", "check", "release", "diagnose", "verify"), "releasing"),
    **dict.fromkeys(("reconcile", "derive", "product", "export"), "releasing"),
    **dict.fromkeys(("ledger", "doctor"), "ledger"),
}


class Old(NamedTuple):
    """A call by an old name: its first words, those of now, and the option that tells it apart.

    The option is left out of the call, or renamed `becomes`; what `but` names must not stand beside it. `gone`: options
    with a value that did nothing, and still do nothing.
    """

    words: str
    now: str
    option: str = ""
    becomes: str = ""
    but: str = ""
    gone: tuple[str, ...] = ()


OLD = (  # the first that fits; they go on working for one version
    Old("design", "study design"),
    Old("evaluate", "study suppression", "--suppression", gone=("--engine", "--scheduler", "--workers", "--master")),
    Old("evaluate", "study publication", "--publication"),
    Old("evaluate", "study run"),
    Old("generate", "study today", "--describe"),
    Old("calibrate", "study compare", "--compare"),
    Old("calibrate", "study scales", "--scales"),
    Old("calibrate", "study epsilon", "--rho", "--rho"),
    Old("calibrate", "study alpha", "--best-alpha", "--least"),
    Old("calibrate", "study group", "--group-loss", "--group-loss"),
    Old("calibrate", "study rho", "--epsilon", "--epsilon", but="--kind"),
    Old("site", "export --to site"),
    Old("keys", "ledger admin keys"),
    Old("completion", "--completion"),
    Old("ledger check", "ledger afford"),
    Old("ledger health", "doctor --ledger-only", gone=("--operator",)),
    *(
        Old(f"ledger {act}", f"ledger admin {act}")
        for act in ["close", "reopen", "import", "export", "migrate", "staging"]
    ),
)


def renewed(words: Sequence[str]) -> tuple[list[str], str | None]:
    """Return a call by its names of now, and what to call it; None where it has them already."""
    options = [word.partition("=")[0] for word in words]
    for old in OLD:
        first = old.words.split()
        if list(words[: len(first)]) != first or (old.option and old.option not in options) or old.but in options:
            continue
        rest = list(words[len(first) :])
        if old.option:
            place = next(i for i, word in enumerate(rest) if word.partition("=")[0] == old.option)
            _, sign, value = rest[place].partition("=")
            rest[place : place + 1] = [old.becomes + sign + value] if old.becomes else [value] * bool(sign)
        for place in reversed([i for i, word in enumerate(rest) if word.partition("=")[0] in old.gone]):
            del rest[place : place + (1 if "=" in rest[place] else 2)]
        return [*old.now.split(), *rest], f"prdp {old.now}"
    return list(words), None


# How a command speaks: text in UTF-8 whatever the locale, JSON for programs, columns for people.

VERDICTS = {  # the words by which a verdict is told, by its colour
    GREEN: r"(?<=^verdict  )within its .*?limits?|\bwithin(: \S+ %)?$|(?<=[0-9] )kept(?=: rho)"
    r"|match their manifest|match the (manifest|chain)|is complete|fits the budget|^good(?=: )",
    RED: r"^mend(?=: )|(?<=^verdict  )BREAKS .*?limits?(?= by)|\bBROKEN\b(: \S+ times$)?",
    YELLOW: r"^ *warning:",
}


def print_json(value: Any) -> None:
    """Print a command's result as JSON, escaped as JSON does it where standard output is not in UTF-8.

    Raises ValueError on a number that JSON does not have.
    """
    in_utf8 = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    put(json.dumps(value, ensure_ascii=not in_utf8, indent=2, allow_nan=False))


def put(*words: object, file: IO[str] | None = None) -> None:
    """Print words as `print` does; what would act on a terminal is shown escaped. All that is printed passes here."""
    print(escaped(" ".join(map(str, words))), file=file)


def say(*lines: str) -> None:
    """Print lines for people as `tell` does, each broken where it is wider than a terminal."""
    for line in lines:
        tell("\n".join(wrapped(pasted(line))))


def tell(text: str) -> None:
    """Print text for people; its commands name the call's ledger; on a terminal words of a verdict have its colour."""
    text = escaped(pasted(text))
    for colour, words in VERDICTS.items():
        text = re.sub(words, lambda match: painted(match[0], colour, sys.stdout), text, flags=re.MULTILINE)  # noqa: B023
    print(text)


def print_findings(document: Mapping[str, Any], json: bool) -> None:
    """Print what a check of a ledger or a machine found; raises PrdpError (exit code 1) where something must be mended.

    `document`: as `pipeline.operations.ledger_health.as_document` makes it.
    """
    rows = [row | {"fix": row["fix"] and pasted(row["fix"])} for row in document["findings"]]
    if json:
        print_json({**document, "findings": rows})
    else:
        for row in sorted(rows, key=lambda row: row["fix"] is not None):  # what must be mended stands last
            say(f"{row['state']}: {row['check']}: {row['what']}", *([f"    {row['fix']}"] if row["fix"] else []))
    if not document["well"]:
        wrong = sum(row["fix"] is not None for row in rows)
        raise PrdpError(f"{wrong} of {len(rows)} findings must be mended")


def print_columns(rows: Sequence[Sequence[str]]) -> None:
    """Print rows of text in columns, each as wide as its longest cell.

    A first cell that leaves no room for the others on a terminal has a line of its own.
    """
    first, *others = ([*map(len, column)] for column in zip(*rows, strict=True))
    room = WIDTH - sum(2 + max(lengths) for lengths in others)
    widths = [max((length for length in first if length <= room), default=4), *map(max, others)]
    for name, *cells in rows:
        if len(name) > widths[0]:
            put(name)
        padded = zip(("" if len(name) > widths[0] else name, *cells), widths, strict=True)
        put("  ".join(cell.ljust(width) for cell, width in padded).rstrip())


def run_in_utf8() -> None:
    """Begin this process anew in UTF-8 where its locale has another encoding of names, as LC_ALL=C or Latin-1 have.

    Python settles on one before any of our code runs. Java, and workers on this machine, follow the locale too.
    """
    if sys.getfilesystemencoding() != "utf-8" and os.environ.get("PYTHONUTF8") != "1":
        environment = os.environ | {"PYTHONUTF8": "1", "LC_ALL": "C.UTF-8"}
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)


def escape_what_cannot_be_printed() -> None:
    """Have standard output escape what its encoding lacks, which PYTHONIOENCODING may set; a strict one would fail."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")


def require_utf8(words: Sequence[str]) -> None:
    """Raise PlanError on a word that is no UTF-8, such as a file's name in Latin-1."""
    for word in words:
        if any("\udc80" <= sign <= "\udcff" for sign in word):
            raise PlanError(f"{in_a_line(word)}: it is not in UTF-8: rename the file, or set the terminal to UTF-8")
