import { ProxyError } from '../../base/errors.ts'
import type { SessionsGrepConfig } from '../../proxy/config/options/sessions.ts'
import { MIN_SEARCHED_CHARS } from '../../proxy/store/port/turn-search.ts'
import { formatJson, toPrintable } from '../table.ts'
import type { SearchHitJson, SessionsApi } from './api.ts'
import { withSessionsApi } from './open-api.ts'

const PAGE_SIZE = 100

/** Runs `llm-proxy sessions grep <text>`. @returns the exit code: 1 if nothing was found, like grep */
export function run(config: SessionsGrepConfig, [text]: string[]): Promise<number> {
  if (text!.length < MIN_SEARCHED_CHARS)
    throw new ProxyError('config_invalid', `the text must have at least ${MIN_SEARCHED_CHARS} characters`)
  return withSessionsApi(config, async (api) => {
    let found = 0
    for await (const hit of findHits(api, text!, config)) {
      process.stdout.write(`${config.json ? formatJson(hit) : formatHit(hit)}\n`)
      found += 1
    }
    return found > 0 ? 0 : 1
  })
}

/** Yields hits page by page; a page may be empty without being the last. The limit per session applies across pages. */
async function* findHits(api: SessionsApi, text: string, { run, limit, perSession }: SessionsGrepConfig) {
  const countBySession = new Map<string, number>()
  let left = limit
  let cursor: string | undefined
  do {
    const page = await api.search({
      text,
      run,
      per_session: perSession,
      limit: Math.min(left, PAGE_SIZE),
      cursor,
    })
    for (const hit of page.hits) {
      const count = (countBySession.get(hit.session_id) ?? 0) + 1
      countBySession.set(hit.session_id, count)
      if (count > perSession) continue
      yield hit
      left -= 1
    }
    cursor = page.next_cursor ?? undefined
  } while (cursor !== undefined && left > 0)
}

/** Formats a hit: `session#turn completion: …surrounding text…` */
function formatHit({
  session_id: sessionId,
  index,
  found_in: foundIn,
  before,
  match,
  after,
}: SearchHitJson): string {
  return `${toPrintable(sessionId)}#${index} ${foundIn}: ${toPrintable(before + match + after)}`
}
