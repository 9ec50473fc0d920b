/**
 * The routes `/tokenize` and `/detokenize` of vLLM (`vllm/entrypoints/serve/tokenize/protocol.py`) in token mode,
 * beside an agent's `/v1`. Trainers such as NeMo Gym read the prompt ids of their latest request there.
 */
import { Readable } from 'node:stream'
import type { FastifyPluginCallback, FastifyReply, FastifyRequest } from 'fastify'
import Type from 'typebox'
import { ProxyError } from '../../../base/errors.ts'
import type { ChatBody } from '../../../protocol/canonical/request.ts'
import { lowerChatRequest } from '../../dialects/chat/request.ts'
import { createChecker, toNullable } from '../../dialects/common/check.ts'
import { createAgentPolicy } from './agent-policy.ts'
import type { RequestHandlerOptions } from './request-handler.ts'
import { getSessionId } from './request-session.ts'
import { createRouteDocs } from './route-docs.ts'
import { getSessionBody } from './session-body.ts'
import { writeText, writeTokens } from './token-responses.ts'

const TokenizeRequest = Type.Object(
  {
    prompt: Type.Optional(
      Type.String({ description: 'The text to tokenize; instead of `messages` with `tools`' }),
    ),
    messages: Type.Optional(Type.Array(Type.Unknown())),
    add_special_tokens: toNullable(
      Type.Boolean({ description: 'Adds special tokens to `prompt`; default: true' }),
    ),
    add_generation_prompt: toNullable(Type.Literal(true)),
    continue_final_message: toNullable(Type.Literal(false)),
    return_token_strs: toNullable(Type.Boolean()),
  },
  {
    $id: 'TokenizeRequest',
    description: 'The request of vLLM; unknown fields are passed to the chat template.',
  },
)
const TokenizeResponse = Type.Object({
  count: Type.Integer(),
  max_model_len: Type.Union([Type.Integer(), Type.Null()]),
  tokens: Type.Array(Type.Integer()),
  token_strs: Type.Union([Type.Array(Type.String()), Type.Null()]),
})
const DetokenizeRequest = Type.Object(
  { tokens: Type.Array(Type.Integer({ minimum: 0, maximum: 2 ** 31 - 1 })) },
  { $id: 'DetokenizeRequest' },
)
const DetokenizeResponse = Type.Object({ prompt: Type.String() })

const checkTokenize = createChecker(TokenizeRequest)
const checkDetokenize = createChecker(DetokenizeRequest)

export const tokenizerRoutes: FastifyPluginCallback<RequestHandlerOptions> = (app, options, done) => {
  const tokenize = createTokenizeHandler(options)
  const detokenize = async (request: FastifyRequest, reply: FastifyReply) => {
    const { tokenizer } = getTokensOrThrow(options)
    const { read, waitForSlice } = getSessionBody(request)
    await waitForSlice()
    const { tokens } = checkDetokenize(read.value)
    return sendJson(reply, writeText(tokens, tokenizer))
  }
  for (const base of ['/:sessionId', '/sessions/:sessionId']) {
    app.post(
      `${base}/tokenize`,
      createRouteDocs('Tokens of a prompt', TokenizeRequest, TokenizeResponse),
      tokenize,
    )
    app.post(
      `${base}/detokenize`,
      createRouteDocs('Text of tokens', DetokenizeRequest, DetokenizeResponse),
      detokenize,
    )
  }
  done()
}

function createTokenizeHandler({ sessions, runner, ...policy }: RequestHandlerOptions) {
  const restrict = createAgentPolicy(policy)
  return async (request: FastifyRequest, reply: FastifyReply) => {
    const { tokenizer, contextLength, encodeText } = getTokensOrThrow({ runner })
    const sessionId = await getSessionId(request, sessions)
    const { read, memo, waitForSlice } = getSessionBody(request)
    await waitForSlice()
    const tokenizeBody = checkTokenize(read.value)
    const { prompt, add_special_tokens: addsTokens, return_token_strs: returnsTexts } = tokenizeBody
    const tokens =
      prompt === undefined
        ? await runner.getPromptIds(sessionId, toChat(read.value, memo))
        : await encodeText(prompt, { addSpecialTokens: addsTokens !== false })
    return sendJson(reply, writeTokens(tokens, contextLength, returnsTexts ? tokenizer : undefined))

    function toChat(...body: Parameters<typeof lowerChatRequest>): ChatBody {
      const chat = lowerChatRequest(...body).body as ChatBody
      return request.caller.is === 'agent' ? restrict(chat).body : chat
    }
  }
}

/** Sends the parts of a JSON text as they are written. */
function sendJson(reply: FastifyReply, parts: AsyncIterable<string>): FastifyReply {
  return reply.type('application/json; charset=utf-8').send(Readable.from(parts))
}

/**
 * Returns the tokenizer of token mode.
 * @throws ProxyError `unsupported` in chat mode, where engines render the prompts; with status 404, because clients
 *   would retry a status from 500 on
 */
function getTokensOrThrow({ runner }: Pick<RequestHandlerOptions, 'runner'>) {
  if (runner.tokens !== undefined) return runner.tokens
  throw new ProxyError('unsupported', 'This route requires token mode: start the proxy with --tokenizer', {
    status: 404,
  })
}
