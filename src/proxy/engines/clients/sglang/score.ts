/**
 * Requests for scores to SGLang's `/generate`, and the parser of the response. Sources: `return_logprob` and
 * `logprob_start_len` of `GenerateReqInput` in `python/sglang/srt/managers/io_struct.py`; the response's `meta_info` in
 * `tokenizer_manager.py`; the scores in `layers/logits_processor.py`, where inputs are normalized without temperature
 * and top_p.
 */
import { isRecord, parseJson } from '../../../../base/json.ts'
import type { ScoreRequest, TokenScore } from '../../port/score.ts'
import type { DetokenizeRequest } from '../wire/remote-tokenizer.ts'
import { createNotScoredError, createTextQuery, joinScoredIds, readLogprob } from '../wire/score.ts'

/** Returns the body of a request. @param withTexts whether to request the text of each token as well */
export function buildSglangScoreBody(request: ScoreRequest, withTexts = false): string {
  const { promptTokenIds, loraPath, alternatives } = request
  return JSON.stringify({
    input_ids: joinScoredIds(request),
    lora_path: loraPath,
    sampling_params: { max_new_tokens: 0, temperature: 0 },
    return_logprob: true,
    // Starts at the last token of the prompt, because the first entry has no logprob.
    logprob_start_len: Math.max(0, promptTokenIds.length - 1),
    top_logprobs_num: alternatives,
    return_text_in_logprobs: withTexts,
    stream: false,
  })
}

/** Reads the scores. @throws ProxyError `engine_failed` */
export function readSglangScores(engine: string, text: string, request: ScoreRequest): TokenScore[] {
  const body = parseJson(text)
  const meta = isRecord(body) ? body.meta_info : undefined
  const entries = isRecord(meta) ? meta.input_token_logprobs : undefined
  if (!isRecord(meta) || !Array.isArray(entries))
    throw createNotScoredError(engine, 'it has no input_token_logprobs')
  const { completionTokenIds: ids } = request
  const tops: unknown = meta.input_top_logprobs
  // Entries are counted from the end, because versions differ in the number of prompt entries at the start.
  const from = entries.length - ids.length
  if (from < 0) throw createNotScoredError(engine, `it reports ${entries.length} of ${ids.length} tokens`)
  return Array.from(ids, (id, index) => {
    const [value, reportedId] = parseTriple(entries[from + index])
    if (reportedId !== id) throw createNotScoredError(engine, 'it read other tokens than it was sent')
    const logprob = value === null ? undefined : readLogprob(value)
    if (logprob === undefined)
      throw createNotScoredError(engine, `it does not report token ${index} of the completion`)
    const top = Array.isArray(tops) ? parseTopLogprobs(tops[tops.length - ids.length + index]) : []
    return {
      logprob,
      alternatives: top.map(([value]) => value),
      alternativeIds: top.map(([, id]) => id),
    }
  })
}

/** Returns an entry as `[logprob, token id, text or null]`; empty if it is malformed. */
function parseTriple(entry: unknown): readonly unknown[] {
  return Array.isArray(entry) ? entry : []
}

function parseTopLogprobs(entries: unknown): (readonly [logprob: number, id: number])[] {
  if (!Array.isArray(entries)) return []
  return entries.flatMap((entry) => {
    const [value, id] = parseTriple(entry)
    const logprob = readLogprob(value)
    return logprob === undefined ? [] : [[logprob, Number(id)] as const]
  })
}

export const SGLANG_DETOKENIZE: DetokenizeRequest = {
  path: '/generate',
  buildBody: (ids) => buildSglangScoreBody(createTextQuery(ids), true),
  readTexts(body, ids) {
    const meta = isRecord(body) ? body.meta_info : undefined
    const entries = isRecord(meta) ? meta.input_token_logprobs : undefined
    if (!Array.isArray(entries) || entries.length !== ids.length) return undefined
    return ids.map((id, index) => {
      const [, reportedId, text] = parseTriple(entries[index])
      return reportedId === id && typeof text === 'string' ? text : undefined
    })
  },
}
