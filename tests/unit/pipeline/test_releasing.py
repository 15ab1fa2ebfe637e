"""Which files go because the log has forgotten them."""

from dataclasses import replace

from headrace.model.ids import StreamId
from headrace.pipeline.named_files import NamedFiles, NamedStream
from headrace.pipeline.releasing import plan_left_release, plan_release
from headrace.tables.port import ListedFile, RowSpan, TableListing
from tests.unit.pipeline.test_merging import FORMAT, INFO


def listing(*names: str) -> TableListing:
    files = [
        ListedFile(path=name, size_bytes=100, row_count=7, bucket=1, partition=None, spec_id=0) for name in names
    ]
    return TableListing(info=INFO, files=files, formats={0: FORMAT})


def named(*paths: str, is_trimmed: bool = True) -> NamedFiles:
    stream = NamedStream(partition=3, stream=StreamId(9), log_start=40, entries=(), is_trimmed=is_trimmed)
    return NamedFiles(streams=[stream], paths=frozenset(paths))


def test_what_the_index_does_not_name_goes() -> None:
    plan = plan_release(named("b", "elsewhere"), listing("a", "b", "c"))
    assert plan.rewrite is not None
    assert (plan.rewrite.inputs, plan.rewrite.input_rows, plan.rewrite.input_bytes) == (("a", "c"), 14, 200)
    assert plan.rewrite.files == ()
    assert dict(plan.released_to) == {3: 40}


def test_where_all_is_named_nothing_goes() -> None:
    plan = plan_release(named("a"), listing("a"))
    assert plan.rewrite is None
    assert dict(plan.released_to) == {3: 40}


def test_a_stream_that_is_not_trimmed_yet_is_looked_at_again() -> None:
    assert dict(plan_release(named("a", is_trimmed=False), listing("a")).released_to) == {}


def test_what_is_left_in_main_goes_once_no_partition_of_it_can_have_rows_in_the_log() -> None:
    streams = [
        NamedStream(
            partition=number, stream=StreamId(number), log_start=start, entries=(), is_trimmed=True, is_empty=is_empty
        )
        for number, (start, is_empty) in enumerate([(0, False), (40, False), (5, True), (50, False)])
    ]

    def gone(first: int, last: int, offset: int) -> bool:
        span = RowSpan(first_partition=first, last_partition=last, last_offset=offset)
        left = [replace(file, span=span) for file in listing("a").files]
        found = plan_left_release(NamedFiles(streams=streams), replace(listing("b"), left=left))
        assert found is None or (found.inputs, found.files, found.gathers) == (("a",), (), ())
        return found is not None

    assert gone(1, 3, 39) and gone(2, 2, 1_000)
    assert not gone(1, 3, 40) and not gone(0, 1, 1)
    unknown = replace(listing("b"), left=listing("a").files)
    assert plan_left_release(NamedFiles(streams=streams), unknown) is None


def test_one_release_takes_a_bounded_number_of_files_and_the_next_one_comes() -> None:
    plan = plan_release(named(), listing("a", "b", "c"), max_files=2)
    assert plan.rewrite is not None
    assert plan.rewrite.inputs == ("a", "b")
    assert plan.has_more
    assert dict(plan.released_to) == {}
