"""The load process: plays the members of all groups and tells what they saw; told what to do by one line of JSON.

A thousand real clients do not fit beside a broker on two cores, so one event loop plays all of them, each with a
connection of its own. It watches how late it is itself, because its own delays look like the broker's.
"""

import asyncio
import functools
import sys
import time

import uvloop

from benchmarks.beside_kafka.figures import percentile
from benchmarks.groups_beside_kafka import jobs
from benchmarks.groups_beside_kafka.commit_frame import CommitFrame
from benchmarks.groups_beside_kafka.connection import CLIENT_ID
from benchmarks.groups_beside_kafka.group import Group
from benchmarks.groups_beside_kafka.shell import Member
from benchmarks.groups_beside_kafka.stage import Stage, set_up
from headrace.model.error_codes import ErrorCode

P99 = 0.99
FIRST_COMMITS_SECONDS = 0.5
"""Commits before this do not count: what they touch is cold."""


class CommitRefused(Exception):
    """A commit of a member that is in its group was refused."""


async def play_fleet(job: jobs.Fleet) -> jobs.Done:
    """Let groups form, hold still, and hand over."""
    window = None
    leaves: list[float] = []
    joins: list[float] = []

    async def hand_over(group: Group) -> None:
        for _ in range(job.hand_overs):
            await stage.pause(job.spread_seconds)
            leaves.append(await group.one_leaves())
            await stage.pause(job.spread_seconds)
            joins.append(await group.one_joins())

    async with set_up(job) as stage:
        all_join = await stage.all_join(job.spread_seconds)
        if job.window_seconds:
            await asyncio.sleep(job.rest_seconds)
            window = await stage.watch(asyncio.sleep(job.window_seconds))
        await asyncio.gather(*(hand_over(group) for group in stage.groups))
    return _done(stage, window=window, all_join=all_join, one_joins=joins, one_leaves=leaves)


async def play_commits(job: jobs.Commit) -> jobs.Done:
    """Let everybody join, and then commit without a pause."""
    times: list[float] = []
    async with set_up(job) as stage:
        await stage.all_join(0)
        pairs = [(member, _frame(job.topic, group, member)) for group in stage.groups for member in group.members]
        await _commit_all(pairs, FIRST_COMMITS_SECONDS, [])
        window = await stage.watch(_commit_all(pairs, job.seconds, times))
    return _done(stage, window=window, commits=times)


def _frame(topic: str, group: Group, member: Member) -> CommitFrame:
    return CommitFrame(
        client_id=CLIENT_ID,
        group_id=group.group_id,
        member_id=member.machine.member_id,
        epoch=member.machine.epoch,
        topic=topic,
        partitions=sorted(member.machine.owned),
    )


async def _commit_all(pairs: list[tuple[Member, CommitFrame]], seconds: float, times: list[float]) -> None:
    end_s = time.monotonic() + seconds
    await asyncio.gather(*(_commit(member, frame, end_s, times) for member, frame in pairs))


async def _commit(member: Member, frame: CommitFrame, end_s: float, times: list[float]) -> None:
    offset = 0
    while (began_s := time.monotonic()) < end_s:
        offset += 1
        answer = await member.connection.exchange(functools.partial(frame.encode, offset=offset))
        times.append(time.monotonic() - began_s)
        if (error := frame.first_error(answer)) is not ErrorCode.NONE:
            raise CommitRefused(f"member {member.machine.member_id!r}: {error.name}")


def _done(
    stage: Stage,
    *,
    window: jobs.Window | None,
    all_join: list[float] | None = None,
    one_joins: list[float] | None = None,
    one_leaves: list[float] | None = None,
    commits: list[float] | None = None,
) -> jobs.Done:
    return jobs.Done(
        all_join_seconds=all_join or [],
        one_joins_seconds=one_joins or [],
        one_leaves_seconds=one_leaves or [],
        commit_seconds=commits or [],
        window=window,
        load_lag_seconds=percentile(stage.lags_seconds, P99),
        fenced=stage.counts.fenced,
        owned_twice=stage.owned_twice,
    )


async def perform(job: jobs.Job) -> jobs.Done:
    """Do what the job says."""
    match job:
        case jobs.Fleet():
            return await play_fleet(job)
        case jobs.Commit():
            return await play_commits(job)


if __name__ == "__main__":
    print(jobs.encode_done(uvloop.run(perform(jobs.decode_job(sys.stdin.readline())))))
