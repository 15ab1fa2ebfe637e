'use strict'
// Drive a broker with kafkajs: one JSON line per case, as compat/README.md says.

const assert = require('node:assert/strict')
const { ConfigResourceTypes } = require('kafkajs')
const { Client, CompressionTypes, WAIT_LIMIT_MS, waitUntil } = require('./client')
const { groupCases } = require('./group_cases')
const { COUNT, large, noise, range } = require('./records')

const prefix = process.env.COMPAT_PREFIX
const epochMs = Number(process.env.COMPAT_EPOCH_MS)
const client = new Client(process.env.COMPAT_BOOTSTRAP)
const { admin, kafka } = client

const CODECS = {
  none: CompressionTypes.None,
  gzip: CompressionTypes.GZIP,
  snappy: CompressionTypes.Snappy,
  lz4: CompressionTypes.LZ4,
  zstd: CompressionTypes.ZSTD,
}

const produce = codec => async () => {
  for (const idempotent of [false, true]) {
    const topic = `${prefix}-produce-${codec}-${idempotent}`
    await client.create(topic, 3)
    const wanted = range(3, 0, COUNT, epochMs)
    const producer = { idempotent, maxInFlightRequests: 1 }
    await client.send(topic, wanted, { producer, compression: CODECS[codec] })
    await client.compare(topic, 3, wanted)
  }
}

const cases = {
  ...Object.fromEntries(Object.keys(CODECS).map(codec => [`produce_${codec}`, produce(codec)])),
  ...groupCases(client, prefix, epochMs),

  async api_versions() {
    const cluster = client.cluster()
    await cluster.connect()
    try {
      await cluster.refreshMetadata()
      const broker = await cluster.findControllerBroker()
      const versions = await broker.apiVersions()
      assert.ok(versions[0] && versions[1] && versions[3], 'Produce, Fetch or Metadata is missing')
      return `${Object.keys(versions).length} APIs`
    } finally {
      await cluster.disconnect()
    }
  },

  async describe_cluster() {
    const { brokers, controller, clusterId } = await admin.describeCluster()
    assert.ok(clusterId, 'no cluster id')
    assert.ok(brokers.some(({ nodeId }) => nodeId === controller), 'the controller is none of the brokers')
  },

  async create_topics() {
    const [one, several] = [`${prefix}-create-1`, `${prefix}-create-12`]
    await client.create(one, 1)
    await client.create(several, 12)
    const { topics } = await admin.fetchTopicMetadata({ topics: [one, several] })
    assert.deepEqual(Object.fromEntries(topics.map(({ name, partitions }) => [name, partitions.length])), {
      [one]: 1,
      [several]: 12,
    })
    assert.ok((await admin.listTopics()).includes(one), 'not listed')
    // kafkajs answers false for a topic that exists, and throws for any other refusal.
    assert.equal(await admin.createTopics({ topics: [{ topic: one, numPartitions: 1, replicationFactor: 1 }] }), false)
    await assert.rejects(client.create('bad name!', 1))
    await assert.rejects(client.create(`${prefix}-create-0`, 0))
  },

  async acks() {
    for (const acks of [0, 1, -1]) {
      const topic = `${prefix}-acks-${acks}`
      await client.create(topic, 1)
      const wanted = range(1, 0, COUNT, epochMs)
      await client.send(topic, wanted, { acks })
      await client.compare(topic, 1, wanted)
    }
  },

  async large_records() {
    const topic = `${prefix}-large`
    await client.create(topic, 1)
    const wanted = large(epochMs)
    // kafkajs makes one batch of all that is sent at once, however large.
    for (const record of wanted) await client.send(topic, [record])
    await client.compare(topic, 1, wanted)
  },

  async oversized_record() {
    const topic = `${prefix}-oversized`
    await client.create(topic, 1, { 'max.message.bytes': '10000' })
    const oversized = { partition: 0, value: noise(1, 20_000) }
    await assert.rejects(client.send(topic, [oversized]), { type: 'MESSAGE_TOO_LARGE' })
    const small = range(1, 4, 5, epochMs)
    await client.send(topic, small)
    await client.compare(topic, 1, small)
  },

  async list_offsets() {
    const topic = `${prefix}-offsets`
    await client.create(topic, 1)
    await client.send(topic, range(1, 0, 10, epochMs))
    const [found] = await admin.fetchTopicOffsets(topic)
    assert.deepEqual([found.low, found.high], ['0', '10'])
    // Where nothing is so late kafkajs answers with the end of the partition.
    for (const [after, wanted] of [[3_500, '4'], [4_000, '4'], [60_000, '10']]) {
      const [at] = await admin.fetchTopicOffsetsByTimestamp(topic, epochMs + after)
      assert.equal(at.offset, wanted)
    }
  },

  async topic_configs() {
    const topic = `${prefix}-configs`
    await client.create(topic, 1, { 'retention.ms': '3600000' })
    const resource = { type: ConfigResourceTypes.TOPIC, name: topic }
    const config = async name => {
      const { resources } = await admin.describeConfigs({ includeSynonyms: false, resources: [resource] })
      return resources[0].configEntries.find(entry => entry.configName === name)
    }
    assert.equal((await config('retention.ms')).configValue, '3600000')
    assert.equal((await config('retention.ms')).isDefault, false)
    assert.equal((await config('max.message.bytes')).isDefault, true)
    // kafkajs has only the old AlterConfigs, which resets what it does not name.
    const alter = (name, value) =>
      admin.alterConfigs({ validateOnly: false, resources: [{ ...resource, configEntries: [{ name, value }] }] })
    await alter('max.message.bytes', '2000000')
    assert.equal((await config('max.message.bytes')).configValue, '2000000')
    assert.equal((await config('retention.ms')).isDefault, true)
    await assert.rejects(alter('no.such.config', '1'))
  },

  async delete_records() {
    const topic = `${prefix}-delete-records`
    await client.create(topic, 1)
    const wanted = range(1, 0, 10, epochMs)
    await client.send(topic, wanted)
    // kafkajs looks for the leader in what it knows already: without this it finds none.
    await admin.fetchTopicOffsets(topic)
    await admin.deleteTopicRecords({ topic, partitions: [{ partition: 0, offset: '4' }] })
    const [found] = await admin.fetchTopicOffsets(topic)
    assert.equal(found.low, '4')
    await client.compare(topic, 1, wanted.slice(4), 4)
  },

  async create_partitions() {
    const topic = `${prefix}-partitions`
    await client.create(topic, 1)
    const before = range(1, 0, 5, epochMs)
    await client.send(topic, before)
    await admin.createPartitions({ topicPartitions: [{ topic, count: 3 }] })
    await waitUntil('the topic has 3 partitions', async () => {
      const { topics } = await admin.fetchTopicMetadata({ topics: [topic] })
      return topics[0].partitions.length === 3
    })
    const after = range(3, 20, 29, epochMs)
    await client.send(topic, after)
    await client.compare(topic, 3, [...before, ...after])
  },

  async delete_topics() {
    const topic = `${prefix}-delete`
    await client.create(topic, 2)
    await client.send(topic, range(2, 0, 4, epochMs))
    await admin.deleteTopics({ topics: [topic], timeout: WAIT_LIMIT_MS })
    await waitUntil('the topic is gone', async () => !(await admin.listTopics()).includes(topic))
    await client.create(topic, 1)
    const wanted = range(1, 7, 9, epochMs)
    await client.send(topic, wanted)
    await client.compare(topic, 1, wanted)
  },

  async auto_creation() {
    const topic = `${prefix}-auto`
    const wanted = range(1, 0, 10, epochMs)
    await client.send(topic, wanted)
    await client.compare(topic, 1, wanted)
  },

  async transactions() {
    const topic = `${prefix}-transactions`
    await client.create(topic, 1)
    const producer = kafka.producer({ transactionalId: topic, idempotent: true, maxInFlightRequests: 1 })
    await producer.connect()
    const records = range(1, 0, 6, epochMs)
    try {
      const first = await producer.transaction()
      await first.send({ topic, messages: records.slice(0, 3) })
      await first.abort()
      const second = await producer.transaction()
      await second.send({ topic, messages: records.slice(3) })
      await second.commit()
    } finally {
      await producer.disconnect()
    }
    const got = await client.read(topic, 0, 3)
    assert.deepEqual(got.map(({ timestamp }) => timestamp), records.slice(3).map(({ timestamp }) => timestamp))
  },
}

const main = async () => {
  await admin.connect()
  for (const name of process.env.COMPAT_CASES.split(',')) {
    const started = Date.now()
    let [passed, note] = [true, '']
    try {
      assert.ok(cases[name], `this driver has no case ${name}`)
      note = (await cases[name]()) ?? ''
    } catch (error) {
      console.error(error)
      ;[passed, note] = [false, `${error.name}: ${error.message}`]
    }
    console.log(JSON.stringify({ case: name, passed, seconds: (Date.now() - started) / 1000, note }))
  }
  await admin.disconnect()
}

main().catch(error => {
  console.error(error)
  process.exitCode = 1
})
