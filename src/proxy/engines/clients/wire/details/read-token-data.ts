/**
 * Reader of token data in responses of OpenAI's routes: those of vLLM, of SGLang, and of servers that use the same
 * names.
 */
import { isRecord } from '../../../../../base/json.ts'
import type { TokenLogprob } from '../../../../../protocol/canonical/messages.ts'
import type { CaptureOptions } from '../../../../../protocol/token-data/kinds.ts'
import type { TokenData } from '../../../../../protocol/token-data/token-data.ts'
import type { PromptIds } from '../../../../../protocol/token-ids/prompt-ids.ts'
import {
  createAlternativesTable,
  parseTokenIdAlternatives,
  readInt32Experts,
  readNpyExperts,
  readPromptObjects,
  readSamplingLogprobs,
  readSamplingMask,
  readVersionSpans,
} from './read.ts'

/** A chunk of a response, with the values that are needed to read its token data. */
export interface TokenDataChunk {
  readonly response: Record<string, unknown>
  readonly choice: Record<string, unknown>
  /** The ids of the prompt, if known. */
  readonly prompt: PromptIds | undefined
  /** The number of completion tokens up to and including this chunk. */
  readonly tokens: number
  /** The engine's entries for the tokens of this chunk, unchanged. */
  readonly entries: readonly TokenLogprob[]
  /** The prompt position from which routed experts were requested. */
  readonly expertsStart: number
}

/** Reads the requested token data of a chunk. @returns undefined if it contains none */
export function readTokenData(requested: CaptureOptions, chunk: TokenDataChunk): TokenData | undefined {
  const { response, choice, prompt, entries } = chunk
  const meta = isRecord(choice.meta_info) ? choice.meta_info : {}
  const metadata = isRecord(response.metadata) ? response.metadata : {}
  const versions = choice.weight_versions ?? meta.weight_versions ?? metadata.weight_versions
  const details: { [Kind in keyof TokenData]: TokenData[Kind] | undefined } = {
    ...(requested.samplingMask && readMask(choice, meta)),
    top_logprobs: requested.topLogprobs === undefined ? undefined : readTopLogprobs(entries),
    prompt_logprobs:
      requested.promptLogprobs === undefined
        ? undefined
        : readPromptObjects(response.prompt_logprobs ?? choice.prompt_logprobs, prompt),
    routed_experts: requested.routedExperts ? readExperts(chunk, meta) : undefined,
    weight_versions: requested.weightVersions ? readVersionSpans(versions) : undefined,
  }
  const known = Object.entries(details).filter(([, detail]) => detail !== undefined)
  return known.length === 0 ? undefined : (Object.fromEntries(known) as TokenData)
}

function readMask(choice: Record<string, unknown>, meta: Record<string, unknown>) {
  const rows = choice.sampling_mask ?? meta.output_token_sampling_mask
  const logprobs = choice.sampling_mask_logprobs ?? meta.output_token_sampling_logprobs
  return {
    sampling_mask: readSamplingMask(rows, logprobs),
    sampling_logprobs: readSamplingLogprobs(logprobs),
  }
}

function readTopLogprobs(entries: readonly TokenLogprob[]) {
  const rows = entries.map(({ top_logprobs: tops }) => parseTokenIdAlternatives(tops ?? []))
  return rows.some((row) => row !== undefined && row.length > 0) ? createAlternativesTable(rows) : undefined
}

function readExperts({ response, choice, prompt, tokens, expertsStart }: TokenDataChunk, meta: object) {
  if (prompt === undefined) return undefined
  const npy = readNpyExperts(choice.routed_experts, expertsStart, prompt.length + tokens)
  if (npy !== undefined) return npy
  const source = isRecord(response.sglext) ? response.sglext : (meta as Record<string, unknown>)
  return readInt32Experts(source.routed_experts, expertsStart, prompt.length + tokens)
}
