"""Markers: the tokens that say where a text begins and ends, and that fill up a batch.

    <s> The cat sat. </s> <pad> <pad>        begin 1, end 2, pad 0

An answer of a model ends with the first end token that it draws.  If the encoding itself puts a
token before every text, that is `ByteBPE.prefix`.
"""

from dataclasses import asdict, dataclass
from typing import Any, Self


@dataclass(frozen=True)
class Markers:
    """The numbers of the marking tokens; an answer ends with any of `ends`."""

    begin: int | None = None
    end: tuple[int, ...] = ()           # what config.json names
    more_ends: tuple[int, ...] = ()     # what only generation_config.json or the tokenizer names
    pad: int | None = None

    @property
    def ends(self) -> tuple[int, ...]:
        """All tokens that end an answer."""
        return self.end + self.more_ends

    def description(self) -> dict[str, Any]:
        """The numbers, as a checkpoint keeps them."""
        return {name: list(value) if isinstance(value, tuple) else value
                for name, value in asdict(self).items()}

    @classmethod
    def from_description(cls, described: Any, size: int) -> Self:
        """The markers that were described, of a vocabulary of `size`; None: no markers.

        Raises ValueError for a wrong description.
        """
        try:
            found = cls(**{name: tuple(value) if isinstance(value, list) else value
                           for name, value in dict(described or {}).items()})
            ids = [*found.ends, *({found.begin, found.pad} - {None})]
        except (TypeError, ValueError) as error:
            raise ValueError(f"markers are not {str(described)[:60]!r} ({error})") from error
        check_ids(ids, size)
        return found


def check_ids(ids: list[Any], size: int) -> None:
    """Raise ValueError unless each is the number of a token."""
    wrong = [i for i in ids if type(i) is not int or not 0 <= i < size]
    if wrong:
        raise ValueError(f"a marker is a token from 0 to {size - 1}, not {wrong[0]!r:.20}")
