"""Whether the server goes on where it was: what shows that it was failed over, or restored from a backup.

- Revisions come from one sequence. A transaction that begins after a revision was seen gets a greater one.
- A server has an identifier, and a timeline that changes with every fail-over and every restore to a point in time.

Must stay true: as long as the server goes on, nothing here says otherwise, however transactions overtake each other.
A fail-over may have lost nothing; that it may have is enough, because whoever hears of it only reads again.
"""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mark:
    """What was known when a transaction began."""

    revision: int
    era: int


class History:
    """Remembers the newest revision that was committed here, and which server answered."""

    def __init__(self, *, on_rewind: Callable[[], None]) -> None:
        self._on_rewind = on_rewind
        self._revision = 0
        self._era = 0
        self._server: str | None = None

    def mark(self) -> Mark:
        """Return what is known now, at the beginning of a transaction."""
        return Mark(self._revision, self._era)

    def note_revision(self, revision: int, mark: Mark) -> None:
        """Take note of a transaction's revision, and whether it is one that cannot be."""
        if mark.era != self._era:
            return  # It began in what is known to be over.
        if revision <= mark.revision:
            self._rewound()
        self._revision = max(self._revision, revision)

    def note_server(self, server: str) -> None:
        """Take note of which server answers."""
        known, self._server = self._server, server
        if known is not None and known != server:
            self._rewound()

    def _rewound(self) -> None:
        self._era += 1
        self._revision = 0
        self._on_rewind()
