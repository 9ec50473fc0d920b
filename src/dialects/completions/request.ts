/** OpenAI Completions (legacy), the request: https://platform.openai.com/docs/api-reference/completions/create */
import Type from 'typebox'
import type { CompletionBody } from '../../canonical/request.ts'
import { MAX_TOKEN_ID } from '../../canonical/token-ids.ts'
import { ProxyError } from '../../errors.ts'
import { refuseSeveralChoices } from '../chat/request.ts'
import { checker, nullable } from '../check.ts'
import type { LoweredRequest } from '../lowered.ts'

const TokenId = Type.Integer({ minimum: 0, maximum: MAX_TOKEN_ID })

export const CompletionRequest = Type.Object(
  {
    model: nullable(Type.String()),
    prompt: Type.Union([
      Type.String(),
      Type.Array(TokenId, { minItems: 1 }),
      Type.Array(Type.String(), { minItems: 1 }),
      Type.Array(Type.Array(TokenId, { minItems: 1 }), { minItems: 1 }),
    ]),
    stream: nullable(Type.Boolean()),
    stream_options: nullable(Type.Object({ include_usage: nullable(Type.Boolean()) })),
    n: nullable(Type.Integer({ minimum: 1 })),
    best_of: nullable(Type.Integer({ minimum: 1 })),
    echo: nullable(Type.Boolean()),
    max_tokens: nullable(Type.Integer({ minimum: 0 })),
    temperature: nullable(Type.Number({ minimum: 0 })),
    top_p: nullable(Type.Number({ minimum: 0, maximum: 1 })),
    seed: nullable(Type.Integer()),
    stop: nullable(Type.Union([Type.String(), Type.Array(Type.String())])),
    logprobs: nullable(Type.Integer({ minimum: 0 })),
    return_token_ids: nullable(Type.Boolean()),
  },
  { $id: 'CompletionRequest', description: 'OpenAI Completions; unknown fields are forwarded.' },
)

const check = checker(CompletionRequest)

/**
 * Checks a Completions body and lowers it.
 * @throws ProxyError `invalid_request` naming the field; `unsupported` for several prompts or samples, and `echo`
 */
export function lowerCompletionRequest(raw: unknown): LoweredRequest {
  const request = check(raw)
  refuseSeveralChoices(request.n)
  refuseWhatOneTurnCannotHold(request)
  return {
    kind: 'completion',
    body: { ...request, prompt: onePrompt(request.prompt) } as CompletionBody,
    stream: request.stream === true,
    wishes: {
      logprobs: typeof request.logprobs === 'number',
      tokenIds: request.return_token_ids === true,
      reasoning: false,
      streamUsage: request.stream_options?.include_usage === true,
    },
  }
}

function refuseWhatOneTurnCannotHold(request: { best_of?: number | null; echo?: boolean | null }): void {
  if (request.echo) {
    throw new ProxyError(
      'unsupported',
      "'echo' is not supported: a turn records what was sampled, not its prompt",
      {
        param: 'echo',
      },
    )
  }
  if ((request.best_of ?? 1) > 1) {
    throw new ProxyError('unsupported', "'best_of' must be 1: a turn records every token that was sampled", {
      param: 'best_of',
    })
  }
}

function onePrompt(prompt: string | number[] | string[] | number[][]): string | number[] {
  if (typeof prompt === 'string') return prompt
  const first = prompt[0]
  if (typeof first === 'number') return prompt as number[]
  if (prompt.length === 1) return first as string | number[]
  throw new ProxyError('unsupported', `'prompt' holds ${prompt.length} prompts; send one prompt per call`, {
    param: 'prompt',
  })
}
