/** A module for a confined process: makes each attempt to leave it that a message names, and replies with the result. */
import { execSync, fork } from 'node:child_process'
import { createSocket } from 'node:dgram'
import { lookup } from 'node:dns'
import { readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { get } from 'node:http'
import { connect, createServer } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { Worker } from 'node:worker_threads'
import { confine, openConfinedPort } from '../../src/proxy/tokens/templates/python/confinement.ts'

const PORT = 9

const ATTEMPTS: Readonly<Record<string, () => unknown>> = {
  'read a file': () => readFileSync('/etc/hostname', 'utf8'),
  'list a folder': () => readdirSync('/'),
  'read the tests': () => readFileSync(join(import.meta.dirname, 'messages.ts')),
  'read its initial environment': () => readFileSync('/proc/self/environ'),
  'write a file': () => writeFileSync(join(tmpdir(), 'llm-proxy-confined'), ''),
  'start a program': () => execSync('true'),
  'start Node': () => fork(import.meta.filename),
  'start a thread': () => new Worker('0', { eval: true }),
  'connect by TCP': () => connect(PORT, '127.0.0.1'),
  'connect by HTTP': () => get(`http://127.0.0.1:${PORT}`),
  'listen on a port': () => createServer().listen(0),
  'send by UDP': () => createSocket('udp4').send('', PORT, '127.0.0.1'),
  'look up a name': () => lookup('localhost', () => {}),
  'compile a text': () => new Function('return 1')(),
  'load native code': () => process.dlopen({ exports: {} }, 'addon.node'),
  'load a module': () => process.getBuiltinModule('node:fs'),
  'signal a process': () => process.kill(process.ppid, 0),
  'fetch a page': () => (globalThis as { fetch?: unknown }).fetch!.toString(),
  'list its environment': () => JSON.stringify(process.env),
}

confine()
openConfinedPort((_, port) => {
  port.on('message', (name) => {
    try {
      const result = ATTEMPTS[name as string]!()
      port.postMessage({ name, result: String(result) })
    } catch (error) {
      port.postMessage({ name, error: String(error) })
    }
  })
  port.postMessage({ attempts: Object.keys(ATTEMPTS) })
})
