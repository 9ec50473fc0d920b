/** The routes that change sessions, over a database that no proxy has open. */
import { existsSync } from 'node:fs'
import type { Static, TSchema } from 'typebox'
import { ProxyError } from '../../base/errors.ts'
import { parseJson } from '../../base/json.ts'
import { withScope } from '../../proxy/http/access/guard.ts'
import { buildAppWith } from '../../proxy/http/app.ts'
import { sessionsRoutes } from '../../proxy/http/trainer/sessions/routes.ts'
import { Sessions } from '../../proxy/session/state/sessions.ts'
import { isPostgresUrl, toDatabaseName } from '../../proxy/store/port/database-name.ts'
import type { TurnStore } from '../../proxy/store/port/turn-store.ts'
import { createLogger } from '../logger.ts'
import { openIdleDatabase } from '../open-database.ts'
import { checkResponse } from '../proxy-client.ts'
import type { ChangesApi } from './api.ts'

/** The body limit, enough for the rewards of all turns of a session. */
const BODY_LIMIT_BYTES = 16 * 1024 * 1024

/** Matches the advice in the store's error if a proxy has the database open. */
const IN_USE = /: stop (that one|these proxies).*$/

/**
 * Serves the routes of a proxy in this process, so that requests are validated and errors are reported as by a running
 * proxy.
 * @throws ProxyError `start_failed`
 */
export async function withDatabaseChanges<T>(db: string, use: (api: ChangesApi) => Promise<T>): Promise<T> {
  await using closing = new AsyncDisposableStack()
  const store = await openExisting(db)
  closing.defer(() => store.close())
  const hooks = { onEnded() {}, onSweepFailed() {}, onSweepDeferred() {} }
  const sessions = new Sessions(store, hooks, { strict: false, defaultTtlMs: null })
  closing.defer(() => sessions.close())
  const base = { logger: createLogger('silent'), bodyLimitBytes: BODY_LIMIT_BYTES }
  const { fastify } = await buildAppWith(base, async (app, { keyring }) => {
    await app.register(withScope('admin', sessionsRoutes), { sessions, store, keyring })
  })
  closing.defer(() => fastify.close())
  const send = async <S extends TSchema>(
    method: 'POST' | 'DELETE',
    path: string,
    schema: S,
    body?: object,
  ): Promise<Static<S>> => {
    const { statusCode, payload } = await fastify.inject({
      method,
      url: path,
      ...(body && { payload: body }),
    })
    return checkResponse(schema, parseJson(payload), statusCode, toDatabaseName(db) + path)
  }
  return await use({ sendJson: send })
}

/** Opens the database. A misspelt file is not created. @throws ProxyError `start_failed` */
async function openExisting(db: string): Promise<TurnStore> {
  if (!isPostgresUrl(db) && !existsSync(db))
    throw new ProxyError('start_failed', `there is no database ${db}: name one with --db`)
  try {
    return await openIdleDatabase(db, 'power')
  } catch (error) {
    const { message } = error as Error
    if (!IN_USE.test(message)) throw error
    const remedy = ': stop it, or name it with --url instead of --db'
    throw new ProxyError('start_failed', message.replace(IN_USE, remedy))
  }
}
