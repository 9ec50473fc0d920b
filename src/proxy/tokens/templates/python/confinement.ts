/** The inside of a {@link startConfinedProcess confined process}: what is removed before foreign code runs. */
import dgram from 'node:dgram'
import dns from 'node:dns'
import { constants } from 'node:fs'
import { syncBuiltinESMExports } from 'node:module'
import net from 'node:net'
import { Script } from 'node:vm'
import type { JobPort } from './thread-jobs.ts'

/** Globals that reach other machines or other code. */
const GLOBALS = ['fetch', 'WebSocket', 'EventSource', 'XMLHttpRequest', 'Worker', 'BroadcastChannel']
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

/** Removes the network, which Node's permissions do not cover, and access to Node's modules. */
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
  // Pyodide reads these constants through a function that permissions disable.
  Reflect.set(process, 'binding', () => ({ fs: constants }))
}

function denyFunctions(object: object, deny: () => never): void {
  for (const name of Object.getOwnPropertyNames(object)) {
    if (typeof Reflect.get(object, name) === 'function') Reflect.set(object, name, deny)
  }
}

/** The data of the process's first message. */
interface FirstMessage {
  maxMemoryBytes: number
  pyodideFolder: string
}

/** The time limit of a job, longer than the parent's, for a process whose parent was killed. */
const JOB_LIMIT_MS = 30_000

/** Waits for the first message. The process ends when its parent does, or a job exceeds the time limit. */
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

/** Runs a function that V8 terminates at the time limit, also in WebAssembly. @throws Error at the limit */
function runWithTimeLimit(run: () => void): void {
  Reflect.set(globalThis, 'runConfinedJob', run)
  script.runInThisContext({ timeout: JOB_LIMIT_MS })
}
