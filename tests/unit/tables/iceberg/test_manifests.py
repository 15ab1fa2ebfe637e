"""Which manifests are merged: few of them stay, and an entry is rewritten a few times at most."""

from pyiceberg.manifest import ManifestContent, ManifestFile

from headrace.tables.iceberg.manifests import MAX_MERGED_ENTRIES, MERGE_COUNT, entry_count, merge_groups


def manifest(
    name: str, entries: int, *, spec: int = 0, content: ManifestContent = ManifestContent.DATA
) -> ManifestFile:
    return ManifestFile.from_args(
        manifest_path=name,
        manifest_length=1,
        partition_spec_id=spec,
        content=content,
        sequence_number=1,
        min_sequence_number=1,
        added_snapshot_id=1,
        added_files_count=0,
        existing_files_count=entries,
        deleted_files_count=0,
        added_rows_count=0,
        existing_rows_count=0,
        deleted_rows_count=0,
        partitions=[],
        key_metadata=None,
    )


def test_only_so_many_of_a_size_are_merged() -> None:
    few = [manifest(f"m{n}", 1) for n in range(MERGE_COUNT - 1)]
    assert merge_groups(few) == []
    assert merge_groups([*few, manifest("other", MERGE_COUNT)]) == []
    assert merge_groups([*few, manifest("last", 1)]) == [[*few, manifest("last", 1)]]


def test_specs_and_deletes_are_kept_apart() -> None:
    mixed = [manifest(f"m{n}", 1, spec=n % 2) for n in range(2 * MERGE_COUNT - 1)]
    (group,) = merge_groups(mixed)
    assert {found.partition_spec_id for found in group} == {0}
    deletes = [manifest(f"d{n}", 1, content=ManifestContent.DELETES) for n in range(2 * MERGE_COUNT)]
    assert merge_groups(deletes) == []


def test_a_manifest_of_full_size_is_never_rewritten() -> None:
    assert merge_groups([manifest(f"m{n}", MAX_MERGED_ENTRIES) for n in range(2 * MERGE_COUNT)]) == []
    large = [manifest(f"m{n}", MAX_MERGED_ENTRIES // 2) for n in range(2 * MERGE_COUNT)]
    (group,) = merge_groups(large)
    assert sum(entry_count(found) or 0 for found in group) <= MAX_MERGED_ENTRIES


def test_manifests_of_which_no_two_fit_into_one_stay_as_they_are() -> None:
    large = [manifest(f"m{n}", MAX_MERGED_ENTRIES - 400) for n in range(2 * MERGE_COUNT)]
    assert merge_groups(large) == []
    small = [manifest("s0", 400), manifest("s1", 401)]
    assert merge_groups([*large, small[1], small[0]]) == [small]


def test_ten_thousand_commits_leave_few_manifests_and_little_rewriting() -> None:
    manifests: list[ManifestFile] = []
    rewritten = 0
    for number in range(10_000):
        for group in merge_groups(manifests):
            merged = {found.manifest_path for found in group}
            entries = sum(entry_count(found) or 0 for found in group)
            rewritten += entries
            left = [found for found in manifests if found.manifest_path not in merged]
            manifests = [manifest(f"merged-{number}-{entries}", entries), *left]
        manifests.append(manifest(f"m{number}", 1))
    assert len(manifests) < 4 * MERGE_COUNT
    assert rewritten < 3 * 10_000
    assert sum(entry_count(found) or 0 for found in manifests) == 10_000
