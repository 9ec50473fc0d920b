/** Checks the requirements of a proxy on its machine: a free port, a disk that persists writes, valid certificates. */
import { X509Certificate } from 'node:crypto'
import { closeSync, existsSync, fsyncSync, openSync, rmSync, statfsSync, writeSync } from 'node:fs'
import { createServer } from 'node:net'
import { dirname, join, resolve } from 'node:path'
import { requireProduct } from '../../included-products.ts'
import { isLoopback, isOpenDoor } from '../../proxy/config/notes.ts'
import type { ServeConfig } from '../../proxy/config/options/serve.ts'
import { readCertificate } from '../../proxy/http/transport/certificate.ts'
import { isPostgresUrl, toDatabaseName } from '../../proxy/store/port/database-name.ts'
import { explainListenFailure, withCause } from '../fail.ts'
import { openDatabase } from '../open-database.ts'
import { createFailure, createOkFinding, createWarning, type Finding } from './finding.ts'

export function checkKeys(config: ServeConfig): Finding {
  const { host, mode, adminKeys, agentKeySecrets } = config
  if (isOpenDoor(config)) {
    return createWarning(
      'keys',
      `--open: anyone who can reach ${host} may do everything`,
      'give --admin-key, or listen on 127.0.0.1',
    )
  }
  if (adminKeys.length === 0) return createOkFinding('keys', 'none; only this machine reaches the proxy')
  if (agentKeySecrets.length === 0) {
    return createWarning(
      'keys',
      'agents have no keys, so they would need an admin key',
      'give --agent-key-secret',
    )
  }
  return createOkFinding('keys', `of admins and agents${mode === 'relay' ? ', and of workers' : ''}`)
}

/** A certificate that expires within this time causes a warning. */
const SOON_MS = 14 * 86_400_000

export function checkTls({ host, tlsCert, tlsKey, trustedProxies }: ServeConfig): Finding {
  if (tlsCert === undefined || tlsKey === undefined) {
    if (isLoopback(host) || trustedProxies.length > 0) return createOkFinding('tls', 'none here')
    return createWarning(
      'tls',
      'keys and prompts cross the network in plain HTTP',
      'give --tls-cert and --tls-key',
    )
  }
  try {
    const { cert } = readCertificate({ certPath: tlsCert, keyPath: tlsKey })
    const { validTo, subject } = new X509Certificate(cert)
    const leftMs = Date.parse(validTo) - Date.now()
    const seen = `${subject.replaceAll('\n', ', ') || 'a certificate'}, valid to ${validTo}`
    if (leftMs < 0) return createFailure('tls', seen, 'renew it: clients reject it')
    return leftMs < SOON_MS ? createWarning('tls', seen, 'renew it soon') : createOkFinding('tls', seen)
  } catch (error) {
    return createFailure('tls', withCause(error), 'name a certificate and its key, both PEM')
  }
}

export async function checkPort({ host, port }: ServeConfig): Promise<Finding> {
  if (port === 0) return createOkFinding('port', 'any free one')
  const server = createServer()
  const { promise, resolve, reject } = Promise.withResolvers<void>()
  server.once('error', reject)
  server.listen({ host, port }, resolve)
  try {
    await promise
    return createOkFinding('port', `${port} on ${host} is free`)
  } catch (error) {
    const reason = withCause(explainListenFailure(error, host, port))
    return createWarning('port', reason, 'expected if this proxy is running')
  } finally {
    server.close()
  }
}

/** A synchronous write that takes longer is reported as slow; on local disks it takes less. */
const SLOW_SYNC_MS = 20
const WRITES = 15
const LITTLE_SPACE_BYTES = 1024 ** 3

/** Checks the disk: writes a file beside the database as a commit does, and deletes it. */
export function checkDisk({ db, durability }: ServeConfig): Finding {
  if (isPostgresUrl(db)) return createOkFinding('disk', 'not used: sessions are in PostgreSQL')
  if (db === 'memory') {
    return createWarning(
      'disk',
      'sessions end with the process',
      'give --db a file, if they are to be trained on',
    )
  }
  const folder = dirname(resolve(db))
  try {
    const syncMs = measureMedianSyncMs(join(folder, `.llm-proxy-doctor-${process.pid}`))
    const { bavail, bsize } = statfsSync(folder)
    const seen = `${folder} syncs a write in ${syncMs.toFixed(1)} ms, ${((bavail * bsize) / 1024 ** 3).toFixed(1)} GiB free`
    if (bavail * bsize < LITTLE_SPACE_BYTES)
      return createWarning('disk', seen, 'free some space, or put --db elsewhere')
    if (syncMs > SLOW_SYNC_MS && durability === 'power') {
      return createWarning(
        'disk',
        seen,
        'every response waits that long: put --db on a local disk, or give --durability process',
      )
    }
    return createOkFinding('disk', seen)
  } catch (error) {
    return createFailure('disk', withCause(error), `let the proxy write to ${folder}, or put --db elsewhere`)
  }
}

function measureMedianSyncMs(path: string): number {
  const file = openSync(path, 'wx')
  try {
    const page = Buffer.alloc(4096, 1)
    const times = Array.from({ length: WRITES }, () => {
      const startMs = performance.now()
      writeSync(file, page)
      fsyncSync(file)
      return performance.now() - startMs
    })
    return times.sort((a, b) => a - b)[WRITES >> 1]!
  } finally {
    closeSync(file)
    rmSync(path)
  }
}

export async function checkDatabase({ db, durability }: ServeConfig): Promise<Finding[]> {
  if (db === 'memory') return []
  if (!isPostgresUrl(db) && !existsSync(db)) return [createOkFinding('database', `${db} will be created`)]
  try {
    const server = isPostgresUrl(db) ? await checkServer(db, durability) : []
    const reader = await openDatabase(db)
    try {
      const { sessions, turns } = await reader.totalSessions({})
      return [
        ...server,
        createOkFinding('database', `${toDatabaseName(db)} has ${sessions} sessions, ${turns} turns`),
      ]
    } finally {
      await reader.close()
    }
  } catch (error) {
    return [
      createFailure('database', withCause(error), 'name another database with --db, or repair this one'),
    ]
  }
}

/** Checks the server's settings for the durability of commits. */
async function checkServer(db: string, durability: ServeConfig['durability']): Promise<Finding[]> {
  const { server, fsync, ...settings } = await requireProduct('postgres').openPostgresForInspection(
    db,
    durability,
  )
  const { synchronous_commit: commit, synchronous_standby_names: standbys } = settings
  const seen = `PostgreSQL ${server}, fsync ${fsync}, synchronous_commit ${commit}`
  if (standbys !== '') return [createOkFinding('database server', `${seen}, synchronous standby ${standbys}`)]
  return [
    createOkFinding(
      'database server',
      `${seen}, no synchronous standby: one that takes over loses the newest turns`,
    ),
  ]
}
