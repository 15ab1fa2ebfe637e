'use strict'
// One case's own brokers, which it may kill and start again: compat/broker_pair.py runs them.

const { spawn } = require('node:child_process')
const { once } = require('node:events')
const { createInterface } = require('node:readline')

class Brokers {
  /** Return when all of them serve. */
  static async start(count) {
    const brokers = new Brokers()
    brokers.process = spawn(process.env.COMPAT_PAIR_PYTHON, ['-m', 'compat.broker_pair', String(count)], {
      stdio: ['pipe', 'pipe', 'inherit'],
    })
    brokers.answers = createInterface({ input: brokers.process.stdout })[Symbol.asyncIterator]()
    brokers.bootstrap = (await brokers.hear()).bootstrap
    return brokers
  }

  kill(number) {
    return this.order(`kill ${number}`)
  }

  again(number) {
    return this.order(`start ${number}`)
  }

  async order(line) {
    this.process.stdin.write(`${line}\n`)
    return this.hear()
  }

  async hear() {
    const { value, done } = await this.answers.next()
    if (done) throw new Error('the brokers of this case have ended')
    return JSON.parse(value)
  }

  async close() {
    const ended = once(this.process, 'exit')
    this.process.stdin.end()
    await ended
  }
}

module.exports = { Brokers }
