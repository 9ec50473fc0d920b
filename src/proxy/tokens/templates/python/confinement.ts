/**
 * Runs inside a {@link startConfinedProcess confined process}: removes access to the network and to Node's modules
 * before third-party code runs.
 */
import dgram from 'node:dgram'
import dns from 'node:dns'
import { constants } from 'node:fs'
import { syncBuiltinESMExports } from 'node:module'
import net from 'node:net'
import { Script } from 'node:vm'
import type { JobPort } from './thread-jobs.ts'

/** Globals that can open connections or exchange messages with other threads. */
const GLOBALS = ['fetch', 'WebSocket', 'EventSource', 'XMLHttpRequest', 'Worker', 'BroadcastChannel']
/** Functions of `process` that load code, signal processes or change the state of this one. */
const PROCESS_FUNCTIONS = [
  'getBuiltinModule',
  'dlopen',
  'kill',
  'abort',
  'chdir',
  'umask',
  'setuid',
  'setgid',
]

/** Removes access to the network, which Node's permissions do not cover, and to Node's modules. */
export function confine(): void {
  const deny = (): never => {
    throw new Error('the process is confined')
  }
  Object.assign(net.Socket.prototype, { connect: deny })
  Object.assign(net.Server.prototype, { listen: deny })
  Object.assign(dgram.Socket.prototype, { bind: deny, connect: deny, send: deny })
  for (const object of [dns, dns.promises, dns.Resolver.prototype]) denyFunctions(object, deny)
  syncBuiltinESMExports()
  for (const name of GLOBALS) Reflect.deleteProperty(globalThis, name)
  for (const name of PROCESS_FUNCTIONS) Reflect.set(process, name, deny)
  // Pyodide calls `process.binding('constants')`, which Node's permissions disable.
  Reflect.set(process, 'binding', () => ({ fs: constants }))
}

function denyFunctions(object: object, deny: () => never): void {
  for (const name of Object.getOwnPropertyNames(object)) {
    if (typeof Reflect.get(object, name) === 'function') Reflect.set(object, name, deny)
  }
}

/** The fields that the parent's first message contains besides the data of the module. */
interface FirstMessage {
  maxMemoryBytes: number
  pyodideFolder: string
}

/**
 * The time limit of a job. It is longer than the parent's limit, which ends the process, and takes effect only if the
 * parent was killed.
 */
const JOB_LIMIT_MS = 30_000

/** Calls `open` with the data of the parent's first message, and with a port that receives the jobs that follow it. */
export function openConfinedPort<Data extends object>(
  open: (data: Data & FirstMessage, port: JobPort) => void,
): void {
  process.once('message', (data) => {
    const first = data as Data & FirstMessage
    open(first, {
      maxMemoryBytes: first.maxMemoryBytes,
      postMessage: (reply) => process.send!(reply),
      on: (event, listener) => process.on(event, (job) => runWithTimeLimit(() => listener(job))),
    })
  })
}

const script = new Script('runConfinedJob()')

/** Runs a function. V8 terminates it at the time limit, even in WebAssembly. @throws Error at the limit */
function runWithTimeLimit(run: () => void): void {
  Reflect.set(globalThis, 'runConfinedJob', run)
  script.runInThisContext({ timeout: JOB_LIMIT_MS })
}
