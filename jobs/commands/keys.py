"""prdp keys: the key with which a site signs the manifests of its releases."""

import argparse
from pathlib import Path

from jobs.options import Parser, add_json, example, sentence
from jobs.output import print_json, put, say

EXAMPLE = "prdp keys create /srv/prdp/site.key"


def declare(parser: Parser) -> None:
    """Add the one act."""
    acts = parser.add_subparsers(dest="act", required=True, metavar="ACT", parser_class=type(parser))
    about = "make a new key: FILE, which stays secret, and FILE.pub for everyone"
    create = acts.add_parser("create", help=about, description=sentence(about), epilog=example(EXAMPLE))
    create.add_argument("file", type=Path, metavar="FILE", help="the private key, a new file of mode 0600")
    add_json(create)


def run(arguments: argparse.Namespace) -> None:
    """Make the key, then print where it is and what to do with it."""
    from prdp.releases import create_key  # noqa: PLC0415 — Arrow, which the help does not need

    made = create_key(arguments.file)
    if arguments.json:
        print_json(made)
        return
    say(f"private key {made['key']}: keep it secret, and a copy of it in a safe")
    put(f"public key {made['public']}: give it to everyone who is to check releases")
    put(f"SHA-256 {made['fingerprint']}")
    say(f"releases are signed where the site's file says signing_key: {made['key']}, or PRDP_SIGNING_KEY={made['key']}")
