"""The parser of the command line, and the option that all commands share."""

import argparse
import sys
from collections.abc import Sequence
from itertools import takewhile


class ArgumentParser(argparse.ArgumentParser):
    """argparse's parser, which also refuses "--" as the value of an option.

    argparse itself takes "--png=--" for an option without a value, and returns an empty list.
    """

    def parse_known_args(self, args: Sequence[str] | None = None,
                         namespace: argparse.Namespace | None = None
                         ) -> tuple[argparse.Namespace, list[str]]:
        """Parse as argparse does; words after a separate "--" are no options."""
        words = sys.argv[1:] if args is None else args
        for word in takewhile("--".__ne__, words):
            option, _, value = word.partition("=")
            if word.startswith("-") and "--" in (value, word[2:]):      # --png=-- or -p--
                self.error(f"{option.removesuffix('--')} has the value --, which only ends the "
                           "options: give another one")
        return super().parse_known_args(words, namespace)


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add --json."""
    parser.add_argument("--json", action="store_true",
                        help="write the tables as JSON to stdout, and nothing else")
