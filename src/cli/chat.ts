/** `llm-proxy chat`: sends one request through the proxy, to check that tokens arrive and are recorded. */
import { randomUUID } from 'node:crypto'
import Type from 'typebox'
import { ProxyError } from '../base/errors.ts'
import { describeMissingText } from '../protocol/transcript/missing-text.ts'
import { revealInvisible } from '../protocol/transcript/visible.ts'
import type { ChatConfig } from '../proxy/config/options/operator.ts'
import { SessionWithTurns } from '../proxy/http/trainer/sessions/schemas.ts'
import { OperatorClient } from './proxy-client.ts'
import type { TurnJson } from './sessions/api.ts'
import { formatJson, toPrintable } from './table.ts'

const Models = Type.Object({ data: Type.Array(Type.Object({ id: Type.String() })) })
const ChatCompletion = Type.Object({ id: Type.String(), choices: Type.Array(Type.Unknown()) })

/** Runs the command. @returns the exit code: 1 if the turn is not trainable */
export async function run(config: ChatConfig, [message = 'Say hello.']: string[]): Promise<number> {
  const proxy = new OperatorClient(config)
  const sessionId = config.session ?? `chat-${randomUUID()}`
  const path = `/sessions/${encodeURIComponent(sessionId)}`
  try {
    // The proxy may require that sessions are created before their first request.
    if (config.session === undefined) await proxy.sendJson('POST', path, Type.Unknown())
    const model = config.model ?? (await proxy.get(`${path}/v1/models`, Models)).data[0]?.id
    const body = {
      model,
      messages: [{ role: 'user', content: message }],
      max_tokens: config.maxTokens,
    }
    await proxy.sendJson('POST', `${path}/v1/chat/completions`, ChatCompletion, body)
    const turn = (await proxy.get(path, SessionWithTurns)).turns.at(-1)
    if (turn === undefined) throw new ProxyError('start_failed', 'the request was served but not recorded')
    process.stdout.write(`${config.json ? formatJson(turn, 2) : describe(turn)}\n`)
    return turn.exact ? 0 : 1
  } finally {
    if (config.session === undefined) await proxy.sendJson('DELETE', path, Type.Unknown()).catch(() => {})
  }
}

/** Formats a turn for the terminal, with the line breaks of its text. */
function describe(turn: TurnJson): string {
  const text = describeMissingText(turn) ?? turn.completion_text
  const { prompt_token_ids: prompt, completion_token_ids: sampled, exact, inexact_reason } = turn
  const facts = [
    `${prompt.length} prompt tokens`,
    `${sampled.length} sampled`,
    turn.finish_reason ?? 'no finish reason',
    `${turn.latency_ms ?? '?'} ms`,
    exact ? 'exact' : `not exact: ${inexact_reason}`,
  ]
  return `${revealInvisible(text)}\n\n${toPrintable(facts.join(', '))}`
}
