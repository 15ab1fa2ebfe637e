'use strict'
// Members of consumer groups, and who watches them.

const assert = require('node:assert/strict')
const { waitUntil } = require('./client')

/**
 * Watches all members of one group: who owns what, and what was read how often. What must stay true of every group: no
 * partition has two owners at once, and nobody reads what it does not own.
 */
class Group {
  constructor() {
    this.owners = new Map()
    this.leaving = new Set()
    this.read = new Map()
    this.wrong = []
  }

  take(member, topic, partitions) {
    for (const partition of partitions) {
      const place = `${topic}-${partition}`
      const owner = this.owners.get(place)
      // One that was told to go has given all up before it says so to the broker; kafkajs has no event for that moment.
      if (owner !== undefined && !this.leaving.has(owner)) {
        this.wrong.push(`${place} is given to ${member}, and ${owner} has it`)
      }
      this.owners.set(place, member)
    }
  }

  giveAll(member) {
    for (const [place, owner] of this.owners) if (owner === member) this.owners.delete(place)
  }

  note(member, topic, partition, offset) {
    const owner = this.owners.get(`${topic}-${partition}`)
    if (owner !== member) this.wrong.push(`${member} reads ${topic}-${partition}@${offset}, which ${owner} has`)
    const place = `${topic}-${partition}@${offset}`
    this.read.set(place, (this.read.get(place) ?? 0) + 1)
  }

  owned(member) {
    return [...this.owners].filter(([, owner]) => owner === member).map(([place]) => place).sort()
  }

  check() {
    assert.deepEqual(this.wrong, [])
  }

  async waitForShares(shares) {
    await waitUntil(`the shares are ${JSON.stringify(shares)}`, () => {
      this.check()
      return Object.entries(shares).every(([member, share]) => this.owned(member).length === share)
    })
  }

  /** Wait until all below the ends of a topic's partitions was read. */
  async waitUntilRead(topic, ends) {
    const wanted = places(topic, [], ends)
    await waitUntil(`all is read of ${topic} up to ${ends}`, () => {
      this.check()
      return wanted.every(place => this.read.has(place))
    })
  }

  /** What was read repeatedly, from starts to ends (exclusive) of a topic's partitions. */
  again(topic, starts, ends) {
    return places(topic, starts, ends).filter(place => this.read.get(place) > 1)
  }
}

const places = (topic, starts, ends) =>
  ends.flatMap((end, partition) => {
    const start = starts[partition] ?? 0
    return Array.from({ length: end - start }, (_, at) => `${topic}-${partition}@${start + at}`)
  })

/** A consumer in a group that commits each record before it takes the next. */
class Member {
  constructor(kafka, group, topic, name, settings = {}) {
    this.group = group
    this.name = name
    this.messages = []
    this.generations = 0
    this.consumer = kafka.consumer({
      groupId: topic,
      heartbeatInterval: 300,
      sessionTimeout: 10_000,
      maxWaitTimeInMs: 100,
      retry: { initialRetryTime: 100, maxRetryTime: 500, retries: 50, restartOnFailure: async () => true },
      ...settings,
    })
    const { GROUP_JOIN, REBALANCING, CRASH } = this.consumer.events
    this.consumer.on(GROUP_JOIN, ({ payload }) => {
      // One that joins anew without an event before has lost all that it had.
      this.group.giveAll(this.name)
      this.generations++
      this.memberId = payload.memberId
      for (const [joined, partitions] of Object.entries(payload.memberAssignment)) {
        this.group.take(this.name, joined, partitions)
      }
    })
    this.consumer.on(REBALANCING, () => this.group.giveAll(this.name))
    this.consumer.on(CRASH, ({ payload }) => {
      console.error(`${this.name} crashed: ${payload.error}`)
      this.group.giveAll(this.name)
    })
  }

  static async join(kafka, group, topic, name, settings) {
    const member = new Member(kafka, group, topic, name, settings)
    await member.consumer.connect()
    await member.consumer.subscribe({ topic, fromBeginning: true })
    await member.consumer.run({ autoCommitThreshold: 1, eachMessage: async message => member.keep(message) })
    return member
  }

  keep({ topic, partition, message }) {
    this.messages.push({ ...message, partition })
    this.group.note(this.name, topic, partition, message.offset)
  }

  async leave() {
    this.group.leaving.add(this.name)
    await this.consumer.disconnect()
    this.group.giveAll(this.name)
  }
}

module.exports = { Group, Member }
