import t from 'tap'
import { ERROR_CATALOGUE, type ErrorCode, ProxyError } from '../../../../../src/base/errors.ts'
import {
  buildAnthropicError,
  formatAnthropicErrorEvent,
  getAnthropicStatus,
} from '../../../../../src/proxy/dialects/messages/error.ts'

/** Error types of Anthropic's API: https://platform.claude.com/docs/en/api/errors */
const TYPE_OF_STATUS: Record<number, string> = {
  400: 'invalid_request_error',
  401: 'authentication_error',
  403: 'permission_error',
  404: 'not_found_error',
  409: 'conflict_error',
  413: 'request_too_large',
  421: 'invalid_request_error',
  429: 'rate_limit_error',
  499: 'invalid_request_error',
  500: 'api_error',
  501: 'api_error',
  502: 'api_error',
  503: 'api_error',
  504: 'timeout_error',
  529: 'overloaded_error',
}

t.test('every error has the type of its status, with its own code beside it', async (t) => {
  for (const code of Object.keys(ERROR_CATALOGUE) as ErrorCode[]) {
    const error = new ProxyError(code, 'no', { param: 'x' })
    t.same(buildAnthropicError(error, 'r'), {
      type: 'error',
      error: {
        type: TYPE_OF_STATUS[getAnthropicStatus(error)],
        message: 'no',
        details: { error_code: code, param: 'x' },
      },
      request_id: 'r',
    })
  }
})

t.test('a rate limit becomes an overload; every other error keeps its status', async (t) => {
  t.equal(getAnthropicStatus(new ProxyError('queue_full', 'x')), 529)
  t.equal(getAnthropicStatus(new ProxyError('no_worker', 'x')), 529)
  t.equal(getAnthropicStatus(new ProxyError('engine_rejected', 'x', { status: 429 })), 429)
  t.equal(getAnthropicStatus(new ProxyError('engine_unreachable', 'x')), 503)
})

t.test('an error in a stream is an event', async (t) => {
  const text = formatAnthropicErrorEvent(new ProxyError('engine_lost', 'gone'))
  const [, data] = /^event: error\ndata: (.*)\n\n$/.exec(text) ?? []
  t.match(JSON.parse(data!), { type: 'error', error: { type: 'api_error', message: 'gone' } })
})

t.test('a prompt that does not fit is reported with the text that agents search for', async (t) => {
  const convertMessage = (message: string) =>
    buildAnthropicError(new ProxyError('engine_rejected', message)).error.message
  const tooLong = 'prompt is too long: 5000 tokens > 4096 maximum'
  const tooMuch =
    'input length and `max_tokens` exceed context limit: 3000 + 2000 > 4096, ' +
    'decrease input length or `max_tokens` and try again'
  // Messages of vLLM, by version.
  t.equal(
    convertMessage(
      "This model's maximum context length is 4096 tokens. However, you requested 5500 tokens (5000 in the messages, " +
        '500 in the completion). Please reduce the length of the messages or completion.',
    ),
    tooLong,
  )
  t.equal(
    convertMessage(
      "This model's maximum context length is 4096 tokens. However, you requested 2000 output tokens and your prompt " +
        'contains at least 3000 input tokens, for a total of at least 5000 tokens.',
    ),
    tooMuch,
  )
  t.equal(
    convertMessage(
      "'max_tokens' or 'max_completion_tokens' is too large: 2000. This model's maximum context length is 4096 tokens " +
        'and your request has 3000 input tokens (2000 > 4096 - 3000).',
    ),
    tooMuch,
  )
  t.equal(
    convertMessage('The decoder prompt (length 5000) is longer than the maximum model length of 4096.'),
    tooLong,
  )
  // Messages of SGLang.
  t.equal(
    convertMessage("The input (5000 tokens) is longer than the model's context length (4096 tokens)."),
    tooLong,
  )
  t.equal(
    convertMessage(
      "Requested token count exceeds the model's maximum context length of 4096 tokens. You requested a total of 5000 " +
        'tokens: 3000 tokens from the input messages and 2000 tokens for the completion.',
    ),
    tooMuch,
  )
  const unread = "This model's maximum context length is 4096 tokens, and that is all there is to say."
  t.equal(convertMessage(unread), `prompt is too long: ${unread}`)
  t.equal(convertMessage('temperature must be non-negative'), 'temperature must be non-negative')
  // A message of token mode.
  const filled =
    "This model's maximum context length is 4096 tokens. However, your prompt contains 5000 input tokens."
  t.equal(buildAnthropicError(new ProxyError('context_length_exceeded', filled)).error.message, tooLong)
})

t.test("only an engine's own error is parsed as an engine's message", async (t) => {
  const message = 'the engine fell silent after "maximum context length is 5"'
  t.equal(buildAnthropicError(new ProxyError('engine_timeout', message)).error.message, message)
})

t.test('an error that quotes a million digits of the agent is read in linear time', async (t) => {
  const model = `maximum context length is 1 ${'1'.repeat(1_000_000)}`
  const error = new ProxyError('engine_rejected', `The model \`${model}\` does not exist.`, { status: 404 })
  t.match(buildAnthropicError(error, 'r'), { type: 'error', error: { message: error.message } })
})
