/** The dialects, and their permitted responses to invalid requests. */
import assert from 'node:assert/strict'
import { CHAT, COMPLETIONS, MESSAGES, RESPONSES } from './bodies.ts'

export interface Answer {
  statusCode: number
  headers: Record<string, unknown>
  body: string
}

export interface FuzzedDialect {
  path: string
  bodies: object[]
  checkRefusal(response: Answer): void
}

export const DIALECTS: Record<string, FuzzedDialect> = {
  chat: { path: 'chat/completions', bodies: CHAT, checkRefusal: isOpenAiRejection },
  completions: { path: 'completions', bodies: COMPLETIONS, checkRefusal: isOpenAiRejection },
  messages: { path: 'messages', bodies: MESSAGES, checkRefusal: isAnthropicRejection },
  'messages/count_tokens': {
    path: 'messages/count_tokens',
    bodies: MESSAGES,
    checkRefusal: isAnthropicRejection,
  },
  responses: { path: 'responses', bodies: RESPONSES, checkRefusal: isOpenAiRejection },
}

function isOpenAiRejection({ body }: Answer): void {
  const { error } = JSON.parse(body)
  assert.equal(typeof error.message, 'string')
  assert.equal(typeof error.type, 'string')
  // An engine's own code may be its status.
  assert.match(typeof error.code, /^(string|number)$/)
  assert.ok('param' in error)
}

function isAnthropicRejection({ body, headers }: Answer): void {
  const { type, error, request_id } = JSON.parse(body)
  assert.equal(type, 'error')
  assert.equal(typeof error.message, 'string')
  assert.match(error.type, /_error$|^request_too_large$/)
  assert.equal(request_id, headers['request-id'])
}

/** Checks that no error follows the status line. */
function isCompleteResponse({ headers, body }: Answer): void {
  if (!String(headers['content-type']).startsWith('text/event-stream')) return void JSON.parse(body)
  assert.match(
    body,
    /(data: \[DONE\]|"type":"message_stop"\}|"type":"response\.(completed|incomplete)".*\})\n\n$/,
  )
  assert.doesNotMatch(body, /^(event: error|data: \{"error")/m)
}

/** Checks for a complete response, or an error in the dialect's format that is not an internal one. */
export function checkResponse(answered: Answer, checkRefusal: FuzzedDialect['checkRefusal']): void {
  const { statusCode, body } = answered
  assert.ok(statusCode === 200 || (statusCode >= 400 && statusCode < 500), `${statusCode} ${body}`)
  if (statusCode === 200) isCompleteResponse(answered)
  else checkRefusal(answered)
}
