'use strict'
// What the cases do again and again: create, send, read, compare.

const assert = require('node:assert/strict')
const { Kafka, CompressionCodecs, CompressionTypes, logLevel } = require('kafkajs')
const Cluster = require('kafkajs/src/cluster')
const Batch = require('kafkajs/src/consumer/batch')
const InstrumentationEventEmitter = require('kafkajs/src/instrumentation/emitter')
const { createLogger } = require('kafkajs/src/loggers')
const socketFactory = require('kafkajs/src/network/socketFactory')
const snappy = require('kafkajs-snappy')
const lz4 = require('lz4-napi')
const { ZstdCodec } = require('zstd-codec')

const WAIT_LIMIT_MS = 30_000
const CLIENT_ID = 'compat-kafkajs'

// kafkajs brings gzip only: its users plug in the rest like this.
const zstd = new Promise(resolve => ZstdCodec.run(library => resolve(new library.Simple())))
CompressionCodecs[CompressionTypes.Snappy] = snappy
CompressionCodecs[CompressionTypes.LZ4] = () => ({
  compress: async encoder => lz4.compressFrame(encoder.buffer),
  decompress: async buffer => lz4.decompressFrame(buffer),
})
CompressionCodecs[CompressionTypes.ZSTD] = () => ({
  compress: async encoder => Buffer.from((await zstd).compress(encoder.buffer)),
  decompress: async buffer => Buffer.from((await zstd).decompress(buffer)),
})

class Client {
  constructor(bootstrap) {
    this.bootstrap = bootstrap
    this.kafka = new Kafka({
      brokers: [bootstrap],
      clientId: CLIENT_ID,
      connectionTimeout: WAIT_LIMIT_MS,
      logLevel: logLevel.WARN,
      logCreator: stderrLogger,
    })
    this.admin = this.kafka.admin()
  }

  async create(topic, partitions, configs = {}) {
    const configEntries = Object.entries(configs).map(([name, value]) => ({ name, value }))
    const wanted = { topic, numPartitions: partitions, replicationFactor: 1, configEntries }
    assert.equal(await this.admin.createTopics({ topics: [wanted], timeout: WAIT_LIMIT_MS }), true)
  }

  producer(settings = {}) {
    return this.kafka.producer({ createPartitioner: byPartition, ...settings })
  }

  async send(topic, messages, { producer: settings = {}, ...sending } = {}) {
    const producer = this.producer(settings)
    await producer.connect()
    try {
      return await producer.send({ topic, messages, ...sending })
    } finally {
      await producer.disconnect()
    }
  }

  /**
   * Read without a group. kafkajs has no call for that: its consumers always join one, so this uses the parts that its
   * consumer is made of.
   */
  async read(topic, partition, count, startOffset = 0) {
    const cluster = this.cluster()
    const found = []
    await cluster.connect()
    try {
      await cluster.addTargetTopic(topic)
      const deadline = Date.now() + WAIT_LIMIT_MS
      for (let offset = startOffset; found.length < count; ) {
        assert.ok(Date.now() < deadline, `${found.length} of ${count} records of ${topic}-${partition} in time`)
        const batch = await fetchOnce(cluster, topic, partition, offset)
        found.push(...batch.messages)
        offset = batch.isEmptyIncludingFiltered() ? offset : Number(batch.lastOffset()) + 1
      }
    } finally {
      await cluster.disconnect()
    }
    return found
  }

  cluster() {
    return new Cluster({
      brokers: [this.bootstrap],
      clientId: CLIENT_ID,
      connectionTimeout: WAIT_LIMIT_MS,
      socketFactory: socketFactory(),
      logger: createLogger({ level: logLevel.WARN, logCreator: stderrLogger }),
      instrumentationEmitter: new InstrumentationEventEmitter(),
      metadataMaxAge: 300_000,
      allowAutoTopicCreation: false,
      offsets: new Map(),
      retry: {},
    })
  }

  /** Read the topic from `startOffset` and compare every byte. */
  async compare(topic, partitions, wanted, startOffset = 0) {
    for (let partition = 0; partition < partitions; partition++) {
      const part = wanted.filter(record => record.partition === partition)
      const got = await this.read(topic, partition, part.length, startOffset)
      assert.equal(got.length, part.length)
      got.forEach((message, at) => {
        const { key, value, headers, timestamp } = part[at]
        assert.equal(message.offset, String(startOffset + at))
        assert.deepEqual(
          { key: message.key, value: message.value, headers: message.headers, timestamp: message.timestamp },
          { key, value, headers, timestamp },
          `${topic}-${partition}@${message.offset} differs`,
        )
      })
    }
  }
}

const fetchOnce = async (cluster, topic, partition, offset) => {
  const [leader] = Object.keys(cluster.findLeaderForPartitions(topic, [partition]))
  const broker = await cluster.findBroker({ nodeId: leader })
  const partitions = [{ partition, fetchOffset: String(offset), maxBytes: 1_048_576 }]
  const { responses } = await broker.fetch({ maxWaitTime: 100, topics: [{ topic, partitions }] })
  return new Batch(topic, String(offset), responses[0].partitions[0])
}

const byPartition = () => ({ message }) => message.partition ?? 0

const stderrLogger = () => entry => console.error(`kafkajs: ${entry.namespace} ${entry.log.message} ${entry.log.error ?? ''}`)

const waitUntil = async (what, condition) => {
  for (const deadline = Date.now() + WAIT_LIMIT_MS; !(await condition()); ) {
    assert.ok(Date.now() < deadline, `still not so: ${what}`)
    await new Promise(resolve => setTimeout(resolve, 50))
  }
}

module.exports = { Client, CompressionTypes, waitUntil, WAIT_LIMIT_MS }
