import type { FastifyInstance } from 'fastify'
import type { ChatBody } from '../../protocol/canonical/request.ts'
import { checkDetokenizeRequest, checkTokenizeRequest } from './request-schemas.ts'
import type { ServedEngine } from './served-engine.ts'

/** `POST /tokenize` of a text or of messages, and `POST /detokenize` (`vllm/entrypoints/serve/tokenize/`). */
export async function tokenizerRoutes(app: FastifyInstance, { engine }: { engine: ServedEngine }) {
  app.post('/tokenize', async (request) => {
    const body = checkTokenizeRequest(request.body)
    const tokens = await ('prompt' in body
      ? engine.tokenizeText(body.prompt)
      : engine.tokenizeChat(body as ChatBody))
    return {
      count: tokens.length,
      max_model_len: engine.contextLength,
      tokens,
      token_strs: body.return_token_strs ? engine.tokenStrings(tokens) : null,
    }
  })
  app.post('/detokenize', (request) => {
    const { tokens } = checkDetokenizeRequest(request.body)
    return { prompt: engine.detokenize(tokens) }
  })
}
