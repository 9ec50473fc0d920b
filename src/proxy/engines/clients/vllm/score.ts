/**
 * Requests for scores to vLLM's `/v1/completions`, and the parser of the response. Sources: `prompt_logprobs` of
 * `vllm/entrypoints/openai/completion/protocol.py`; the response in `serving.py` of the same folder and in
 * `vllm/logprobs.py`. Prompts are scored before temperature and filters in each `--logprobs-mode`.
 */
import { isRecord, parseJson } from '../../../../base/json.ts'
import type { ScoreRequest, TokenScore } from '../../port/score.ts'
import type { DetokenizeRequest } from '../wire/remote-tokenizer.ts'
import { createNotScoredError, createTextQuery, joinScoredIds, readLogprob } from '../wire/score.ts'

export function buildVllmScoreBody(request: ScoreRequest): string {
  const { model, alternatives } = request
  return JSON.stringify({
    model,
    prompt: joinScoredIds(request),
    add_special_tokens: false,
    // The route samples at least one token.
    max_tokens: 1,
    temperature: 0,
    // 0 requests the prompt's own tokens without alternatives.
    prompt_logprobs: alternatives,
    return_token_ids: true,
    stream: false,
  })
}

/** Reads the scores. @throws ProxyError `engine_failed` */
export function readVllmScores(engine: string, text: string, request: ScoreRequest): TokenScore[] {
  const body = parseJson(text)
  const choice = isRecord(body) && Array.isArray(body.choices) ? body.choices[0] : undefined
  const entries: unknown = isRecord(choice) ? choice.prompt_logprobs : undefined
  const ids = joinScoredIds(request)
  if (!isRecord(choice) || !Array.isArray(entries))
    throw createNotScoredError(engine, 'it has no prompt_logprobs')
  if (entries.length !== ids.length) {
    throw createNotScoredError(
      engine,
      `it read ${entries.length} tokens for the ${ids.length} that it was sent`,
    )
  }
  const seen: unknown = choice.prompt_token_ids
  if (Array.isArray(seen) && ids.some((id, index) => seen[index] !== id)) {
    throw createNotScoredError(engine, 'it read other tokens than it was sent')
  }
  const from = request.promptTokenIds.length
  return entries.slice(from).map((entry: unknown, index) => {
    const scored = isRecord(entry)
      ? readTokenScore(entry, ids[from + index]!, request.alternatives)
      : undefined
    if (scored === undefined)
      throw createNotScoredError(engine, `it does not report token ${index} of the completion`)
    return scored
  })
}

/**
 * Reads the score of one token.
 * @param entry logprobs by token id: this one, and the most probable ones, which may include it
 */
function readTokenScore(
  entry: Record<string, unknown>,
  id: number,
  alternatives: number,
): TokenScore | undefined {
  const own = readEntryLogprob(entry[String(id)])
  if (own === undefined) return undefined
  if (alternatives === 0) return { logprob: own, alternatives: [], alternativeIds: [] }
  const known = Object.entries(entry).flatMap(([key, score]) => {
    const logprob = readEntryLogprob(score)
    return logprob === undefined ? [] : [{ id: Number(key), logprob }]
  })
  return {
    logprob: own,
    alternatives: known.map(({ logprob }) => logprob),
    alternativeIds: known.map(({ id }) => id),
  }
}

function readEntryLogprob(entry: unknown): number | undefined {
  return isRecord(entry) ? readLogprob(entry.logprob) : undefined
}

/** Reads `decoded_token` of `prompt_logprobs`; the first token has none. */
export const VLLM_DETOKENIZE: DetokenizeRequest = {
  path: '/v1/completions',
  buildBody: (ids, model) => buildVllmScoreBody({ ...createTextQuery(ids), model }),
  readTexts(body, ids) {
    const choice = isRecord(body) && Array.isArray(body.choices) ? body.choices[0] : undefined
    const entries: unknown = isRecord(choice) ? choice.prompt_logprobs : undefined
    if (!Array.isArray(entries) || entries.length !== ids.length) return undefined
    return ids.map((id, index) => {
      const score = isRecord(entries[index]) ? entries[index][String(id)] : undefined
      return isRecord(score) && typeof score.decoded_token === 'string' ? score.decoded_token : undefined
    })
  },
}
