/** A PostgreSQL server for one test: a cluster in a separate folder, on a free port of 127.0.0.1. */
import { type ChildProcess, spawn, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { chownSync, existsSync, mkdtempSync, readdirSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { delimiter, join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import pg from 'pg'
import { freePort } from './free-port.ts'

const MAX_STARTS = 600

/** The folders of Debian's packages for each version, and the PATH. */
const FOLDERS = [
  ...(existsSync('/usr/lib/postgresql')
    ? readdirSync('/usr/lib/postgresql').map((version) => `/usr/lib/postgresql/${version}/bin`)
    : []),
  ...(process.env.PATH ?? '').split(delimiter),
]
const BIN = FOLDERS.find(
  (folder) => existsSync(join(folder, 'initdb')) && existsSync(join(folder, 'postgres')),
)

/** The reason to skip tests that need a server; false if one is installed. */
export const noPostgres: string | false =
  BIN === undefined && 'PostgreSQL (initdb, postgres) is not installed'

/** The user that runs the server, which must not be root. */
const SERVER_USER = process.getuid?.() === 0 ? getUserIds() : undefined

function getUserIds(): { uid: number; gid: number } {
  const id = (flag: string) => Number(spawnSync('id', [flag, 'postgres']).stdout.toString().trim())
  return { uid: id('-u'), gid: id('-g') }
}

/** The data folder that each server of this process copies, in a tenth of the CPU time of initdb. */
let emptyCluster: string | undefined

function createCluster(): string {
  const folder = createFolder()
  process.on('exit', () => rmSync(folder, { recursive: true, force: true }))
  const data = join(folder, 'data')
  const options = ['-D', data, '-U', 'proxy', '-A', 'trust', '-E', 'UTF8', '--no-sync', '--locale=C']
  const made = spawnSync(join(BIN!, 'initdb'), options, { ...SERVER_USER, cwd: folder })
  if (made.status !== 0) throw new Error(`initdb failed: ${made.stderr}`)
  return data
}

/** Creates a folder that belongs to the user of the server. */
function createFolder(): string {
  const folder = mkdtempSync(join(tmpdir(), 'llm-proxy-postgres.'))
  if (SERVER_USER !== undefined) chownSync(folder, SERVER_USER.uid, SERVER_USER.gid)
  return folder
}

/**
 * Writes the files of a folder to the disk. After a crash, a server with `fsync` does so for all files of its cluster
 * before it accepts connections. On a busy disk this may take longer than a proxy waits.
 */
function syncFiles(folder: string): void {
  const synced = spawnSync('find', [folder, '-type', 'f', '-exec', 'sync', '{}', '+'])
  if (synced.status !== 0) throw new Error(`sync failed: ${synced.stderr}`)
}

export class PostgresServer {
  readonly #folder: string
  readonly #settings: Readonly<Record<string, string>>
  readonly port: number
  #child: ChildProcess | undefined
  #databases = 0

  static async start(settings: Readonly<Record<string, string>> = {}): Promise<PostgresServer> {
    emptyCluster ??= createCluster()
    const folder = createFolder()
    const copied = spawnSync('cp', ['-a', emptyCluster, join(folder, 'data')], {
      ...SERVER_USER,
      cwd: folder,
    })
    if (copied.status !== 0) throw new Error(`cp failed: ${copied.stderr}`)
    if (settings.fsync === 'on') syncFiles(folder)
    const server = new PostgresServer(folder, await freePort(), settings)
    await server.run()
    return server
  }

  private constructor(folder: string, port: number, settings: Readonly<Record<string, string>>) {
    this.#folder = folder
    this.port = port
    this.#settings = settings
  }

  /** Starts a hot standby that streams from this server. */
  async startStandby(): Promise<PostgresServer> {
    const folder = createFolder()
    const from = ['-h', '127.0.0.1', '-p', String(this.port), '-U', 'proxy', '-D', join(folder, 'data')]
    const options = ['--write-recovery-conf', '--wal-method=stream', '--checkpoint=fast', '--no-sync']
    const made = spawnSync(join(BIN!, 'pg_basebackup'), [...from, ...options], {
      ...SERVER_USER,
      cwd: folder,
    })
    if (made.status !== 0) throw new Error(`pg_basebackup failed: ${made.stderr}`)
    const standby = new PostgresServer(folder, await freePort(), this.#settings)
    await standby.run()
    return standby
  }

  /** Starts the server, initially or again. */
  async run(): Promise<void> {
    const settings = {
      ...{ listen_addresses: '127.0.0.1', port: String(this.port), unix_socket_directories: this.#folder },
      ...{ fsync: 'off', max_connections: '60', shared_buffers: '32MB' },
      ...this.#settings,
    }
    const flags = Object.entries(settings).flatMap(([name, value]) => ['-c', `${name}=${value}`])
    const args = ['-D', join(this.#folder, 'data'), ...flags]
    const startProcess = () =>
      spawn(join(BIN!, 'postgres'), args, { ...SERVER_USER, cwd: this.#folder, stdio: 'ignore' })
    this.#child = startProcess()
    for (let starts = 1; !(await this.#isReady()); ) {
      await delay(50)
      if (this.#child.exitCode === null) continue
      // After a crash it starts only once the last of its processes has detected that the first one ended.
      if (starts === MAX_STARTS) throw new Error(`postgres ended with status ${this.#child.exitCode}`)
      starts += 1
      this.#child = startProcess()
    }
  }

  /**
   * Stops the server.
   * @param signal `SIGINT` ends connections and stops, `SIGKILL` is a crash
   */
  async stop(signal: NodeJS.Signals = 'SIGINT'): Promise<void> {
    const child = this.#child
    this.#child = undefined
    if (child === undefined || child.exitCode !== null) return
    const exited = once(child, 'exit')
    child.kill(signal)
    await exited
  }

  async end(): Promise<void> {
    await this.stop()
    rmSync(this.#folder, { recursive: true, force: true })
  }

  get dataFolder(): string {
    return join(this.#folder, 'data')
  }

  /**
   * Creates a copy of a database, in a third of the CPU time of PostgreSQL's default strategy.
   * @returns its URL
   */
  copyDatabase(url: string): Promise<string> {
    return this.newDatabase(`TEMPLATE ${new URL(url).pathname.slice(1)} STRATEGY FILE_COPY`)
  }

  /**
   * Creates a database.
   * @returns its URL
   */
  async newDatabase(options = ''): Promise<string> {
    this.#databases += 1
    const name = `test_${this.#databases}`
    await this.query(`CREATE DATABASE ${name} ${options}`)
    return this.url(name)
  }

  url(database: string, port = this.port): string {
    return `postgres://proxy@127.0.0.1:${port}/${database}`
  }

  async query(sql: string, database = 'postgres'): Promise<Record<string, unknown>[]> {
    const client = new pg.Client(this.url(database))
    await client.connect()
    try {
      return (await client.query(sql)).rows
    } finally {
      await client.end()
    }
  }

  async #isReady(): Promise<boolean> {
    return this.query('SELECT 1').then(
      () => true,
      () => false,
    )
  }
}
