"""One module a command, imported only when that command is called.

Each has an EXAMPLE for its help; CALL, the function of prdp whose declared parameters are its options, and
`show(made, arguments)`; or `declare(parser)` and `run(arguments)` of its own.
"""

COMMANDS = {  # name → what it does, in one line
    "generate": "write synthetic microdata, their domain and a plan to start with",
    "explain": "show what a plan promises; reads no microdata",
    "calibrate": "find parameters from a wanted accuracy or loss; reads no microdata",
    "design": "find the noise with the least error under limits on losses; reads no microdata",
    "try": "try a whole plan on synthetic microdata: drawn errors, losses, a page to play with",
    "prepare": "check, type and sort microdata once for repeated releases; confidential",
    "check": "look at the microdata before a release, in a private report; confidential",
    "release": "release a plan's tables, or continue where a run stopped",
    "diagnose": "losses of the actual records, and errors against the true totals; confidential",
    "evaluate": "compare mechanisms on synthetic microdata",
    "verify": "check that a release's files match its manifest; for everyone",
    "export": "write published or reconciled tables in another format; for everyone",
    "reconcile": "estimates of published tables that add up; for everyone",
    "derive": "ratios, shares and change of published totals, with their errors; for everyone",
    "product": "make the files that users load, of published releases; for everyone",
    "site": "make a public site of a published release, also with reconciled figures; for everyone",
    "keys": "make the key with which a site signs its releases",
    "ledger": "budgets, approvals and losses spent; for disclosure officers",
    "doctor": "what is wrong with this machine and its ledger, and how to mend it",
    "completion": "print what completes commands and options in bash, zsh or fish",
}
