/**
 * A ledger on disk of AgentCore sessions that may be running: a session costs money until it is stopped, even after the
 * process that started it has ended. Each runner writes its own file in a shared folder, `{"opened": id}` before a
 * session is started and `{"closed": id}` when it is stopped; another runner takes over the open sessions of a dead
 * one.
 */
import { randomUUID } from 'node:crypto'
import { type FileHandle, mkdir, open, readdir, readFile, stat, unlink, utimes } from 'node:fs/promises'
import { hostname } from 'node:os'
import { join } from 'node:path'
import Type, { type Static } from 'typebox'
import { Value } from 'typebox/value'
import { parseJson } from '../../../base/json.ts'
import { getProcessStart, isAlive } from '../../../base/process-start.ts'

const Head = Type.Object({
  version: Type.Literal(1),
  arn: Type.String(),
  qualifier: Type.String(),
  host: Type.String(),
  pid: Type.Integer(),
  /** The start of the process, from `getProcessStart`; absent if the platform does not report it. */
  started: Type.Optional(Type.String()),
})
const Entry = Type.Object({ opened: Type.Optional(Type.String()), closed: Type.Optional(Type.String()) })

/** The AgentCore endpoint of a ledger's sessions. */
export interface LedgerEndpoint {
  arn: string
  /** `DEFAULT` if none was configured. */
  qualifier: string
}

/** The interval at which a live process touches its file. */
const TOUCH_MS = 60_000
/**
 * A file that was not touched for this long belongs to a dead process, even if another process has its pid or it ran on
 * another machine.
 */
const DEAD_AFTER_MS = 5 * TOUCH_MS
const SUFFIX = '.sessions.jsonl'

export class Ledger {
  readonly #folder: string
  readonly #endpoint: LedgerEndpoint
  readonly #path: string
  readonly #file: FileHandle
  readonly #open = new Set<string>()
  readonly #touch: NodeJS.Timeout
  #lastWrite: Promise<void> = Promise.resolve()

  private constructor(folder: string, endpoint: LedgerEndpoint, path: string, file: FileHandle) {
    this.#folder = folder
    this.#endpoint = endpoint
    this.#path = path
    this.#file = file
    this.#touch = setInterval(() => utimes(path, new Date(), new Date()).catch(() => {}), TOUCH_MS).unref()
  }

  /**
   * Creates a ledger file, and takes over the open sessions of dead processes.
   * @param folder created if it does not exist
   * @throws Error of the file system
   */
  static async open(folder: string, endpoint: LedgerEndpoint): Promise<Ledger> {
    await mkdir(folder, { recursive: true })
    const path = join(folder, `${randomUUID()}${SUFFIX}`)
    const file = await open(path, 'ax', 0o600)
    const started = getProcessStart(process.pid)
    const head: Static<typeof Head> = { version: 1, ...endpoint, host: hostname(), pid: process.pid }
    await file.appendFile(toLine({ ...head, ...(started !== undefined && { started }) }))
    const ledger = new Ledger(folder, endpoint, path, file)
    try {
      await ledger.takeOver()
      return ledger
    } catch (error) {
      await ledger.close()
      throw error
    }
  }

  /**
   * Takes over the sessions that dead processes have left open.
   * @returns their ids
   * @throws Error of the file system
   */
  async takeOver(): Promise<string[]> {
    const left = await readLeftOpen(this.#folder, this.#endpoint, this.#path)
    if (left.size === 0) return []
    const sessions = [...new Set([...left.values()].flat())]
    for (const opened of sessions) this.#open.add(opened)
    // This process's file is written before the old ones are removed, so that each open session is in a file at any
    // time.
    await this.#append(...sessions.map((opened) => ({ opened })))
    await Promise.all([...left.keys()].map((old) => unlink(old).catch(() => {})))
    return sessions
  }

  /** The sessions not known to be stopped; right after `open`, these are the sessions of dead processes. */
  get openSessions(): string[] {
    return [...this.#open]
  }

  /** Records a session durably. It may be started only after this has resolved. */
  async recordOpened(sessionId: string): Promise<void> {
    this.#open.add(sessionId)
    await this.#append({ opened: sessionId })
  }

  async recordClosed(sessionId: string): Promise<void> {
    this.#open.delete(sessionId)
    await this.#append({ closed: sessionId })
  }

  /** Closes the file, and removes it unless a session is open. */
  async close(): Promise<void> {
    clearInterval(this.#touch)
    await this.#lastWrite.catch(() => {})
    await this.#file.close()
    if (this.#open.size === 0) await unlink(this.#path).catch(() => {})
  }

  #append(...entries: Static<typeof Entry>[]): Promise<void> {
    const written = this.#lastWrite.then(async () => {
      await this.#file.appendFile(entries.map(toLine).join(''))
      await this.#file.datasync()
    })
    // A failure is reported to its caller only; later entries are written nevertheless.
    this.#lastWrite = written.catch(() => {})
    return written
  }
}

function toLine(value: object): string {
  return `${JSON.stringify(value)}\n`
}

/**
 * Returns the files of dead processes with this endpoint, and the open sessions of each.
 * @param own the file to skip
 */
async function readLeftOpen(
  folder: string,
  endpoint: LedgerEndpoint,
  own: string,
): Promise<Map<string, string[]>> {
  const left = new Map<string, string[]>()
  for (const name of await readdir(folder)) {
    const path = join(folder, name)
    if (!name.endsWith(SUFFIX) || path === own) continue
    const [first, ...lines] = (await readFile(path, 'utf8').catch(() => '')).split('\n')
    const head = parseJson(first!)
    if (!Value.Check(Head, head)) continue
    if (head.arn !== endpoint.arn || head.qualifier !== endpoint.qualifier) continue
    if (await isDead(path, head)) left.set(path, findOpenSessions(lines))
  }
  return left
}

/**
 * Returns the sessions that are open after these entries. A line truncated by a crash is ignored: its session was not
 * started yet, or is stopped a second time.
 */
function findOpenSessions(lines: readonly string[]): string[] {
  const open = new Set<string>()
  for (const line of lines) {
    const entry = parseJson(line)
    if (!Value.Check(Entry, entry)) continue
    if (entry.opened !== undefined) open.add(entry.opened)
    if (entry.closed !== undefined) open.delete(entry.closed)
  }
  return [...open]
}

async function isDead(path: string, head: Static<typeof Head>): Promise<boolean> {
  const about = await stat(path).catch(() => undefined)
  if (about === undefined) return false
  return (
    Date.now() - about.mtimeMs > DEAD_AFTER_MS ||
    (head.host === hostname() && !isAlive(head.pid, head.started))
  )
}
