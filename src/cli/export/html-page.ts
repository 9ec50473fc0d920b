/** `llm-proxy sessions export --format html`: writes sessions and the inspector to one file. */
import type { Static } from 'typebox'
import { ProxyError } from '../../base/errors.ts'
import { VERSION } from '../../base/version.ts'
import { type ApiSnapshot, writeOneFilePage } from '../../inspector/routes/one-file.ts'
import type { SessionsExportConfig } from '../../proxy/config/options/sessions.ts'
import type { Rows, Tree } from '../../proxy/http/trainer/sessions/read-schemas.ts'
import { buildView } from '../../proxy/http/view.ts'
import { createLogger } from '../logger.ts'
import { OperatorClient } from '../proxy-client.ts'
import { withView } from '../view/open-view.ts'

/**
 * A function that returns the response body of an API path.
 * @throws ProxyError `session_not_found` or `start_failed`
 */
type ApiReader = (path: string) => Promise<Buffer>

/** Returns the page. @throws ProxyError `config_invalid` if no session is given */
export async function createHtmlPage(
  config: SessionsExportConfig,
  sessionIds: readonly string[],
): Promise<Iterable<string>> {
  if (sessionIds.length === 0) {
    throw new ProxyError('config_invalid', 'name the sessions that --format html is to show')
  }
  const page = async (readApi: ApiReader) =>
    writeOneFilePage(sessionIds.join(', '), await fetchResponses(readApi, sessionIds))
  if (config.url !== undefined) {
    if (config.tokenizer !== undefined)
      throw new ProxyError(
        'config_invalid',
        '--tokenizer is for --db: with --url, the proxy has the tokenizer',
      )
    const proxy = new OperatorClient(config)
    return page((path) => proxy.getBytes(`/${path}`))
  }
  return withView(
    { db: config.db, tokenizer: config.tokenizer, logger: createLogger('silent') },
    async (options) => {
      const { fastify } = await buildView(options)
      return page(async (path) => {
        const { statusCode, rawPayload } = await fastify.inject(`/${path}`)
        if (statusCode === 200) return rawPayload
        const { detail } = JSON.parse(rawPayload.toString()) as { detail: string }
        throw new ProxyError(statusCode === 404 ? 'session_not_found' : 'start_failed', detail)
      })
    },
  )
}

/** Returns the responses that the page requests for these sessions. */
async function fetchResponses(readApi: ApiReader, sessionIds: readonly string[]): Promise<ApiSnapshot> {
  const json = async (path: string) => JSON.parse((await readApi(path)).toString())
  const responses: ApiSnapshot = { json: {}, base64: {} }
  const sessions: object[] = []
  for (const id of sessionIds) {
    const path = `sessions/${encodeURIComponent(id)}`
    const tree = (await json(`${path}/tree`)) as Static<typeof Tree>
    const { turns: _, ...session } = tree
    sessions.push(session)
    const rows = (await json(`${path}/rows`)) as Static<typeof Rows>
    responses.json[`${path}/rows`] = rows
    responses.json[`${path}/tree`] = tree
    const withMessages = `${path}?messages=new&ids=false`
    responses.json[withMessages] = await json(withMessages)
    for (const { row } of rows.rows) {
      const tokens = `${path}/rows/${row}/tokens?texts=true`
      responses.base64[tokens] = (await readApi(tokens)).toString('base64')
    }
  }
  responses.json.sessions = { sessions, next_cursor: null }
  responses.json.health = { status: 'ok', mode: 'file', connected_workers: 0, version: VERSION }
  return responses
}
