/** The dialects, and their permitted responses to invalid requests. */
import assert from 'node:assert/strict'
import { CHAT, COMPLETIONS, MESSAGES, RESPONSES } from './bodies.ts'

export interface HttpResponse {
  statusCode: number
  headers: Record<string, unknown>
  body: string
}

export interface FuzzedDialect {
  path: string
  bodies: object[]
  checkRejection(response: HttpResponse): void
}

export const DIALECTS: Record<string, FuzzedDialect> = {
  chat: { path: 'chat/completions', bodies: CHAT, checkRejection: checkOpenAiError },
  completions: { path: 'completions', bodies: COMPLETIONS, checkRejection: checkOpenAiError },
  messages: { path: 'messages', bodies: MESSAGES, checkRejection: checkAnthropicError },
  'messages/count_tokens': {
    path: 'messages/count_tokens',
    bodies: MESSAGES,
    checkRejection: checkAnthropicError,
  },
  responses: { path: 'responses', bodies: RESPONSES, checkRejection: checkOpenAiError },
}

function checkOpenAiError({ body }: HttpResponse): void {
  const { error } = JSON.parse(body)
  assert.equal(typeof error.message, 'string')
  assert.equal(typeof error.type, 'string')
  // An engine's own code may be its status.
  assert.match(typeof error.code, /^(string|number)$/)
  assert.ok('param' in error)
}

function checkAnthropicError({ body, headers }: HttpResponse): void {
  const { type, error, request_id } = JSON.parse(body)
  assert.equal(type, 'error')
  assert.equal(typeof error.message, 'string')
  assert.match(error.type, /_error$|^request_too_large$/)
  assert.equal(request_id, headers['request-id'])
}

/** Checks that no error follows the status line. */
function checkCompleteResponse({ headers, body }: HttpResponse): void {
  if (!String(headers['content-type']).startsWith('text/event-stream')) return void JSON.parse(body)
  assert.match(
    body,
    /(data: \[DONE\]|"type":"message_stop"\}|"type":"response\.(completed|incomplete)".*\})\n\n$/,
  )
  assert.doesNotMatch(body, /^(event: error|data: \{"error")/m)
}

/** Checks for a complete response, or an error in the dialect's format that is not an internal one. */
export function checkResponse(response: HttpResponse, checkRejection: FuzzedDialect['checkRejection']): void {
  const { statusCode, body } = response
  assert.ok(statusCode === 200 || (statusCode >= 400 && statusCode < 500), `${statusCode} ${body}`)
  if (statusCode === 200) checkCompleteResponse(response)
  else checkRejection(response)
}
