"""The commands, in families whose modules are imported only when one of theirs is called; and their old names.

ACTS of a module has each command's `Act` (jobs/options.py): the function of prdp whose declared parameters are its
options, a call, what shows the result where its own text is not enough; or the acts below it.
"""

from collections.abc import Sequence
from typing import NamedTuple

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
    **dict.fromkeys(("prepare", "check", "release", "diagnose"), "with_microdata"),
    **dict.fromkeys(("verify", "reconcile", "derive", "product", "export"), "after_release"),
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
