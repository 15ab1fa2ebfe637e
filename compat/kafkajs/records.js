'use strict'
// The records that all drivers write: driver_kit.py says what they are.

const COUNT = 60
const LARGE_BYTES = 1_000_000

const pattern = (seed, sizeBytes) => Buffer.from(Array.from({ length: sizeBytes }, (_, at) => (seed * 31 + at * 7) & 0xff))

const noise = (seed, sizeBytes) => {
  const out = Buffer.alloc(sizeBytes)
  let state = seed
  for (let at = 0; at < sizeBytes; at++) {
    state = (Math.imul(state, 1103515245) + 12345) & 0x7fffffff
    out[at] = (state >> 16) & 0xff
  }
  return out
}

// The null among the headers is left out: kafkajs cannot write a header whose value is null.
const HEADERS = [
  () => ({}),
  () => ({ trace: [Buffer.from('a'), Buffer.from('b')] }),
  () => ({ empty: Buffer.alloc(0), bytes: Buffer.from([0, 0xff, 0x80]) }),
]

const record = (number, partition, epochMs) => ({
  partition,
  key: number % 5 === 0 ? null : number % 5 === 1 ? Buffer.alloc(0) : Buffer.from(`key-${number}`),
  value: number % 7 === 0 ? null : number % 7 === 1 ? Buffer.alloc(0) : pattern(number, number * 37),
  headers: HEADERS[number % 3](),
  timestamp: String(epochMs + number * 1000),
})

/** Records start to end (exclusive) of the common set, dealt out to the partitions in turn. */
const range = (partitions, start, end, epochMs) =>
  Array.from({ length: end - start }, (_, at) => record(start + at, at % partitions, epochMs))

const large = epochMs =>
  [0, 1, 2, 3].map(seed => ({
    partition: 0,
    key: null,
    value: noise(seed, LARGE_BYTES),
    headers: {},
    timestamp: String(epochMs),
  }))

module.exports = { COUNT, large, noise, range }
