/**
 * Validation of OpenAI Completions (legacy) requests, and conversion to canonical form:
 * https://platform.openai.com/docs/api-reference/completions/create
 */
import Type, { type Static } from 'typebox'
import { createUnsupportedError } from '../../../base/errors.ts'
import type { CompletionBody } from '../../../protocol/canonical/request.ts'
import { MAX_TOKEN_ID } from '../../../protocol/token-ids/token-ids.ts'
import { createChecker, LargeInteger, toNullable } from '../common/check.ts'
import { parseChoiceCount } from '../common/choices.ts'
import type { DialectRequest } from '../common/dialect-request.ts'

const TokenId = Type.Integer({ minimum: 0, maximum: MAX_TOKEN_ID })

export const CompletionRequest = Type.Object(
  {
    model: toNullable(Type.String()),
    prompt: Type.Union([
      Type.String(),
      Type.Array(TokenId, { minItems: 1 }),
      Type.Array(Type.String(), { minItems: 1 }),
      Type.Array(Type.Array(TokenId, { minItems: 1 }), { minItems: 1 }),
    ]),
    stream: toNullable(Type.Boolean()),
    stream_options: toNullable(Type.Object({ include_usage: toNullable(Type.Boolean()) })),
    n: toNullable(Type.Integer({ minimum: 1 })),
    best_of: toNullable(Type.Integer({ minimum: 1 })),
    echo: toNullable(Type.Boolean()),
    max_tokens: toNullable(Type.Integer({ minimum: 0 })),
    temperature: toNullable(Type.Number({ minimum: 0 })),
    top_p: toNullable(Type.Number({ minimum: 0, maximum: 1 })),
    seed: toNullable(LargeInteger),
    stop: toNullable(Type.Union([Type.String(), Type.Array(Type.String())])),
    logprobs: toNullable(Type.Integer({ minimum: 0 })),
    return_token_ids: toNullable(Type.Boolean()),
  },
  { $id: 'CompletionRequest', description: 'OpenAI Completions; unknown fields are forwarded.' },
)

const check = createChecker(CompletionRequest)

/**
 * Validates a Completions body and lowers it.
 * @throws ProxyError `invalid_request` naming the field; `unsupported` for several prompts, for samples that are
 *   discarded (`best_of` above `n`), and for `echo`
 */
export function lowerCompletionRequest(raw: unknown): DialectRequest {
  const { best_of: bestOf, ...request } = check(raw)
  rejectUnrecordable(request, bestOf ?? 1)
  return {
    kind: 'completion',
    body: { ...request, prompt: getSinglePrompt(request.prompt) } as CompletionBody,
    stream: request.stream === true,
    ...parseChoiceCount(request.n),
    responseOptions: {
      logprobs: typeof request.logprobs === 'number',
      tokenIds: request.return_token_ids === true,
      reasoning: false,
      streamUsage: request.stream_options?.include_usage === true,
    },
  }
}

function rejectUnrecordable({ n, echo }: Static<typeof CompletionRequest>, bestOf: number): void {
  if (echo)
    throw createUnsupportedError(
      "'echo' is not supported: a turn records what was sampled, not its prompt",
      'echo',
    )
  if (bestOf > (n ?? 1))
    throw createUnsupportedError(
      "'best_of' must not be above 'n': every sample is a turn that the agent reads",
      'best_of',
    )
}

function getSinglePrompt(prompt: string | number[] | string[] | number[][]): string | number[] {
  if (typeof prompt === 'string') return prompt
  const first = prompt[0]
  if (typeof first === 'number') return prompt as number[]
  if (prompt.length === 1) return first as string | number[]
  throw createUnsupportedError(`'prompt' has ${prompt.length} prompts; send one prompt per request`, 'prompt')
}
