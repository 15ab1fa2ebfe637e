'use strict'
// What consumer groups do: join, share, read, commit, resume; and what an operator does to them.

const assert = require('node:assert/strict')
const { AssignerProtocol } = require('kafkajs')
const { Brokers } = require('./brokers')
const { Client, waitUntil } = require('./client')
const { Group, Member } = require('./groups')
const { COUNT, range } = require('./records')

const PARTITIONS = 6
const EACH = 5

/** The cases, for a client, with the prefix of topic names and the time of record 0. */
const groupCases = (client, prefix, epochMs) => {
  const { admin, kafka } = client

  const offsets = async (groupId, topic) => {
    const [found] = await admin.fetchOffsets({ groupId, topics: [topic] })
    return found.partitions.sort((one, other) => one.partition - other.partition).map(({ offset }) => offset)
  }

  return {
    /** One member joins, reads, commits and leaves. The next one goes on from what was committed. */
    async group_classic() {
      const topic = `${prefix}-group`
      await client.create(topic, 2)
      const wanted = range(2, 0, COUNT, epochMs)
      const half = COUNT / 2
      for (const first of [0, half]) {
        const records = wanted.slice(first, first + half)
        await client.send(topic, records)
        const group = new Group()
        const member = await Member.join(kafka, group, topic, 'member')
        try {
          await waitUntil('all is read', () => member.messages.length >= half)
          assert.deepEqual(group.owned('member'), [`${topic}-0`, `${topic}-1`])
        } finally {
          await member.leave()
        }
        group.check()
        for (const partition of [0, 1]) {
          const got = member.messages.filter(message => message.partition === partition)
          assert.deepEqual(
            got.map(({ key, value, headers, timestamp }) => ({ partition, key, value, headers, timestamp })),
            records.filter(record => record.partition === partition),
          )
          assert.equal(got[0].offset, String(first / 2))
        }
        assert.deepEqual(await offsets(topic, topic), Array(2).fill(String((first + half) / 2)))
      }
    },

    /** Members come and go while records are written. */
    async group_rebalance_classic() {
      const topic = `${prefix}-rebalance`
      await client.create(topic, PARTITIONS)
      const group = new Group()
      const traffic = startTraffic(client, topic, epochMs)
      const first = await Member.join(kafka, group, topic, 'first')
      let second
      try {
        await group.waitForShares({ first: PARTITIONS })
        let began = Date.now()
        second = await Member.join(kafka, group, topic, 'second')
        await group.waitForShares({ first: 3, second: 3 })
        const joined = Date.now() - began
        began = Date.now()
        await first.leave()
        await group.waitForShares({ second: PARTITIONS })
        const left = Date.now() - began
        const ends = await traffic.stop()
        await group.waitUntilRead(topic, ends)
        assert.deepEqual(group.again(topic, [], ends), [], 'read more than once')
        return `second member's share after ${joined / 1000} s, all of it after the first one's leave ${left / 1000} s`
      } finally {
        await traffic.stop()
        await first.leave()
        await second?.leave()
      }
    },

    /** A member that commits by itself, with metadata, and one that goes back by itself. */
    async group_manual_commit() {
      const topic = `${prefix}-manual`
      await client.create(topic, 1)
      await client.send(topic, range(1, 0, 10, epochMs))
      const read = async (count, act) => {
        const consumer = kafka.consumer({ groupId: topic, maxWaitTimeInMs: 100, heartbeatInterval: 300 })
        const seen = []
        await consumer.connect()
        try {
          await consumer.subscribe({ topic, fromBeginning: true })
          const eachMessage = async ({ message }) => seen.push(Number(message.offset))
          await consumer.run({ autoCommit: false, eachMessage })
          await waitUntil(`${count} records are read`, () => seen.length >= count)
          await act(consumer, seen)
        } finally {
          await consumer.disconnect()
        }
        return seen
      }
      await read(10, consumer => consumer.commitOffsets([{ topic, partition: 0, offset: '6', metadata: 'six' }]))
      const [found] = await admin.fetchOffsets({ groupId: topic, topics: [topic] })
      assert.deepEqual(found.partitions, [{ partition: 0, offset: '6', metadata: 'six' }])
      const seen = await read(4, async (consumer, seen) => {
        consumer.seek({ topic, partition: 0, offset: '2' })
        await waitUntil('all is read again', () => seen.length >= 12)
      })
      assert.deepEqual(seen, [6, 7, 8, 9, 2, 3, 4, 5, 6, 7, 8, 9])
      assert.deepEqual(await offsets(topic, topic), ['6'])
    },

    async group_admin_classic() {
      const topic = `${prefix}-admin`
      await client.create(topic, 2)
      await client.send(topic, range(2, 0, 20, epochMs))
      const group = new Group()
      const member = await Member.join(kafka, group, topic, 'one')
      try {
        await group.waitUntilRead(topic, [10, 10])
        await describeAlive(admin, topic)
        const alive = failure => failure.groups[0].error.type === 'NON_EMPTY_GROUP'
        await assert.rejects(admin.deleteGroups([topic]), alive)
        await assert.rejects(admin.resetOffsets({ groupId: topic, topic, earliest: true }), /no running instances/)
      } finally {
        await member.leave()
      }
      const { groups } = await admin.describeGroups([topic, `${topic}-unknown`])
      const states = Object.fromEntries(groups.map(({ groupId, state }) => [groupId, state]))
      assert.deepEqual(states, { [topic]: 'Empty', [`${topic}-unknown`]: 'Dead' })
      assert.deepEqual(await offsets(topic, topic), ['10', '10'])
      assert.deepEqual(await offsets(`${topic}-unknown`, topic), ['-1', '-1'])
      await admin.setOffsets({ groupId: topic, topic, partitions: [{ partition: 0, offset: '4' }] })
      assert.deepEqual(await offsets(topic, topic), ['4', '10'])
      // kafkajs commits the names of the two ends, -2 and -1, as if they were offsets, and can be asked to resolve them.
      await admin.resetOffsets({ groupId: topic, topic, earliest: true })
      assert.deepEqual(await offsets(topic, topic), ['-2', '-2'])
      const [all] = await admin.fetchOffsets({ groupId: topic, resolveOffsets: true })
      assert.deepEqual([all.topic, all.partitions.map(({ offset }) => offset)], [topic, ['0', '0']])
      assert.deepEqual(await offsets(topic, topic), ['0', '0'])
      await admin.resetOffsets({ groupId: topic, topic, earliest: false })
      assert.deepEqual(await offsets(topic, topic), ['-1', '-1'])
      assert.equal((await admin.deleteGroups([topic]))[0].errorCode, 0)
      assert.ok(!(await admin.listGroups()).groups.some(({ groupId }) => groupId === topic), 'still listed')
      assert.deepEqual(await offsets(topic, topic), ['-1', '-1'])
      const unknown = failure => failure.groups[0].error.type === 'GROUP_ID_NOT_FOUND'
      await assert.rejects(admin.deleteGroups([topic]), unknown)
    },

    /** The only broker is killed and started again: members go on, and a later one resumes. */
    async group_restart_classic() {
      const brokers = await Brokers.start(1)
      const own = new Client(brokers.bootstrap[0])
      try {
        await own.admin.connect()
        return await survive(own, `${prefix}-restart`, epochMs, async () => {
          await brokers.kill(0)
          await brokers.again(0)
        })
      } finally {
        await own.admin.disconnect()
        await brokers.close()
      }
    },
  }
}

const describeAlive = async (admin, topic) => {
  const listed = (await admin.listGroups()).groups.find(({ groupId }) => groupId === topic)
  assert.deepEqual(listed, { groupId: topic, protocolType: 'consumer' })
  const { groups } = await admin.describeGroups([topic])
  const [{ state, protocolType, protocol, members }] = groups
  assert.deepEqual([state, protocolType, protocol, members.length], ['Stable', 'consumer', 'RoundRobinAssigner', 1])
  const { assignment } = AssignerProtocol.MemberAssignment.decode(members[0].memberAssignment)
  assert.deepEqual(assignment[topic].sort(), [0, 1])
  assert.deepEqual([members[0].clientId, members[0].clientHost.replace('/', '')], ['compat-kafkajs', '127.0.0.1'])
}

/** Two members read and commit before and after `hurt`, and a third one later. */
const survive = async (client, topic, epochMs, hurt) => {
  await client.create(topic, PARTITIONS)
  const group = new Group()
  const members = []
  const sendAndSee = async () => {
    await client.send(topic, range(PARTITIONS, 0, EACH * PARTITIONS, epochMs))
    // The ends are asked for: a plain producer of kafkajs that has to send again writes some records twice.
    const ends = Array(PARTITIONS)
    for (const { partition, high } of await client.admin.fetchTopicOffsets(topic)) ends[partition] = Number(high)
    await group.waitUntilRead(topic, ends)
    await waitUntil('all is committed', async () => {
      const [found] = await client.admin.fetchOffsets({ groupId: topic, topics: [topic] })
      return found.partitions.every(({ partition, offset }) => offset === String(ends[partition]))
    })
    return ends
  }
  try {
    for (const name of ['first', 'second']) members.push(await Member.join(client.kafka, group, topic, name))
    await group.waitForShares({ first: 3, second: 3 })
    const hurtAt = await sendAndSee()
    const [before, began] = [members[0].generations, Date.now()]
    await hurt()
    const healedAt = await sendAndSee()
    const anew = members[0].generations - before
    const note = `records come again after ${(Date.now() - began) / 1000} s, a member has joined anew ${anew} times`
    // What is read while there is no coordinator cannot be committed, and is read again by whoever has it next.
    const twice = `${group.again(topic, hurtAt, healedAt).length} records were read twice`
    for (const member of members) await member.leave()
    members.push(await Member.join(client.kafka, group, topic, 'third'))
    const ends = await sendAndSee()
    group.check()
    assert.deepEqual(group.again(topic, [], hurtAt), [], 'committed, and read again')
    assert.deepEqual(group.again(topic, healedAt, ends), [], 'later, and read again')
    return `${note}, ${twice}`
  } finally {
    for (const member of members) await member.leave()
  }
}

/** Write to all partitions of a topic until told to stop; the answer is how many records each has then. */
const startTraffic = (client, topic, epochMs) => {
  let running = true
  const run = async () => {
    const producer = client.producer()
    await producer.connect()
    let rounds = 0
    try {
      for (; running; rounds++) {
        await producer.send({ topic, messages: range(PARTITIONS, 0, PARTITIONS, epochMs) })
        await new Promise(resolve => setTimeout(resolve, 30))
      }
    } finally {
      await producer.disconnect()
    }
    return Array(PARTITIONS).fill(rounds)
  }
  const done = run()
  done.catch(() => {})
  return {
    stop() {
      running = false
      return done
    },
  }
}

module.exports = { groupCases }
