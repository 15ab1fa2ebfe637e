"""Revisions that are given again and another server are noticed; whatever else transactions do is not."""

from headrace.metadata.postgres.history import History


class Noting:
    """A history and how often it said that it was rewound."""

    def __init__(self) -> None:
        self.rewinds = 0
        self.history = History(on_rewind=self._rewound)

    def _rewound(self) -> None:
        self.rewinds += 1

    def commit(self, *revisions: int) -> None:
        """One transaction after another."""
        for revision in revisions:
            self.history.note_revision(revision, self.history.mark())


def test_revisions_that_grow_are_as_they_should_be_whatever_their_gaps() -> None:
    noting = Noting()
    noting.commit(1, 2, 7, 40)
    assert noting.rewinds == 0


def test_transactions_under_way_at_once_may_end_in_any_order() -> None:
    noting = Noting()
    noting.commit(5)
    marks = [noting.history.mark() for _ in range(3)]
    for revision, mark in zip((8, 6, 7), marks, strict=True):
        noting.history.note_revision(revision, mark)
    assert noting.rewinds == 0
    noting.commit(9)
    assert noting.rewinds == 0


def test_a_revision_that_was_given_before_is_noticed_once() -> None:
    noting = Noting()
    noting.commit(5, 6, 7)
    begun_before = noting.history.mark()
    noting.commit(4)
    assert noting.rewinds == 1
    noting.commit(5, 6)
    noting.history.note_revision(3, begun_before)
    assert noting.rewinds == 1, "it goes on from there, and what began before it is no news"
    noting.commit(6)
    assert noting.rewinds == 2


def test_another_server_or_timeline_is_noticed() -> None:
    noting = Noting()
    for server in ("a/1", "a/1", "a/2", "a/2", "b/2"):
        noting.history.note_server(server)
    assert noting.rewinds == 2
    noting.commit(1)
    assert noting.rewinds == 2, "its revisions are its own"
