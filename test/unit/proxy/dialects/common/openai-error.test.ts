import t from 'tap'
import { ProxyError } from '../../../../../src/base/errors.ts'
import { buildOpenAiError } from '../../../../../src/proxy/dialects/common/openai-error.ts'

const tooLong =
  "This model's maximum context length is 4096 tokens and your prompt contains 5000 input tokens."

t.test("an engine's rejection keeps its message, type and code", async (t) => {
  const engineBody = { error: { message: 'No such model', type: 'NotFoundError', code: 404, more: 1 } }
  const error = new ProxyError('engine_rejected', 'No such model', { engineBody, status: 404 })
  t.same(buildOpenAiError(error).error, {
    message: 'No such model',
    type: 'NotFoundError',
    param: null,
    code: 404,
    more: 1,
  })
})

t.test(
  'a prompt that does not fit has the code that agents match, whether the proxy or the engine detects it',
  async (t) => {
    const known = {
      message: tooLong,
      type: 'invalid_request_error',
      param: null,
      code: 'context_length_exceeded',
    }
    const engineBody = { error: { message: tooLong, type: 'BadRequestError', code: 400 } }
    t.same(buildOpenAiError(new ProxyError('engine_rejected', tooLong, { engineBody })).error, known)
    t.same(buildOpenAiError(new ProxyError('engine_rejected', tooLong)).error, known)
    t.same(buildOpenAiError(new ProxyError('context_length_exceeded', tooLong)).error, known)
    t.match(buildOpenAiError(new ProxyError('engine_timeout', tooLong)).error, { code: 'engine_timeout' })
  },
)
