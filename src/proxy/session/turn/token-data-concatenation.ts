/**
 * Joins the token data of a response that several engine requests sampled: each request reports the data of one part.
 */
import type { GenerationDelta } from '../../../protocol/canonical/events.ts'
import {
  type ExpertTable,
  getRowSize,
  type PromptTable,
  type TokenData,
  type TokenTable,
  type VersionSpan,
} from '../../../protocol/token-data/token-data.ts'

/**
 * The kinds of token data whose positions refer to the complete response. The other kinds have one row per token of a
 * delta, so they need no joining.
 */
type CumulativeTokenData = Pick<TokenData, 'prompt_logprobs' | 'routed_experts' | 'weight_versions'>

/** The token data of one response so far. */
export class TokenDataConcatenation {
  readonly #promptLength: number
  /** The data of the earlier engine requests; `#joined` also includes that of the current one. */
  #earlier: CumulativeTokenData = {}
  #joined: CumulativeTokenData = {}
  #offset = 0

  constructor(promptLength: number) {
    this.#promptLength = promptLength
  }

  /** Begins the next engine request. @param offset the number of tokens of the completion so far */
  startRequest(offset: number): void {
    this.#earlier = this.#joined
    this.#offset = offset
  }

  /**
   * The first position whose routed experts are to be requested. If earlier requests reported none, it is the position
   * of the last token, which no engine has read: for earlier positions, an engine would report the experts of other
   * weights.
   */
  get expertsStart(): number {
    const { routed_experts: experts } = this.#earlier
    if (experts !== undefined) return experts.start + experts.experts.shape[0]!
    return Math.max(0, this.#promptLength + this.#offset - 1)
  }

  /** The weight versions that engines have reported, as spans of completion tokens. */
  get versions(): readonly VersionSpan[] | undefined {
    return this.#joined.weight_versions
  }

  /** Joins the data of a delta of the current engine request with that of the earlier ones. */
  join(details: TokenData): TokenData {
    if (this.#offset === 0) {
      this.#joined = { ...this.#joined, ...details }
      return details
    }
    const { prompt_logprobs: prompt, routed_experts: experts, weight_versions: versions, ...rows } = details
    const joined: CumulativeTokenData = {
      ...(prompt && {
        prompt_logprobs: this.#earlier.prompt_logprobs ?? truncateTable(prompt, this.#promptLength),
      }),
      ...(experts && { routed_experts: this.#joinExperts(experts) }),
      ...(versions && { weight_versions: this.#joinVersions(versions) }),
    }
    this.#joined = { ...this.#joined, ...joined }
    return { ...rows, ...joined }
  }

  #joinVersions(versions: readonly VersionSpan[]): VersionSpan[] {
    const moved = versions.map(({ version, start, end }) => {
      return { version, start: start + this.#offset, end: end + this.#offset }
    })
    return [...(this.#earlier.weight_versions ?? []), ...moved]
  }

  #joinExperts(table: ExpertTable): ExpertTable {
    const { routed_experts: earlier } = this.#earlier
    if (earlier === undefined) return table
    const [rows, ...row] = earlier.experts.shape
    const isNext = table.start === earlier.start + rows! && table.experts.dtype === earlier.experts.dtype
    if (!isNext || getRowSize(table.experts) !== getRowSize(earlier.experts)) return earlier
    const data = Buffer.concat([earlier.experts.data, table.experts.data])
    return {
      start: earlier.start,
      experts: { ...earlier.experts, shape: [rows! + table.experts.shape[0]!, ...row], data },
    }
  }
}

/** Returns a table without the rows of positions from `end` on, which are tokens of the completion. */
function truncateTable({ start, counts, ids, logprobs }: PromptTable, end: number): PromptTable {
  const kept = counts.slice(0, Math.max(0, end - start))
  const length = kept.reduce((sum, count) => sum + count, 0)
  return {
    start,
    counts: kept,
    ids: ids.slice(0, length),
    ...(logprobs && { logprobs: logprobs.slice(0, length) }),
  }
}

/** Returns a delta with its first `count` tokens and their data. */
export function truncateDelta(delta: GenerationDelta, count: number): GenerationDelta {
  const { tokenIds, logprobs, logprobsContent, details } = delta
  if (tokenIds === undefined || tokenIds.length <= count) return delta
  return {
    ...delta,
    tokenIds: tokenIds.slice(0, count),
    ...(logprobs && { logprobs: logprobs.slice(0, count) }),
    ...(logprobsContent && { logprobsContent: logprobsContent.slice(0, count) }),
    ...(details && { details: truncateDetails(details, count, tokenIds.length) }),
  }
}

function truncateDetails(details: TokenData, count: number, tokens: number): TokenData {
  const { sampling_mask: mask, top_logprobs: tops, sampling_logprobs: logprobs, ...rest } = details
  const isPerToken = (table: TokenTable | undefined) => table?.counts.length === tokens
  return {
    ...rest,
    ...(mask && isPerToken(mask) && { sampling_mask: truncateTable({ start: 0, ...mask }, count) }),
    ...(tops && isPerToken(tops) && { top_logprobs: truncateTable({ start: 0, ...tops }, count) }),
    ...(logprobs?.length === tokens && { sampling_logprobs: logprobs.slice(0, count) }),
  }
}
